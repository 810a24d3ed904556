"""The table of injected failures and named causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.faults.cause_table import read, table


def result(kind: str, variation: int, cause_kind: str, **changes: Any) -> dict[str, Any]:
    found = {"kind": kind, "variation": variation, "cause_kind": cause_kind, "problem": "", "is_blamed_wrongly": False}
    return {**found, "took_s": 2.4, "load": 3.2, "at": "2026-01-31T10:00:00+00:00", **changes}


def test_each_kind_has_a_line_with_the_causes_that_were_named_and_the_sums_are_below() -> None:
    results = [
        result("killed", 0, "killed"),
        result("killed", 1, "killed", load=9.6, took_s=31.0),
        result("killed", 2, "connection", problem="wrong rank", is_blamed_wrongly=True, at="2026-02-01T10:00:00+00:00"),
        result("hang", 0, "hang", problem="without the place"),
    ]
    assert table(results).splitlines() == [
        "| injected | cases | named as | right | wrong rank or host | longest, s |",
        "|---|---|---|---|---|---|",
        "| killed | 3 | `killed` 2, `connection` 1 | 2 | 1 | 31 |",
        "| hang | 1 | `hang` 1 | 0 | 0 | 2 |",
        "| all | 4 | | 2 | 1 | 31 |",
        "",
        "2026-01-31 to 2026-02-01, load 3 to 10.",
    ]


def test_the_latest_result_of_a_case_counts(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert read(file) == {}
    results = [result("hang", 1, "connection"), result("killed", 1, "killed"), result("hang", 1, "hang")]
    file.write_text("".join(json.dumps(one) + "\n" for one in results))
    assert {case: one["cause_kind"] for case, one in read(file).items()} == {
        ("hang", 1): "hang",
        ("killed", 1): "killed",
    }
