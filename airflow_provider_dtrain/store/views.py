"""Rows joined into what callers see of attempts and trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.store.records import AttemptView, TrialKey, TrialView
from airflow_provider_dtrain.store.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    meta,
    trials,
)

#: The request for which a gang was told to go.
CLAIMANTS = allocations.alias("claimants")
JOINED = (
    attempts.join(trials, trials.c.id == attempts.c.trial_id)
    .join(experiments, experiments.c.id == trials.c.experiment_id)
    .join(allocations, allocations.c.id == attempts.c.allocation_id)
)


FOLLOWED = JOINED.outerjoin(CLAIMANTS, CLAIMANTS.c.id == allocations.c.preempted_for).outerjoin(
    gangs, gangs.c.allocation_id == allocations.c.id
)


def claimant_of(row: Row[Any]) -> str | None:
    """Return in words for whom a gang has to go; None when it may stay.

    :param row: has ``preempted_at`` and ``claimant_trial``
    """
    if row.preempted_at is None:
        return None
    return "a more urgent gang" if row.claimant_trial is None else f"trial {row.claimant_trial}"


def run_name(store: str, trial_id: int, number: int, token: int) -> str:
    """Return the name of an attempt's run on the hosts; no other store gives the same one.

    :param store: see :func:`store_mark`
    """
    return f"{store}-t{trial_id}.{number}.{token}"


def store_mark(conn: Connection) -> str:
    """Return the first 8 hex digits of the store's id."""
    return str(conn.scalar(sa.select(meta.c.value).where(meta.c.key == "store_id")))[:8]


def key_of(row: Row[Any]) -> TrialKey:
    """Return the task instance behind a row that has a trial's columns."""
    return TrialKey(
        dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id, map_index=row.map_index, max_tries=row.max_tries
    )


def attempt_views(conn: Connection, where: sa.ColumnElement[bool]) -> list[AttemptView]:
    """Return the attempts that fit, by id."""
    rows = conn.execute(
        sa.select(
            attempts, trials.c.number.label("trial_number"), trials.c.state.label("trial_state"),
            trials.c.experiment_id, experiments.c.name.label("experiment"), trials.c.dag_id, trials.c.run_id,
            trials.c.task_id, trials.c.map_index, trials.c.max_tries, trials.c.config_id, trials.c.payload,
            trials.c.hparams, trials.c.seed, trials.c.restarts, trials.c.max_restarts,
            allocations.c.state.label("allocation_state"), allocations.c.pool, allocations.c.priority,
            allocations.c.sequence, allocations.c.slots, allocations.c.token, allocations.c.granted_at,
            allocations.c.unplaceable, allocations.c.reason.label("allocation_reason"), allocations.c.expected,
            allocations.c.expected_at, allocations.c.paused, allocations.c.max_runtime_s, allocations.c.preempted_at,
            allocations.c.position,
            CLAIMANTS.c.trial_id.label("claimant_trial"), gangs.c.allocation_id.label("gang"),
            gangs.c.attempt_id.label("gang_user"), gangs.c.unclear.label("gang_unclear"),
        )
        .select_from(FOLLOWED)
        .where(where)
        .order_by(attempts.c.id)
    ).all()  # fmt: skip
    placed = placements(conn, {row.allocation_id: row.token for row in rows if row.token is not None})
    store = store_mark(conn)
    return [_attempt_view(conn, store, row, placed.get(row.allocation_id, {})) for row in rows]


def _attempt_view(
    conn: Connection, store: str, row: Row[Any], placed: Mapping[str, tuple[tuple[int, ...], bool]]
) -> AttemptView:
    waits = row.allocation_state == "waiting"
    same = {
        name: getattr(row, name)
        for name in (
            "number", "trial_id", "trial_number", "trial_state", "experiment_id", "experiment", "state", "watch",
            "watcher", "renewed_at", "allocation_id", "allocation_state", "pool", "priority", "slots", "unplaceable",
            "config_id", "payload", "hparams", "seed", "plan", "master", "restarts", "max_restarts", "created_at",
            "granted_at", "started_at", "ended_at", "failure", "result", "token", "expected", "expected_at", "paused",
            "max_runtime_s",
        )
    }  # fmt: skip
    return AttemptView(
        attempt_id=row.id,
        key=key_of(row),
        run=None if row.token is None else run_name(store, row.trial_id, row.number, row.token),
        placement={host: indices for host, (indices, _) in placed.items()},
        held_hosts=tuple(host for host, (_, held) in placed.items() if held and _is_concerned(row, host)),
        reason=row.allocation_reason if waits else row.reason,
        position=(row.position or position(conn, row.pool, row.priority, row.sequence)) if waits else None,
        preempted_for=claimant_of(row),
        is_held_gang=row.gang is not None,
        **same,
    )


def _is_concerned(row: Row[Any], host: str) -> bool:
    """Return whether the attempt may have left something on a host; of a held gang, only the one that uses it."""
    return row.gang is None or (row.gang_user == row.id and host in row.gang_unclear)


def position(conn: Connection, pool: str, priority: int, sequence: int) -> int:
    """Return the place of a waiting request in its pool, from 1."""
    earlier = sa.or_(
        allocations.c.priority < priority,
        sa.and_(allocations.c.priority == priority, allocations.c.sequence <= sequence),
    )
    query = sa.select(sa.func.count()).select_from(allocations)
    return int(conn.scalar(query.where(allocations.c.pool == pool, allocations.c.state == "waiting", earlier)) or 0)


def placements(conn: Connection, tokens: Mapping[int, int]) -> dict[int, dict[str, tuple[tuple[int, ...], bool]]]:
    """Return per allocation and host the slots of its grant, and whether they are held.

    :param tokens: allocation -> token of its grant
    """
    found: dict[int, dict[str, tuple[tuple[int, ...], bool]]] = {}
    for row in _grant_rows(conn, tokens):
        indices, held = found.setdefault(row.allocation_id, {}).get(row.host, ((), False))
        indices = indices if row.slot < 0 else (*indices, row.slot)
        found[row.allocation_id][row.host] = (indices, held or row.released_at is None)
    return found


def _grant_rows(conn: Connection, tokens: Mapping[int, int]) -> Iterable[Row[Any]]:
    if not tokens:
        return ()
    grants = allocation_slots.c
    query = sa.select(allocation_slots).where(grants.allocation_id.in_(tokens), grants.token.in_(tokens.values()))
    rows = conn.execute(query.order_by(grants.allocation_id, grants.host, grants.slot))
    return (row for row in rows if tokens[row.allocation_id] == row.token)


def trial_views(conn: Connection, where: sa.ColumnElement[bool], *, limit: int | None = None) -> list[TrialView]:
    """Return the trials that fit, newest first."""
    latest = (
        sa.select(
            attempts.c.trial_id, sa.func.count().label("attempts"), sa.func.max(attempts.c.id).label("attempt_id")
        )
        .group_by(attempts.c.trial_id)
        .subquery()
    )
    query = (
        sa.select(trials, experiments.c.name.label("experiment"), latest.c.attempts, latest.c.attempt_id)
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .join(latest, latest.c.trial_id == trials.c.id)
        .where(where)
        .order_by(trials.c.id.desc())
        .limit(limit)
    )
    return [_trial_view(row) for row in conn.execute(query)]


def _trial_view(row: Row[Any]) -> TrialView:
    same = {
        name: getattr(row, name)
        for name in (
            "number", "experiment_id", "experiment", "state", "config_id", "hparams", "seed", "restarts",
            "max_restarts", "attempts", "attempt_id", "kill_requested_by", "failure", "result", "created_at",
            "ended_at",
        )
    }  # fmt: skip
    return TrialView(trial_id=row.id, key=key_of(row), **same)
