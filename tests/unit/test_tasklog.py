"""Lines of the engine in the task log: printable, and at most one record a second for lines about events."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import runner as attempt
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.copies import checkpoint_cleanup
from airflow_provider_dtrain.engine.logs import task_log
from airflow_provider_dtrain.engine.logs.task_log import MOST_EVENT_LINES, TaskLog
from tests.support.log_world import until


class Records:
    """A logger that keeps its records."""

    def __init__(self) -> None:
        #: (level, text)
        self.records: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda text, *args: self.records.append((level, text % args))


@pytest.fixture
def logger() -> Records:
    return Records()


def test_text_of_a_host_neither_looks_like_a_record_nor_reaches_the_terminal(logger: Records) -> None:
    log = TaskLog(logger, None)
    log.error("Last lines of rank %s:\n%s", 1, "\x1b[31mred\x1b[0m \x1b[2Jcleared\rFAKE LINE\r\n\u202eend\tof it")
    assert logger.records == [
        ("error", "Last lines of rank 1:\n  red \\x1b[2Jcleared\n  FAKE LINE\n  \\u202eend\tof it")
    ]


def test_a_record_has_a_bounded_length(logger: Records) -> None:
    TaskLog(logger, None).warning("%s", "x" * 10**6)
    ((_, text),) = logger.records
    assert len(text) < 140_000
    assert text.endswith("characters more)")


def validations(count: int) -> list[dict[str, Any]]:
    return [{"kind": "validation", "step": step, "metrics": {"loss": 0.5}} for step in range(count)]


async def test_thousands_of_validations_are_a_few_records_that_count_the_rest(
    logger: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_log, "EVENTS_EVERY_S", 0.05)
    log = TaskLog(logger, None)
    runner = AttemptRunner(SimpleNamespace(log=log))  # type: ignore[arg-type]
    for event in validations(8500):
        runner._on_event(None, None, None, "h", event)  # type: ignore[arg-type]
    assert len(logger.records) < 100
    await until(lambda: not log._lines)
    shown = [line for _, text in logger.records for line in text.split("\n")]
    left_out = sum(int(line.split()[1]) for line in shown if line.startswith("and "))
    assert left_out + sum(line.startswith("Validation at step") for line in shown) == 8500
    assert max(text.count("\n") for _, text in logger.records) == MOST_EVENT_LINES


def test_a_warning_of_a_supervisor_is_one_of_the_task_log(logger: Records) -> None:
    runner = AttemptRunner(SimpleNamespace(log=TaskLog(logger, None)))  # type: ignore[arg-type]
    runner._on_event(None, None, None, "h", {"kind": "warning", "text": "rank 1 is on a wrong device"})  # type: ignore[arg-type]
    assert logger.records == [("warning", "Host 'h': rank 1 is on a wrong device")]


async def test_lines_about_events_come_before_the_lines_that_follow(logger: Records) -> None:
    log = TaskLog(logger, None)
    for number in range(3):
        log.event("event %d", number, is_warning=number == 2)
    log.info("the end")
    assert logger.records == [("info", "event 0"), ("warning", "event 1\nevent 2"), ("info", "the end")]
    await asyncio.sleep(0)


def test_a_validation_shows_a_bounded_number_of_metrics() -> None:
    words = attempt._metrics_text({f"m{number}": 1.0 for number in range(1000)})
    assert words.count("=") == attempt.MOST_METRICS
    assert words.endswith(" and 950 more")


async def test_checkpoints_that_stay_are_one_line_whatever_the_host_answers(
    logger: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: Any, **__: Any) -> dict[str, Any]:
        return {"removed": [], "kept": {f"step-{number}": "busy" for number in range(100_000)}}

    async def link(host: str) -> None:
        return None

    monkeypatch.setattr(checkpoint_cleanup, "answer", answer)
    found: Any = [SimpleNamespace(place=SimpleNamespace(name=f"step-{number}")) for number in range(30)]
    rt: Any = SimpleNamespace(link=link, log=TaskLog(logger, None))
    assert await checkpoint_cleanup._from_host(rt, checkpoint_cleanup._Folder("a", None, "/r", "t"), found) == []
    ((_, text),) = logger.records
    assert text.startswith("Checkpoints in t on host 'a' stay: step-0 (busy), ")
    assert text.endswith("step-9 (busy) and 20 more")


async def test_each_line_begins_with_its_trial_if_several_trials_share_the_task_log(logger: Records) -> None:
    log = TaskLog(logger, None, section=7)
    log.warning("Last lines:\n%s", "a\nb")
    log.rank_lines(["[rank 0] epoch 1", "[rank 0] epoch 2"])
    log._not_before = float("inf")
    for number in range(MOST_EVENT_LINES + 1):
        log.event("Validation %d", number)
    log.flush()
    lines = [line for _, text in logger.records for line in text.split("\n")]
    assert lines[:5] == [
        "[trial 7] Last lines:", "[trial 7]   a", "[trial 7]   b", "[trial 7] [rank 0] epoch 1",
        "[trial 7] [rank 0] epoch 2",
    ]  # fmt: skip
    assert lines[-1] == "[trial 7] and 1 more lines like these"
    assert all(line.startswith("[trial 7] ") for line in lines)
