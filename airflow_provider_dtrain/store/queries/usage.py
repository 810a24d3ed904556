"""Use of slots by day: by pool, by user or by DAG."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.core.slot_hours import SlotUse, days_until, slot_hours
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.usage import Usage, UsageBy, UsageRow

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.pages import Dags
    from airflow_provider_dtrain.store.records.usage import HeldSlots
    from airflow_provider_dtrain.store.store import Store

#: Most days of a report, and most names in it.
DAYS_MOST: Final = 92
ROWS_MOST: Final = 50


def usage_of(store: Store, rights: Rights, *, by: UsageBy, days: int, pool: str | None = None) -> Usage:
    """Return the slot hours of the last days.

    :param days: 1 to 92, today included
    :param pool: only this pool; None = all
    :raises UserError: the number of days is out of range
    """
    if not 1 <= days <= DAYS_MOST:
        raise UserError(f"days must be a number from 1 to {DAYS_MOST}, got {days}.")
    now = store.db.now()
    dates = days_until(now, days)
    since = datetime(dates[0].year, dates[0].month, dates[0].day, tzinfo=UTC)
    held = store.usage.held(since, pool)
    found = slot_hours(_uses(held, rights.readable(store), by), days)
    named = sorted((name for name in found if name), key=lambda name: (-sum(found[name]), name))
    shown, rest = named[:ROWS_MOST], [*named[ROWS_MOST:], *([""] if "" in found else [])]
    rows = [UsageRow(name=name, slot_hours=found[name], total=sum(found[name])) for name in shown]
    if rest:
        sums = [sum(found[name][index] for name in rest) for index in range(days)]
        rows.append(UsageRow(name="", slot_hours=sums, total=sum(sums)))
    return Usage(by=by, days=[day.isoformat() for day in dates], rows=rows, more=len(named) - len(shown))


def _uses(held: list[HeldSlots], dags: Dags, by: UsageBy) -> Iterator[SlotUse]:
    for one in held:
        is_hidden = dags is not None and one.dag_id not in dags
        name: str | None = one.pool
        if by is not UsageBy.POOL:
            name = None if is_hidden else one.dag_id if by is UsageBy.DAG else one.user
        yield SlotUse(
            name=name or "", first=one.first, last=one.last, slots=one.slots, since_s=one.since_s, until_s=one.until_s
        )
