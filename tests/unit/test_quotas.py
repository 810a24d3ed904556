"""Limits of one attempt."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.core.quotas import BYTES_PER_EVENT, RESERVED_EVENTS, Quota, QuotaLimits, Usage, text_of

NONE = {"events": 0, "checkpoints": 0, "metric_rows": 0, "metric_names": 0}


def quota(usage: Usage | None = None, **limits: int) -> Quota:
    return Quota(QuotaLimits(**{**NONE, **limits}), usage or Usage())


def event(kind: str = "report", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "metrics": {"loss": 1.0}, **fields}


def admitted(it: Quota, count: int, *, kind: str = "report", size: int = 100) -> int:
    return sum(it.admit(event(kind), size).event is not None for _ in range(count))


def test_zero_is_no_limit() -> None:
    assert admitted(quota(), 5000) == 5000


def test_events_beyond_the_limit_are_left_out_and_what_was_stored_before_counts() -> None:
    assert admitted(quota(events=10), 50) == 10
    assert admitted(quota(Usage(events=8), events=10), 50) == 2
    assert quota(Usage(events=10), events=10).admit(event(), 1).option == "attempt_events_limit"


def test_long_events_count_by_their_bytes() -> None:
    assert admitted(quota(events=10), 50, size=5 * BYTES_PER_EVENT) == 2


def test_what_ends_a_trial_is_taken_beyond_the_limit_up_to_a_reserve() -> None:
    it = quota(events=10)
    assert admitted(it, 50) == 10
    assert admitted(it, 2 * RESERVED_EVENTS, kind="result") == RESERVED_EVENTS
    assert admitted(it, 1, kind="stopped") == 0


def test_rows_are_counted_for_training_and_validation_apart() -> None:
    it = quota(metric_rows=3)
    assert admitted(it, 9) == 3
    assert admitted(it, 9, kind="validation") == 3
    assert it.admit(event(), 1).option == "attempt_metric_rows_limit"
    assert it.admit(event("result"), 1).option == ""


def test_checkpoints_have_a_limit_of_their_own() -> None:
    it = quota(checkpoints=2)
    assert admitted(it, 9, kind="checkpoint") == 2
    assert it.admit(event("checkpoint"), 1).option == "attempt_checkpoints_limit"


def test_new_names_are_left_out_and_known_ones_stay() -> None:
    it = quota(Usage(names={"a"}), metric_names=2)
    first = it.admit(event(metrics={"a": 1.0, "b": 2.0, "c": 3.0}), 1)
    assert (first.event or {})["metrics"] == {"a": 1.0, "b": 2.0}
    assert first.option == "attempt_metric_names_limit"
    assert it.admit(event(metrics={"b": 1.0}), 1).option == ""
    assert (it.admit(event(metrics={"d": 1.0}), 1).event or {})["metrics"] == {}


def test_the_words_name_the_option_and_its_value() -> None:
    words = text_of("attempt_metric_rows_limit", QuotaLimits(**{**NONE, "metric_rows": 200_000}))
    assert words == (
        "[dtrain] attempt_metric_rows_limit (200,000 metric rows of one attempt) is reached: later ones are left out"
    )


def test_builtin_metrics_have_a_limit_of_their_own_and_use_no_names():
    quota = Quota(QuotaLimits(events=0, checkpoints=0, metric_rows=2, metric_names=1), Usage())
    report = {"kind": "report", "metrics": {"loss": 1}}
    builtin = {"kind": "builtin", "metrics": {"gradient_norm": 1, "samples_per_second": 2}}
    verdicts = [quota.admit(event, 10) for event in (builtin, builtin, builtin, report)]
    assert [verdict.option for verdict in verdicts] == ["", "", "attempt_metric_rows_limit", ""]
    assert verdicts[0].event == builtin
