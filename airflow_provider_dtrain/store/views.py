"""Views of attempts and trials, joined from rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.follower_text import silence
from airflow_provider_dtrain.core.lifecycle.states import ACTIVE
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import TaskKeyRow, record_of
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    meta,
    rung_entries,
    searches,
    trials,
)
from airflow_provider_dtrain.store.records.trials import HANDED_OVER, AttemptView, TrialKey, TrialView

#: Host -> slots of a grant on it, and whether they are held.
_Placed = dict[str, tuple[tuple[int, ...], bool]]
#: The request for which a gang was preempted.
CLAIMANTS = allocations.alias("claimants")
JOINED = (
    attempts.join(trials, trials.c.id == attempts.c.trial_id)
    .join(experiments, experiments.c.id == trials.c.experiment_id)
    .join(allocations, allocations.c.id == attempts.c.allocation_id)
)


FOLLOWED = JOINED.outerjoin(CLAIMANTS, CLAIMANTS.c.id == allocations.c.preempted_for).outerjoin(
    gangs, gangs.c.allocation_id == allocations.c.id
)

HIGHEST_RUNG = (
    sa.select(sa.func.max(rung_entries.c.rung))
    .where(rung_entries.c.trial_id == trials.c.id, sa.not_(rung_entries.c.is_error))
    .scalar_subquery()
    .label("rung")
)
IN_SEARCH = (trials.c.search_id, trials.c.bracket, trials.c.draw, trials.c.is_drawn, HIGHEST_RUNG)


class PreemptedRow(Protocol):
    """A row of :data:`FOLLOWED` with the columns that say for whom a gang is preempted."""

    preempted_at: datetime | None
    claimant_trial: int | None


def claimant_of(row: PreemptedRow) -> str | None:
    """Return the preemptor of a gang in words, None when it is not preempted."""
    if row.preempted_at is None:
        return None
    return "a more urgent gang" if row.claimant_trial is None else f"trial {row.claimant_trial}"


def run_name(store: str, trial_id: int, number: int, token: int) -> str:
    """Return the name of an attempt's run on the hosts, which no other store uses.

    :param store: see :func:`store_mark`
    """
    return f"{store}-t{trial_id}.{number}.{token}"


STORE_ID = sa.select(meta.c.value).where(meta.c.key == "store_id")


def store_mark(conn: Connection) -> str:
    """Return the first 8 hex digits of the store's id."""
    return str(statements.first(conn, STORE_ID, {}).value)[:8]


#: Columns from which :func:`key_of` makes the task instance.
TRIAL_KEY = (trials.c.dag_id, trials.c.run_id, trials.c.task_id, trials.c.map_index, trials.c.max_tries)


def key_of(row: TaskKeyRow) -> TrialKey:
    """Return the task instance behind a row that has a trial's columns."""
    return TrialKey(
        dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id, map_index=row.map_index, max_tries=row.max_tries
    )


_VIEWS: sa.Select[Any] = (
    sa.select(
        attempts,
        trials.c.number.label("trial_number"),
        trials.c.state.label("trial_state"),
        trials.c.experiment_id,
        experiments.c.name.label("experiment"),
        *TRIAL_KEY,
        trials.c.trial_index,
        trials.c.config_id,
        trials.c.payload,
        trials.c.hparams,
        trials.c.seed,
        trials.c.restarts,
        trials.c.max_restarts,
        allocations.c.state.label("allocation_state"),
        allocations.c.pool,
        allocations.c.backend,
        allocations.c.priority,
        allocations.c.sequence,
        allocations.c.slots,
        allocations.c.token,
        allocations.c.granted_at,
        allocations.c.unplaceable,
        allocations.c.reason.label("allocation_reason"),
        allocations.c.expected,
        allocations.c.expected_at,
        allocations.c.paused,
        allocations.c.max_runtime_s,
        allocations.c.cost_s,
        allocations.c.preempted_at,
        allocations.c.position,
        allocations.c.renewed_at.label("asked_at"),
        allocations.c.claim,
        *IN_SEARCH,
        CLAIMANTS.c.trial_id.label("claimant_trial"),
        gangs.c.allocation_id.label("gang"),
        gangs.c.attempt_id.label("gang_user"),
        gangs.c.unclear.label("gang_unclear"),
    )
    .select_from(FOLLOWED)
    .order_by(attempts.c.id)
)
_VIEW = _VIEWS.where(attempts.c.id == sa.bindparam("attempt"))
_COMMA: Any = sa.literal_column("','")
_HOST = tuple(allocation_slots.c[name] for name in ("allocation_id", "token", "host"))
#: Grants, a row per host. A host of which a grant has no slot has one row in the table, with the index -1.
_GRANTS: sa.Select[Any] = (
    sa.select(
        *_HOST,
        sa.func.aggregate_strings(
            sa.case((allocation_slots.c.slot >= 0, sa.cast(allocation_slots.c.slot, sa.Text))), _COMMA
        ).label("slots"),
        (sa.func.count() > sa.func.count(allocation_slots.c.released_at)).label("is_held"),
    )
    .group_by(*_HOST)
    .order_by(allocation_slots.c.allocation_id, allocation_slots.c.host)
)
_GRANT = _GRANTS.join(attempts, attempts.c.allocation_id == allocation_slots.c.allocation_id).where(
    attempts.c.id == sa.bindparam("attempt")
)
#: Without the tokens: SQLite probes the index for each pair of an allocation and a token, 4 million for 2,000.
_GRANTS_OF = _GRANTS.where(allocation_slots.c.allocation_id.in_(sa.bindparam("allocations", expanding=True)))


def attempt_view(conn: Connection, attempt_id: int) -> AttemptView | None:
    """Return an attempt, None when there is no attempt with this id."""
    found, grant, [store] = statements.read(conn, (_VIEW, _GRANT, STORE_ID), {"attempt": attempt_id})
    if not found:
        return None
    # Only slots of the grant that was read, because there may be a newer one since.
    placed = {row.host: _slots_of(row) for row in grant if row.token == found[0].token}
    return _attempt_view(conn, str(store.value)[:8], found[0], placed)


def attempt_views(conn: Connection, where: sa.ColumnElement[bool]) -> list[AttemptView]:
    """Return the matching attempts, by id."""
    rows = conn.execute(_VIEWS.where(where)).all()
    placed = placements(conn, {row.allocation_id: row.token for row in rows if row.token is not None})
    store = store_mark(conn)
    return [_attempt_view(conn, store, row, placed.get(row.allocation_id, {})) for row in rows]


def _attempt_view(conn: Connection, store: str, row: Row[Any], placed: _Placed) -> AttemptView:
    waits = row.allocation_state == "waiting"
    reason = row.reason
    waits_held = row.gang is not None and row.state == "waiting"
    # A host may have a run of this name, of a trial that the store has lost.
    was_refused = row.ended_at is not None and row.plan is None and row.allocation_state == "released"
    if waits:
        reason = waits_because(conn, row.allocation_id, row.allocation_reason, row.asked_at, row)
    return record_of(
        AttemptView,
        row,
        attempt_id=row.id,
        key=key_of(row),
        run=None if row.token is None or was_refused else run_name(store, row.trial_id, row.number, row.token),
        placement={host: indices for host, (indices, _) in placed.items()},
        held_hosts=tuple(host for host, (_, held) in placed.items() if held and _is_concerned(row, host)),
        reason=reason,
        position=(row.position or position(conn, row.pool, row.priority, row.sequence)) if waits else None,
        preempted_for=claimant_of(row),
        is_held_gang=row.gang is not None,
        # An attempt that waits for a held gang renews nothing.
        seen_at=None if waits_held else seen_at(row.state, row.renewed_at, row.asked_at),
    )


def seen_at(state: str | None, followed_at: datetime | None, asked_at: datetime) -> datetime | None:
    """Return the last sign of life of an attempt's waiter or follower, None when it needs neither.

    :param state: of the attempt; None: the held gang is unused
    :param followed_at: time of the attempt's last renewal
    :param asked_at: time of its request's last renewal, which a waiter renews
    """
    if state == "waiting":
        return asked_at if followed_at is None else max(asked_at, followed_at)
    return followed_at if state in ACTIVE else None


def waits_because(conn: Connection, allocation_id: int, reason: str, asked_at: datetime, row: Row[Any]) -> str:
    """Return the reason why a request waits, with the preempted trials that have no follower.

    :param reason: as found by the last pass
    :param asked_at: time of the request's last renewal
    :param row: has ``claim`` and ``pool``
    """
    if not row.claim:
        return reason
    query = (
        sa.select(allocations.c.trial_id, attempts.c.renewed_at, attempts.c.watcher)
        .join(attempts, attempts.c.allocation_id == allocations.c.id)
        .where(allocations.c.pool == row.pool, allocations.c.state.in_(ACTIVE))
        .where(allocations.c.preempted_at.is_not(None), allocations.c.trial_id.is_not(None))
        .where(allocations.c.preempted_for == allocation_id)
        .order_by(allocations.c.trial_id, attempts.c.id)
    )
    newest = {one.trial_id: one for one in conn.execute(query)}
    # The waiter renews its request, so ``asked_at`` is about now.
    found = {
        trial_id: silence(one.renewed_at, asked_at, is_handed_over=one.watcher == HANDED_OVER).lost_since
        for trial_id, one in newest.items()
    }
    parts = [
        f" Trial {trial_id} has had no follower since {since:%H:%M:%SZ}: recovery or its host must end it."
        for trial_id, since in found.items()
        if since is not None
    ]
    return "".join([reason, *parts])


def _is_concerned(row: Row[Any], host: str) -> bool:
    """Return whether the attempt may have left processes on a host.

    On a held gang this is true only for the attempt that uses it.
    """
    return row.gang is None or (row.gang_user == row.id and host in row.gang_unclear)


def position(conn: Connection, pool: str, priority: int, sequence: int) -> int:
    """Return the place of a waiting request in its pool, from 1."""
    earlier = sa.or_(
        allocations.c.priority < priority,
        sa.and_(allocations.c.priority == priority, allocations.c.sequence <= sequence),
    )
    query = sa.select(sa.func.count()).select_from(allocations)
    return int(conn.scalar(query.where(allocations.c.pool == pool, allocations.c.state == "waiting", earlier)) or 0)


def placements(conn: Connection, tokens: Mapping[int, int]) -> dict[int, _Placed]:
    """Return per allocation and host the slots of the grant, and whether they are held.

    :param tokens: allocation -> token of its grant
    """
    found: dict[int, _Placed] = {}
    for row in conn.execute(_GRANTS_OF, {"allocations": list(tokens)}) if tokens else ():
        if tokens[row.allocation_id] == row.token:
            found.setdefault(row.allocation_id, {})[row.host] = _slots_of(row)
    return found


def _slots_of(row: Row[Any]) -> tuple[tuple[int, ...], bool]:
    """Return the slots of a row of :data:`_GRANTS`, and whether they are held."""
    return tuple(sorted(map(int, row.slots.split(",")))) if row.slots else (), row.is_held


def trial_views(conn: Connection, where: sa.ColumnElement[bool], *, limit: int | None = None) -> list[TrialView]:
    """Return the matching trials, newest first."""
    return [_trial_view(row) for row in conn.execute(_TRIALS.where(where).limit(limit))]


def _of_its_attempts(name: str, value: sa.ColumnElement[Any]) -> sa.Label[Any]:
    # A subquery per trial: with a join, the database groups the attempts of all trials before it selects one.
    return sa.select(value).where(attempts.c.trial_id == trials.c.id).scalar_subquery().label(name)


_TRIALS: sa.Select[Any] = (
    sa.select(
        trials,
        experiments.c.name.label("experiment"),
        *(experiments.c[name] for name in ("owner", "project", "archived")),
        HIGHEST_RUNG,
        _of_its_attempts("attempts", sa.func.count()),
        _of_its_attempts("attempt_id", sa.func.max(attempts.c.id)),
        sa.exists()
        .where(searches.c.experiment_id == trials.c.experiment_id, searches.c.id > trials.c.search_id)
        .label("is_of_older_plan"),
    )
    .join(experiments, experiments.c.id == trials.c.experiment_id)
    .order_by(trials.c.id.desc())
)
_TRIAL = _TRIALS.where(trials.c.id == sa.bindparam("trial"))


def trial_view(conn: Connection, trial_id: int) -> TrialView | None:
    """Return a trial, None when there is no trial with this id."""
    row = statements.first(conn, _TRIAL, {"trial": trial_id})
    return None if row is None else _trial_view(row)


def _trial_view(row: Row[Any]) -> TrialView:
    return record_of(TrialView, row, trial_id=row.id, key=key_of(row), is_cleared=row.cleared_at is not None)
