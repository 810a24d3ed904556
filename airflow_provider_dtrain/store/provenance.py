"""Provenance: what the ranks of an attempt were made of, and lists that many attempts share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.resources.provenance import GitState
from airflow_provider_dtrain.store.database.rows import record_of
from airflow_provider_dtrain.store.database.tables import launches, manifests, trials
from airflow_provider_dtrain.store.database.transactions import Database, digest_of, guard, reads, writes
from airflow_provider_dtrain.store.records.provenance import Launch


class Provenance:
    """Facts about the code of trials and the launches of their attempts. They are never removed."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def set_launch(
        self, conn: Connection, attempt_id: int, watch: int, lock: Mapping[str, Any] | None, hosts: Mapping[str, Any]
    ) -> None:
        """Store the facts of a launch in place of those of an earlier one.

        :param lock: ``path`` and ``digest`` of the lock file, None without one
        :param hosts: host -> facts, of which ``packages`` (name -> version) is stored once for all attempts
        :raises StaleWatchError: the watch is not current
        """
        guard(conn, attempt_id, watch)
        values = {"lock": lock, "hosts": {host: self._shared(conn, facts) for host, facts in hosts.items()}}
        insert = self.db.insert(launches).values(attempt_id=attempt_id, **values)
        conn.execute(insert.on_conflict_do_update(index_elements=["attempt_id"], set_=values))

    @writes
    def add_facts(self, conn: Connection, attempt_id: int, watch: int, hosts: Mapping[str, Any]) -> None:
        """Add facts of hosts to those of a launch.

        :param hosts: as for :meth:`set_launch`
        :raises StaleWatchError: the watch is not current
        """
        guard(conn, attempt_id, watch)
        before = conn.scalar(sa.select(launches.c.hosts).where(launches.c.attempt_id == attempt_id)) or {}
        added = {host: {**before.get(host, {}), **self._shared(conn, facts)} for host, facts in hosts.items()}
        conn.execute(launches.update().where(launches.c.attempt_id == attempt_id).values(hosts={**before, **added}))

    def _shared(self, conn: Connection, facts: Mapping[str, Any]) -> JsonObject:
        """Return the facts of a host with the digest of its packages in place of them."""
        packages = facts.get("packages")
        if packages is None:
            return dict(facts)
        digest = digest_of(packages)
        insert = self.db.insert(manifests).values(digest=digest, content=packages)
        conn.execute(insert.on_conflict_do_nothing(index_elements=["digest"]))
        return {**facts, "packages": digest}

    @reads
    def launch(self, conn: Connection, attempt_id: int) -> Launch | None:
        """Return the facts of an attempt's launch, None before it."""
        row = conn.execute(sa.select(launches).where(launches.c.attempt_id == attempt_id)).first()
        return None if row is None else record_of(Launch, row)

    @reads
    def manifests(self, conn: Connection, digests: Collection[str]) -> dict[str, JsonObject]:
        """Return lists by their digests, without those that the store does not have."""
        found = conn.execute(sa.select(manifests).where(manifests.c.digest.in_(sorted(set(digests)))))
        return {row.digest: row.content for row in found}

    @reads
    def git_of(self, conn: Connection, experiment_id: int, code: str) -> GitState | None:
        """Return the state in git of code that trials of an experiment have, None if none has it.

        :param code: its digest
        """
        where = (trials.c.experiment_id == experiment_id, trials.c.payload == code)
        found = conn.scalar(sa.select(trials.c.source).where(*where).order_by(trials.c.id.desc()).limit(1))
        return GitState(**found["git"]) if found and found.get("git") else None

    @reads
    def source(self, conn: Connection, trial_id: int) -> JsonObject:
        """Return the code of a trial: ``code``, ``git`` and ``bundle``. {}: there is no such trial."""
        return dict(conn.scalar(sa.select(trials.c.source).where(trials.c.id == trial_id)) or {})
