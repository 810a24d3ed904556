"""Gaps and limits in the output of ``trials describe``."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_dtrain.core.gaps import limits_hit
from airflow_provider_dtrain.store.queries.trials import gaps_of
from airflow_provider_dtrain.store.records.trials import EventView
from airflow_provider_dtrain.terminal.output import show
from airflow_provider_dtrain.terminal.trials import gap_rows


class Store:
    """A store with these gaps."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies, self.events = bodies, self

    def of_attempt(self, attempt_id: int, *, kinds: Any) -> list[EventView]:
        assert tuple(kinds) == ("gap",)
        at = datetime.now(UTC)
        return [
            EventView(host="h", stream="rank0.events", seq=None, at=at, kind="gap", body=body) for body in self.bodies
        ]


LIMIT = {"offset": 9, "bytes": 50, "lines": 1234, "code": "attempt_events_limit", "reason": "the limit is reached"}
CORRUPT = {"offset": 0, "bytes": 9, "lines": 1, "code": "corrupt", "reason": "a \x1b[31m checksum"}


def test_limits_are_told_with_how_much_was_left_out() -> None:
    store: Any = Store(CORRUPT, LIMIT)
    assert limits_hit(gaps_of(store, 1)) == ["the limit is reached (1,234 so far, rank0.events of host 'h')"]


def test_gaps_are_rows_with_place_and_reason_free_of_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    store: Any = Store(CORRUPT)
    (row,) = gap_rows(gaps_of(store, 1))
    assert (row["host"], row["stream"], row["offset"], row["lines"]) == ("h", "rank0.events", 0, 1)
    show(Namespace(output="table"), [row])
    assert "a \\x1b[31m checksum" in capsys.readouterr().out


def test_a_file_that_began_anew_is_a_gap_without_bytes() -> None:
    store: Any = Store({"kind": "gap", "epoch": 1, "read_bytes": 300, "reason": "the file has 40 bytes"})
    (row,) = gaps_of(store, 1)
    assert (row.code, row.bytes) == ("anew", 0)
    assert limits_hit([row]) == []
