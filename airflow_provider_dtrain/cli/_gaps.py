"""Events of an attempt that are not in the store, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import plain, size
from airflow_provider_dtrain.core.gaps import Gap, gap_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store


def gaps_of(store: Store, attempt_id: int) -> list[Gap]:
    """Return every gap in the events of an attempt's current run, oldest first."""
    found = store.events.of_attempt(attempt_id, kinds=("gap",))
    return [gap_of(event.host, event.stream, event.body, event.at) for event in found]


def gap_table(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    """Return the gaps as rows for a terminal."""
    return [
        {
            "host": gap.host,
            "stream": gap.stream,
            "offset": gap.offset,
            "lines": gap.lines,
            "reason": plain(gap.reason),
            "size": size(gap.bytes),
        }
        for gap in gaps
    ]
