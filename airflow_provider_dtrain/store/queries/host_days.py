"""A day of hosts, with the names that the reader may read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from airflow_provider_dtrain.core.series.slow_causes import straggler_text
from airflow_provider_dtrain.core.slot_seconds import Span, slot_seconds
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.resources.host_days import (
    HostDay,
    HostDays,
    HostNote,
    HostNoteKind,
    HostStateSpan,
    HostWork,
    WorkKind,
)
from airflow_provider_dtrain.store.host_rates import CHECK_DAG
from airflow_provider_dtrain.store.queue.held_gangs import gang_text

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.host_days import (
        CheckResult,
        HeldSlot,
        HolderWork,
        HostDayRows,
        SlowRank,
    )
    from airflow_provider_dtrain.store.records.pages import Dags
    from airflow_provider_dtrain.store.store import Store

_DAY: Final = timedelta(days=1)


class _OfHost(Protocol):
    @property
    def host(self) -> str: ...


T = TypeVar("T", bound=_OfHost)


def host_days(store: Store, rights: Rights, names: Sequence[str], *, day: date | None = None) -> HostDays:
    """Return what hosts did on a day.

    :param names: hosts; unknown ones are left out
    :param day: in UTC, today so far; None = the last 24 hours
    :raises NotFoundError: none of the hosts exists
    :raises UserError: the day has not begun, or is before 1970
    """
    now = store.db.now()
    since, until = now - _DAY, now
    if day is not None:
        since = datetime(day.year, day.month, day.day, tzinfo=UTC)
        if since >= now or day.year < 1970:
            raise UserError(f"The day must be from 1970 to {now.astimezone(UTC).date()} (today in UTC), got {day}.")
        until = min(now, since + _DAY)
    rows = store.host_days.read(list(dict.fromkeys(names)), since, until)
    if names and not rows.hosts:
        raise NotFoundError(f"There is no host '{names[0]}'. See: airflow dtrain hosts list")
    return HostDays(
        since=rows.since, until=until, is_cut=rows.since > since, hosts=_Days(rows, rights.readable(store), until).all()
    )


class _Days:
    """Makes the records of hosts from rows.

    :param dags: those that the reader may read, None for all
    """

    def __init__(self, rows: HostDayRows, dags: Dags, until: datetime) -> None:
        self.rows, self.dags = rows, dags
        self.period: Span = (rows.since.timestamp(), until.timestamp())
        self.until = until
        self.held, self.states = _by_host(rows.held), _by_host(rows.states)
        self.checks, self.slow = _by_host(rows.checks), _by_host(rows.slow_ranks)

    def all(self) -> list[HostDay]:
        """Return a record per host, by name."""
        return [self._host(name, pool, slots) for name, (pool, slots) in self.rows.hosts.items()]

    def _host(self, name: str, pool: str, slots: int) -> HostDay:
        states = sorted(self.states[name], key=lambda one: one.since)
        parts = slot_seconds(
            slots,
            [self._span(one.since, one.until) for one in self.held[name]],
            [self._span(one.since, one.until) for one in states if one.state == "ready"],
            self.period,
        )
        return HostDay(
            name=name,
            pool=pool,
            slots=slots,
            work=sorted(self._work(self.held[name]), key=lambda one: one.since),
            states=[
                HostStateSpan(state=one.state, reason=one.reason, since=one.since, until=one.until) for one in states
            ],
            notes=sorted((*_check_notes(self.checks[name]), *map(self._slow, self.slow[name])), key=lambda one: one.at),
            held_slot_s=parts.held,
            idle_slot_s=parts.idle,
            away_slot_s=parts.away,
        )

    def _span(self, since: datetime, until: datetime | None) -> Span:
        return since.timestamp(), (until or self.until).timestamp()

    def _may_read(self, dag_id: str | None) -> bool:
        return self.dags is None or dag_id in self.dags

    def _work(self, held: Iterable[HeldSlot]) -> Iterator[HostWork]:
        gangs: dict[int, list[HeldSlot]] = defaultdict(list)
        for one in held:
            gangs[one.allocation_id].append(one)
        for allocation_id, some in gangs.items():
            slots, since = sorted({one.slot for one in some}), min(one.since for one in some)
            ends = [one.until for one in some if one.until is not None]
            until = max(ends) if len(ends) == len(some) else None
            yield from self._of_gang(self.rows.work.get(allocation_id, ()), slots, since, until)

    def _of_gang(
        self, found: Sequence[HolderWork], slots: list[int], since: datetime, until: datetime | None
    ) -> Iterator[HostWork]:
        first = found[0] if found else None
        dag_id = None if first is None else first.gang_dag or first.trial_dag
        if first is not None and dag_id == CHECK_DAG:
            yield HostWork(kind=WorkKind.CHECK, slots=slots, since=since, until=until)
        elif first is None or not self._may_read(dag_id):
            yield HostWork(kind=WorkKind.OTHER, slots=slots, since=since, until=until)
        elif first.gang_dag is None:
            starts = [one.started_at for one in found if one.started_at is not None]
            yield _trial(found[-1], slots, since, min(starts, default=None), until)
        else:
            name = gang_text(first.gang_dag, first.gang_task or "")
            yield HostWork(kind=WorkKind.GANG, slots=slots, since=since, until=until, name=name)
            for one in found:
                if one.created_at is None or one.started_at is None or not self._may_read(one.trial_dag):
                    continue
                end = one.ended_at or until
                if one.created_at < self.until and (end is None or end > self.rows.since):
                    yield _trial(one, slots, max(since, one.created_at), one.started_at, end)

    def _slow(self, one: SlowRank) -> HostNote:
        is_shown = self._may_read(one.dag_id)
        text = straggler_text(one.rank, one.host, one.ratio, one.cost, one.text) if is_shown else "slow rank"
        return HostNote(
            kind=HostNoteKind.SLOW_RANK,
            at=one.since,
            until=one.until,
            text=text,
            is_slow=True,
            trial_id=one.trial_id if is_shown else None,
        )


def _by_host(rows: Iterable[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for one in rows:
        found[one.host].append(one)
    return found


def _trial(
    of: HolderWork, slots: list[int], since: datetime, started_at: datetime | None, until: datetime | None
) -> HostWork:
    return HostWork(
        kind=WorkKind.TRIAL,
        slots=slots,
        since=since,
        started_at=started_at,
        until=until,
        trial_id=of.trial_id,
        trial_number=of.trial_number,
        trial_state=of.trial_state,
        experiment_id=of.experiment_id,
        name=of.experiment or "",
    )


def _check_notes(results: Iterable[CheckResult]) -> Iterator[HostNote]:
    checks: dict[datetime, list[str | None]] = defaultdict(list)
    for one in results:
        checks[one.at].append(one.finding)
    for at, findings in checks.items():
        named = [one for one in findings if one]
        text = "; ".join(named) or f"{len(findings)} measurements without a finding"
        yield HostNote(kind=HostNoteKind.CHECK, at=at, until=at, text=text, is_slow=bool(named))
