"""Events of an attempt that are not in the store, and the limits that it has hit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import plain, size

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import EventView
    from airflow_provider_dtrain.store.store import Store


def gaps_of(store: Store, attempt_id: int) -> list[dict[str, Any]]:
    """Return a row for every gap in the events of an attempt's current run, oldest first."""
    return [_row(event) for event in store.events.of_attempt(attempt_id, kinds=("gap",))]


def limits_hit(gaps: list[dict[str, Any]]) -> list[str]:
    """Return a text for each limit that the attempt has hit, with what was left out."""
    return [
        f"{row['reason']} ({row['lines']:,} so far, {row['stream']} of host '{row['host']}')"
        for row in gaps
        if row["code"].endswith("_limit")
    ]


def gap_table(gaps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as a table for a terminal."""
    names = ("host", "stream", "offset", "lines", "reason")
    return [{**{name: row[name] for name in names}, "size": size(row["bytes"])} for row in gaps]


def _row(event: EventView) -> dict[str, Any]:
    body = event.body
    # A file that began anew misses no bytes of its own.
    numbers = {name: body.get(name) or 0 for name in ("offset", "bytes", "lines")}
    return {
        "host": event.host,
        "stream": event.stream,
        **numbers,
        "code": str(body.get("code") or "anew"),
        "reason": plain(str(body.get("reason") or "")),
        "at": event.at,
    }
