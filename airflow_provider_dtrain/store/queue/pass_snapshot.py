"""Snapshot of a pool for a scheduling pass, read with few statements, and the decision of the core for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import SILENT_AFTER, UNTAKEN_AFTER
from airflow_provider_dtrain.core.scheduling.decision import PassDecision, run_pass
from airflow_provider_dtrain.core.scheduling.model import (
    GangRequest,
    Host,
    Placement,
    PoolOptions,
    RunningGang,
    Unplaceable,
)
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import RequestRow
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    hosts,
    searches,
    slots,
    trials,
)
from airflow_provider_dtrain.store.queue.accounting import held_s, waited_s
from airflow_provider_dtrain.store.queue.held_gangs import gang_text, trial_text
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.trials import HANDED_OVER

#: A request that was not renewed within this time is removed.
FORGOTTEN_AFTER = timedelta(hours=24)

#: As literals, so that the index over (pool, state) excludes ended allocations.
_IS_LIVE = sa.text(
    "allocations.state IN ({})".format(", ".join(f"'{state}'" for state in sorted({"waiting", *states.HOLDING})))
)
_COMMA: Any = sa.literal_column("','")
_COLON: Any = sa.literal_column("':'")
#: The slots that an allocation holds, as ``host:0,host:1``.
_HELD: sa.Label[str] = (
    sa.select(
        sa.func.aggregate_strings(
            allocation_slots.c.host.op("||")(_COLON).op("||")(sa.cast(allocation_slots.c.slot, sa.Text)), _COMMA
        )
    )
    .where(allocation_slots.c.allocation_id == allocations.c.id, held_rows(), allocation_slots.c.slot >= 0)
    .correlate(allocations)
    .scalar_subquery()
    .label("holds")
)
#: A worker has handed the request over, and no triggerer follows it yet.
_IS_HANDED_OVER: sa.Label[bool] = sa.and_(
    allocations.c.state == "waiting",
    sa.or_(
        gangs.c.watcher.is_not_distinct_from(HANDED_OVER),
        sa.exists()
        .where(attempts.c.allocation_id == allocations.c.id, attempts.c.state == "waiting")
        .where(attempts.c.watcher == HANDED_OVER)
        .correlate(allocations),
    ),
).label("is_handed_over")
#: All allocations of a pool that wait or hold slots.
ENTRIES: sa.Select[Any] = (
    sa.select(
        *(
            allocations.c[name]
            for name in (
                "id",
                "trial_id",
                "slots",
                "priority",
                "is_single_host",
                "on_unplaceable",
                "state",
                "sequence",
                "reason",
                "reason_since_s",
                "reason_entries",
                "unplaceable",
                "never_fits",
                "position",
                "renewed_at",
                "granted_at",
                "held_s",
                "waited_s",
                "eligible_since",
                "paused",
                "max_runtime_s",
                "claim",
                "reserved_hosts",
                "expected_at",
                "expected",
                "preemptible",
                "has_checkpoint",
                "cost_s",
                "preempted_at",
            )
        ),
        trials.c.excluded,
        trials.c.dag_id.label("trial_dag"),
        trials.c.task_id.label("trial_task"),
        trials.c.map_index,
        trials.c.experiment_id,
        experiments.c.name.label("experiment"),
        experiments.c.weight,
        experiments.c.max_slots,
        searches.c.id.label("search_id"),
        searches.c.max_concurrent_trials,
        gangs.c.dag_id,
        gangs.c.task_id,
        gangs.c.held_until,
        gangs.c.attempt_id,
        gangs.c.ended_because,
        _IS_HANDED_OVER,
        _HELD,
    )
    .select_from(
        allocations.outerjoin(trials, trials.c.id == allocations.c.trial_id)
        .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
        .outerjoin(searches, searches.c.id == trials.c.search_id)
        .outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
    )
    .where(allocations.c.pool == sa.bindparam("pool_name"), _IS_LIVE)
)
#: One row per host, and one more for each further unusable slot of it.
HOSTS: sa.Select[Any] = (
    sa.select(hosts.c.name, hosts.c.slot_count, hosts.c.state, slots.c.slot, slots.c.enabled)
    .outerjoin(
        slots,
        sa.and_(slots.c.host == hosts.c.name, sa.or_(sa.not_(slots.c.enabled), slots.c.state != "ready")),
    )
    .where(hosts.c.pool == sa.bindparam("pool_name"))
)


class EntryRow(RequestRow, Protocol):
    """A row of :data:`ENTRIES`: an allocation that waits or holds slots."""

    excluded: Sequence[Mapping[str, Any]] | None
    trial_dag: str
    trial_task: str
    map_index: int
    experiment_id: int | None
    experiment: str
    weight: float
    max_slots: int | None
    search_id: int | None
    max_concurrent_trials: int | None
    dag_id: str
    task_id: str
    held_until: datetime | None
    attempt_id: int | None
    ended_because: str | None
    is_handed_over: bool
    #: Its slots as ``host:0,host:1``, None without slots.
    holds: str | None


#: Name and number of slots of a host, its state, and one of its unusable slots with its switch.
HostSlot = tuple[str, int, HostState, int | None, bool | None]
#: Queries of a pass, after the lock of the pool.
SITUATION = (ENTRIES, HOSTS)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Snapshot of a pool for one pass."""

    now: datetime
    options: PoolOptions
    machines: Sequence[Host]
    #: All waiting requests.
    waiting: Sequence[EntryRow]
    #: All allocations that hold slots.
    holding: Sequence[EntryRow]
    #: allocation -> host -> slot indices.
    held: Mapping[int, Mapping[str, tuple[int, ...]]]

    @property
    def followed(self) -> list[EntryRow]:
        """The requests that the pass considers: neither paused nor silent."""
        return [entry for entry in self.waiting if not entry.paused and entry.renewed_at > self.now - SILENT_AFTER]


def situation(rows: Sequence[Sequence[Any]], options: PoolOptions, now: datetime) -> Situation:
    """Return the snapshot of a pool.

    :param rows: results of the queries of ``SITUATION``
    """
    entries, host_rows = rows
    held = {entry.id: _placed(entry.holds) for entry in entries if entry.holds is not None}
    waiting: list[EntryRow] = []
    holding: list[EntryRow] = []
    for entry in entries:
        (waiting if entry.state == "waiting" else holding).append(entry)
    machines = _machines(host_rows, held, {entry.id: _owner(entry) for entry in holding})
    return Situation(now=now, options=options, machines=machines, waiting=waiting, holding=holding, held=held)


# Most gangs hold the same slots as at the previous pass.
@lru_cache(maxsize=10_000)
def _placed(holds: str) -> Mapping[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for entry in holds.split(","):
        host, _, slot = entry.rpartition(":")
        found.setdefault(host, []).append(int(slot))
    return {host: tuple(sorted(indices)) for host, indices in found.items()}


def is_untidy(found: Situation) -> bool:
    """Return whether requests, grants or held gangs must be ended or revoked before the pass."""
    now = found.now
    late = any(entry.renewed_at <= now - FORGOTTEN_AFTER for entry in found.waiting)
    return late or any(
        (entry.state == "granted" and _granted_at(entry, now) <= now - UNTAKEN_AFTER) or _is_idle_gang(entry, now)
        for entry in found.holding
    )


def _granted_at(entry: EntryRow, now: datetime) -> datetime:
    """Return the time of a gang's grant, which each entry that holds slots has."""
    return now if entry.granted_at is None else entry.granted_at


def _is_idle_gang(entry: EntryRow, now: datetime) -> bool:
    if entry.trial_id is not None or entry.attempt_id is not None:
        return False
    return entry.ended_because is not None or (entry.held_until is not None and entry.held_until <= now)


def pool_machines(conn: Connection, pool: str) -> list[Host]:
    """Return the pool's hosts as if all slots were free, to check requests for feasibility."""
    return _machines(statements.rows(conn, SITUATION[1], {"pool_name": pool}), {}, {})


def _owner(entry: EntryRow) -> str:
    if entry.trial_id is None:
        return gang_text(entry.dag_id, entry.task_id)
    return trial_text(entry.trial_id, entry.experiment, entry.trial_dag, entry.trial_task, entry.map_index)


def _machines(
    rows: Iterable[HostSlot], held: Mapping[int, Mapping[str, tuple[int, ...]]], names: Mapping[int, str]
) -> list[Host]:
    holders: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for allocation_id, placed in held.items():
        holder = names[allocation_id]
        for host, indices in placed.items():
            holders.setdefault(host, []).append((holder, indices))
    unusable: dict[str, tuple[set[int], set[int]]] = {}
    for name, _, _, slot, enabled in rows:
        if slot is not None:
            unusable.setdefault(name, (set(), set()))[bool(enabled)].add(slot)
    found = {}
    for name, count, state, _, _ in rows:
        off, blocked = map(frozenset, unusable[name]) if name in unusable else (_NO_SLOTS, _NO_SLOTS)
        found[name] = _machine(name, count, state, tuple(holders.get(name, ())), off, blocked)
    return list(found.values())


_NO_SLOTS: frozenset[int] = frozenset()


# Most hosts are the same as at the previous pass.
@lru_cache(maxsize=10_000)
def _machine(
    name: str,
    count: int,
    state: HostState,
    holders: tuple[tuple[str, tuple[int, ...]], ...],
    off: frozenset[int],
    blocked: frozenset[int],
) -> Host:
    taken = tuple(sorted((slot, holder) for holder, indices in holders for slot in indices))
    return Host(name, count, frozenset(slot for slot, _ in taken), state, off, blocked, taken)


def decide(found: Situation, *, more: Sequence[GangRequest] = ()) -> PassDecision:
    """Return the decision of the core for a pool.

    :param more: hypothetical requests, to see what the pass would decide about them
    """
    requests = [*(_request(entry, found) for entry in found.followed), *more]
    # A gang of 0 slots blocks no other gang, but counts for its search.
    running = [_running(entry, found) for entry in found.holding if entry.id in found.held or _crowd(entry)]
    return run_pass(found.machines, requests, found.options, running)


def _group(entry: EntryRow) -> dict[str, Any]:
    if entry.experiment_id is None:
        return {"group": f"gang {entry.id}"}
    return {"group": str(entry.experiment_id), "weight": entry.weight, "crowd": _crowd(entry)}


def _crowd(entry: EntryRow) -> str:
    """Return the name of the set of gangs whose concurrency a search limits, "" without a limit."""
    return f"search {entry.search_id}" if entry.max_concurrent_trials else ""


def _is_preemptible(entry: EntryRow) -> bool:
    if entry.trial_id is None:
        return False
    return bool(entry.has_checkpoint if entry.preemptible is None else entry.preemptible)


def _request(entry: EntryRow, found: Situation) -> GangRequest:
    claim = entry.claim and Placement({host: tuple(indices) for host, indices in entry.claim.items()})
    return GangRequest(
        request_id=str(entry.id),
        slots=entry.slots,
        priority=entry.priority,
        is_single_host=entry.is_single_host,
        excluded_hosts=_excluded(entry, found) if entry.excluded else frozenset(),
        sequence=entry.sequence,
        max_slots=entry.max_slots,
        max_gangs=entry.max_concurrent_trials or None,
        held_s=entry.held_s,
        waited_s=waited_s(entry, found.now),
        max_runtime_s=entry.max_runtime_s,
        claim=claim or None,
        reserved_hosts=tuple(entry.reserved_hosts or ()),
        is_preemptible=_is_preemptible(entry),
        is_followed=not entry.is_handed_over,
        **_group(entry),
    )


def _excluded(entry: EntryRow, found: Situation) -> frozenset[str]:
    """Return the hosts that a trial must not use.

    These are all its excluded hosts, unless the remaining hosts can never serve it. Then only exclusions that have not
    expired count.
    """
    until_s = {item["host"]: item["until_s"] for item in entry.excluded or ()}
    endless = [host for host in found.machines if host.name not in until_s]
    request = GangRequest(str(entry.id), entry.slots, entry.priority, entry.is_single_host)
    options = found.options
    rest = place(request, endless, allow_heterogeneous=options.allow_heterogeneous, fit=options.fit)
    if isinstance(rest, Unplaceable) and rest.never:
        return frozenset(host for host, until in until_s.items() if until > found.now.timestamp())
    return frozenset(until_s)


def _running(entry: EntryRow, found: Situation) -> RunningGang:
    ran_s = max(0.0, (found.now - _granted_at(entry, found.now)).total_seconds())
    runtime_s = entry.max_runtime_s
    is_expired = entry.state == "expired"
    # The end of a task on a held gang does not free the gang.
    is_stopping = entry.state == "stopping" and entry.trial_id is not None
    is_ending = is_expired or is_stopping or entry.preempted_at is not None or entry.ended_because is not None
    counters = {} if is_expired else {"waited_s": entry.waited_s, "held_s": held_s(entry, found.now), **_group(entry)}
    return RunningGang(
        request_id=str(entry.id),
        placement=Placement(found.held.get(entry.id, {})),
        owner=_owner(entry),
        priority=entry.priority,
        sequence=entry.sequence,
        ran_s=ran_s,
        is_preemptible=entry.slots > 0 and entry.state in {"starting", "running"} and _is_preemptible(entry),
        cost_s=entry.cost_s or 0.0,
        is_ending=is_ending,
        ends_in_s=None if runtime_s is None else max(0.0, runtime_s - ran_s),
        **counters,
    )


def next_due(found: Situation, decision: PassDecision, granted: Sequence[int]) -> datetime | None:
    """Return the time at which the next decision may differ without any change to the pool."""
    now = found.now
    due = [now + UNTAKEN_AFTER] if granted else []
    if decision.next_due_s is not None:
        due.append(now + timedelta(seconds=max(0.0, decision.next_due_s)))
    for entry in found.holding:
        if entry.state == "granted":
            due.append(_granted_at(entry, now) + UNTAKEN_AFTER)
        if entry.held_until is not None and entry.attempt_id is None and entry.ended_because is None:
            due.append(entry.held_until)
    for entry in found.waiting:
        if entry.id in granted:
            continue
        is_followed = entry.renewed_at > now - SILENT_AFTER
        due.append(entry.renewed_at + (SILENT_AFTER if is_followed else FORGOTTEN_AFTER))
        lapses = (datetime.fromtimestamp(item["until_s"], UTC) for item in entry.excluded or ())
        due.extend(lapse for lapse in lapses if lapse > now)
    return min(due, default=None)
