"""Deletion of experiments: refusals, what it frees, and removal of all rows in small transactions.

An experiment is marked first, in the transaction that checks it. From then on it is in no list, and no trial of it can
start. Its row goes last, so a removal that was interrupted is repeated until everything is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_LIVE
from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from airflow_provider_dtrain.resources.bulk import Freed
from airflow_provider_dtrain.store.database.comment_table import comments
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    checkpoints,
    configs,
    experiments,
    external_jobs,
    hosts,
    labels,
    metadata,
    searches,
    submissions,
    tags,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.views import run_name, store_mark

#: Rows per transaction, which takes some milliseconds.
BATCH: Final = 500
#: Tables with references to rows of experiments that they do not belong to.
NOT_OWNED: Final = frozenset({hosts.name})
#: Tables whose rows name an experiment or a trial by kind and id.
_OF_OBJECTS: Final = (labels, tags, comments)


class Deletions:
    """Deletion of experiments."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def refusal(self, conn: Connection, experiment_id: int) -> str:
        """Return why an experiment cannot be deleted now, as a sentence. Empty: it can.

        :raises NotFoundError: there is none with this id
        """
        return _refusal(conn, _locked(conn, experiment_id, with_lock=False))

    @reads
    def freed(self, conn: Connection, experiment_id: int) -> Freed:
        """Return what the deletion of an experiment removes."""
        of = trials.c.experiment_id == experiment_id
        kept = (checkpoints.c.removed_at.is_(None), checkpoints.c.trial_id.in_(sa.select(trials.c.id).where(of)))
        sizes = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(checkpoints.c.size_bytes), 0))
        count, size_bytes = conn.execute(sizes.where(*kept)).one()
        numbers = {
            table.name: int(conn.scalar(sa.select(sa.func.count()).select_from(table).where(own)) or 0)
            for table, own in _owned(experiment_id)
        }
        return Freed(
            trials=numbers[trials.name],
            checkpoints=int(count),
            checkpoint_bytes=int(size_bytes),
            hosts=len({host for host, _, _ in _grants(conn, experiment_id)}),
            rows=sum(numbers.values()),
        )

    @writes
    def begin(self, conn: Connection, experiment_id: int, by: str) -> None:
        """Mark an experiment for removal. Repeatable.

        :param by: the user
        :raises NotFoundError: there is none with this id
        :raises ConflictError: it runs, or something else needs it
        """
        row = _locked(conn, experiment_id, with_lock=True)
        if row.delete_requested_at is not None:
            return
        if why := _refusal(conn, row):
            raise ConflictError(why)
        values = {"delete_requested_at": self.db.now(), "delete_requested_by": by}
        conn.execute(experiments.update().where(experiments.c.id == experiment_id).values(**values))
        self.db.audit(conn, by, "deletion requested", f"experiment {experiment_id}", f"name={row.name!r}")

    @reads
    def pending(self, conn: Connection) -> list[int]:
        """Return the experiments that are marked, and not removed yet."""
        marked = sa.select(experiments.c.id).where(experiments.c.delete_requested_at.is_not(None))
        return list(conn.scalars(marked.order_by(experiments.c.id)))

    @reads
    def runs(self, conn: Connection, experiment_id: int) -> dict[str, list[str]]:
        """Return the names of runs that an experiment may have on hosts, by host.

        A name is made of a trial, one of its attempts and the token of one of its grants. Not every combination was
        started.
        """
        mark = store_mark(conn)
        numbers: dict[int, list[int]] = defaultdict(list)
        of_trials = sa.select(attempts.c.trial_id, attempts.c.number).join(trials, trials.c.id == attempts.c.trial_id)
        for trial_id, number in conn.execute(of_trials.where(trials.c.experiment_id == experiment_id)):
            numbers[trial_id].append(number)
        found: dict[str, list[str]] = defaultdict(list)
        for host, trial_id, token in _grants(conn, experiment_id):
            found[host] += [run_name(mark, trial_id, number, token) for number in numbers[trial_id]]
        return dict(found)

    def remove_rows(self, experiment_id: int) -> Iterator[int]:
        """Remove all rows of a marked experiment, its own row last, and yield the number of each small transaction.

        :raises ConflictError: it is not marked
        """
        for table, own in _owned(experiment_id):
            while count := self._remove(experiment_id, table, own):
                yield count

    @writes
    def _remove(self, conn: Connection, experiment_id: int, table: sa.Table, own: sa.ColumnElement[bool]) -> int:
        marked = experiments.c.id == experiment_id, experiments.c.delete_requested_at.is_not(None)
        row = conn.execute(sa.select(experiments).where(*marked)).one_or_none()
        if row is None:
            if conn.scalar(sa.select(experiments.c.id).where(experiments.c.id == experiment_id)) is None:
                return 0
            raise ConflictError(f"Experiment {experiment_id} was not marked for deletion.")
        key = list(table.primary_key.columns)
        found = [tuple(one) for one in conn.execute(sa.select(*key).where(own).limit(BATCH))]
        if found:
            conn.execute(table.delete().where(sa.tuple_(*key).in_(found)))
        if found and table is experiments:
            by = row.delete_requested_by or ""
            self.db.audit(conn, by, "deleted", f"experiment {experiment_id}", f"name={row.name!r}")
        return len(found)


def _locked(conn: Connection, experiment_id: int, *, with_lock: bool) -> Any:
    query = sa.select(experiments).where(experiments.c.id == experiment_id)
    row = conn.execute(query.with_for_update() if with_lock else query).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no experiment {experiment_id}. See: airflow dtrain experiments list")
    return row


def _owned(experiment_id: int) -> list[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Return the tables with rows of an experiment and the conditions for these, rows that refer to others first.

    A row belongs to the experiment if one of its foreign keys leads there, directly or through other rows.
    """
    own: dict[str, sa.ColumnElement[bool]] = {experiments.name: experiments.c.id == experiment_id}
    for table in metadata.sorted_tables:
        if table.name in own or table.name in NOT_OWNED:
            continue
        keys = [
            key.parent.in_(sa.select(key.column).where(own[key.column.table.name]))
            for key in sorted(table.foreign_keys, key=lambda one: one.parent.name)
            if key.column.table.name in own and key.column.table is not table
        ]
        if keys:
            own[table.name] = sa.or_(*keys)
    for table in _OF_OBJECTS:
        of_trial = sa.select(trials.c.id).where(own[trials.name])
        own[table.name] = sa.or_(
            sa.and_(table.c.kind == "experiment", table.c.object_id == experiment_id),
            sa.and_(table.c.kind == "trial", table.c.object_id.in_(of_trial)),
        )
    last = [table for table in reversed(metadata.sorted_tables) if table not in _OF_OBJECTS]
    return [(table, own[table.name]) for table in (*_OF_OBJECTS, *last) if table.name in own]


def owned_tables() -> list[sa.Table]:
    """Return the tables whose rows are removed with their experiment."""
    return [table for table, _ in _owned(0)]


def _grants(conn: Connection, experiment_id: int) -> list[tuple[str, int, int]]:
    """Return host, trial and token of all grants of an experiment, in order."""
    columns = (allocation_slots.c.host, trials.c.id, allocation_slots.c.token)
    own = sa.select(*columns).distinct().where(trials.c.experiment_id == experiment_id)
    of_requests = own.join(allocations, allocations.c.id == allocation_slots.c.allocation_id).join(
        trials, trials.c.id == allocations.c.trial_id
    )
    # Gangs that are held for several tasks belong to no trial.
    of_attempts = own.join(attempts, attempts.c.allocation_id == allocation_slots.c.allocation_id).join(
        trials, trials.c.id == attempts.c.trial_id
    )
    return sorted({tuple(row) for query in (of_requests, of_attempts) for row in conn.execute(query)})


def _refusal(conn: Connection, row: Any) -> str:
    """Return why an experiment cannot be deleted now. Empty: it can."""
    of = trials.c.experiment_id == row.id
    live = int(
        conn.scalar(sa.select(sa.func.count()).select_from(trials).where(of, trials.c.state.in_(TRIAL_LIVE))) or 0
    )
    if live or row.state == "running":
        trials_text = f" ({live} trial{'' if live == 1 else 's'} left)" if live else ""
        return f"Experiment {row.id} has not ended{trials_text}. Stop or kill it first."
    held = (
        sa.select(allocation_slots.c.host)
        .join(attempts, attempts.c.allocation_id == allocation_slots.c.allocation_id)
        .join(allocations, allocations.c.id == attempts.c.allocation_id)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .where(of, allocation_slots.c.released_at.is_(None), allocations.c.trial_id.is_not(None))
    )
    if hosts_held := sorted(set(conn.scalars(held))):
        return (
            f"Experiment {row.id} still holds slots on {', '.join(hosts_held[:5])}, which have not confirmed that its "
            "processes ended. Try again once they have."
        )
    of_node = hosts.c.external_job_id == external_jobs.c.id
    jobs = (
        sa.select(external_jobs.c.id)
        .join(allocations, allocations.c.id == external_jobs.c.allocation_id)
        .join(trials, trials.c.id == allocations.c.trial_id)
        .where(of, sa.or_(external_jobs.c.phase != "ended", sa.exists().where(of_node)))
    )
    if conn.scalar(jobs.limit(1)) is not None:
        return f"A job of experiment {row.id} has not ended in its scheduler. Try again once it has."
    return _use(conn, row.id)


def _use(conn: Connection, experiment_id: int) -> str:
    """Return which other experiment needs this one, as a sentence. Empty: none."""
    own = trials.alias()
    of_experiment = sa.select(own.c.id).where(own.c.experiment_id == experiment_id)
    again = (
        sa.select(trials.c.id, trials.c.experiment_id, submissions.c.reproduces)
        .join(submissions, sa.and_(trials.c.dag_id == submissions.c.dag_id, trials.c.run_id == submissions.c.run_id))
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .where(submissions.c.reproduces.in_(of_experiment), trials.c.experiment_id != experiment_id)
        .where(experiments.c.delete_requested_at.is_(None))
    )
    if (found := conn.execute(again.order_by(trials.c.id).limit(1)).first()) is not None:
        trial_id, other, original = found
        return (
            f"Trial {trial_id} of experiment {other} runs trial {original} again and is compared with it. "
            f"Delete experiment {other} first."
        )
    return _fork(conn, experiment_id, frozenset(conn.scalars(of_experiment)))


def _fork(conn: Connection, experiment_id: int, ids: frozenset[int]) -> str:
    """Return which other experiment starts from a checkpoint of this one."""
    # PostgreSQL reads no member of a document in which a text has a NUL.
    has_nul = sa.cast(configs.c.document, sa.Text).contains(r"\u0000", autoescape=True)
    document = sa.case((sa.not_(has_nul), configs.c.document))
    named = [document["searcher"]["source_checkpoint"].as_string(), document["inference"]["weights"].as_string()]
    sources = sa.select(configs.c.config_id, *named).where(sa.or_(*(one.is_not(None) for one in named)))
    of_config = {row[0]: str(row[1] or row[2]) for row in conn.execute(sources)}
    if not of_config:
        return ""
    places = _places(conn, experiment_id)
    chosen = [key for key, text in of_config.items() if _names(text, ids, places)]
    for table in (searches, trials):
        query = (
            sa.select(table.c.config_id, experiments.c.id, experiments.c.name)
            .join(experiments, experiments.c.id == table.c.experiment_id)
            .where(table.c.config_id.in_(chosen), experiments.c.id != experiment_id)
            .where(experiments.c.delete_requested_at.is_(None))
        )
        if (found := conn.execute(query.order_by(experiments.c.id).limit(1)).first()) is not None:
            return (
                f"Experiment {found.id} '{found.name}' starts from a checkpoint of experiment {experiment_id} "
                f"({of_config[found.config_id]}). Delete experiment {found.id} first."
            )
    return ""


def _places(conn: Connection, experiment_id: int) -> frozenset[str]:
    query = (
        sa.select(checkpoints.c.path, checkpoints.c.copy_url)
        .join(trials, trials.c.id == checkpoints.c.trial_id)
        .where(trials.c.experiment_id == experiment_id)
    )
    return frozenset(text.rstrip("/") for row in conn.execute(query) for text in row if text)


def _names(text: str, trial_ids: frozenset[int], places: frozenset[str]) -> bool:
    """Return whether a source checkpoint is one of these trials or lies at one of these places."""
    kind, _, rest = text.partition(":")
    number = rest.partition(":")[0]
    if kind == "trial" and number.isdecimal():
        return int(number) in trial_ids
    return text.rstrip("/") in places
