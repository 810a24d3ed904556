"""Frames of events on their way into the store."""

from __future__ import annotations

import json
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.event_log import EventSource
from airflow_provider_dtrain.core.quotas import Quota, QuotaLimits, Usage
from airflow_provider_dtrain.engine.attempt.event_intake import AttemptQuota, Intake, read
from airflow_provider_dtrain.errors import HostProtocolError
from airflow_provider_dtrain.hosts.wire import Frame
from tests.support.log_world import no_secrets

RANK = EventSource(0, frozenset({0}))


def report(step: int, **metrics: float) -> bytes:
    body = json.dumps({"seq": step, "at": 1.0, "kind": "report", "step": step, "metrics": metrics}).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def frame(data: bytes, offset: int = 0, **more: Any) -> Frame:
    return Frame(**{"t": "data", "run": "r", "stream": "rank0.events", "offset": offset, "data": data, **more})


def quota(**limits: int) -> Quota:
    return Quota(QuotaLimits(**{"events": 0, "checkpoints": 0, "metric_rows": 0, "metric_names": 0, **limits}), Usage())


def test_refused_lines_side_by_side_are_one_gap_with_its_place() -> None:
    good, bad = report(1, loss=1.0), b"x\n"
    batch = read(frame(good + bad + bad + bad + good, offset=100), RANK, quota()).batch
    assert [one["kind"] for one in batch] == ["report", "gap", "report"]
    gap = batch[1]
    assert (gap["offset"], gap["bytes"], gap["lines"], gap["code"]) == (100 + len(good), 6, 3, "corrupt")


def test_events_beyond_a_limit_are_one_gap_that_names_the_option() -> None:
    line = report(1, loss=1.0)
    reading = read(frame(line * 9), RANK, quota(metric_rows=2))
    assert [one["kind"] for one in reading.batch] == ["report", "report", "gap"]
    assert (reading.batch[2]["lines"], reading.batch[2]["bytes"]) == (7, 7 * len(line))
    assert "[dtrain] attempt_metric_rows_limit (2 metric rows of one attempt)" in reading.problems[
        "attempt_metric_rows_limit"
    ]  # fmt: skip


def test_a_report_that_loses_names_is_stored_with_a_gap_of_no_bytes() -> None:
    batch = read(frame(report(1, a=1.0, b=2.0)), RANK, quota(metric_names=1)).batch
    assert batch[0]["metrics"] == {"a": 1.0}
    assert (batch[1]["kind"], batch[1]["bytes"], batch[1]["code"]) == ("gap", 0, "attempt_metric_names_limit")


class Memory:
    """A store that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.events = self

    def usage(self, attempt_id: int) -> Usage:
        return Usage()

    def commit(self, *place: Any, **how: Any) -> list[Any]:
        self.batches.append(place[-1])
        return list(place[-1])


def intake() -> tuple[Intake, Memory]:
    memory = Memory()

    async def db(method: Any, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    limits = dict.fromkeys(
        [f"attempt_{name}_limit" for name in ("events", "checkpoints", "metric_rows", "metric_names")], 0
    )
    log = SimpleNamespace(warning=lambda *_: None)
    rt: Any = SimpleNamespace(
        store=memory, db=db, redactor=no_secrets, attempt_id=1, watch=1, log=log, settings=SimpleNamespace(**limits)
    )  # fmt: skip
    return Intake(rt, "h", frozenset({0}), AttemptQuota(rt)), memory


async def test_a_frame_that_does_not_continue_its_stream_breaks_the_protocol_and_reaches_no_store() -> None:
    it, memory = intake()
    it.begin({"rank0.events": 10})
    for wrong in (frame(report(1), 0), frame(report(1), 11), frame(report(1), 10, epoch=1)):
        with pytest.raises(HostProtocolError, match=r"expected byte 10 of epoch 0"):
            await it.commit(wrong, 0, 0.0)
    assert memory.batches == []
    await it.commit(frame(report(1), 10), 0, 0.0)
    await it.commit(frame(report(2), 10 + len(report(1))), 0, 0.0)
    assert len(memory.batches) == 2


async def test_a_stream_begins_anew_once_at_a_time_and_from_where_it_was() -> None:
    it, _ = intake()
    it.begin({"rank0.events": 10})
    for wrong in (frame(b"", 9, epoch=1), frame(b"", 10, epoch=2), frame(b"", 10)):
        with pytest.raises(HostProtocolError):
            it.accept_restart(wrong)
    with pytest.raises(HostProtocolError, match="of which nothing was stored"):
        it.accept_restart(frame(b"", 0, epoch=1, stream="rank1.events"))
    it.accept_restart(frame(b"", 10, epoch=1))
    await it.commit(frame(report(1), 0, epoch=1), 1, 0.0)


async def test_a_gap_of_the_host_is_stored_as_one() -> None:
    it, memory = intake()
    it.begin({})
    await it.commit(frame(b"", t="gap", skip_bytes=5, reason="a line of more than 1048576 bytes"), 0, 0.0)
    ((mark,),) = memory.batches
    assert (mark["kind"], mark["offset"], mark["bytes"], mark["code"]) == ("gap", 0, 5, "missing")


def test_a_host_may_send_its_own_ranks_and_its_supervisor_alone() -> None:
    it, _ = intake()
    assert it.streams == {"supervisor.events", "rank0.events", "rank0.log"}


def told(seq: int, kind: str, **fields: Any) -> bytes:
    body = json.dumps({"seq": seq, "at": 1.0, "kind": kind, **fields}).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def of_supervisor(data: bytes, offset: int = 0, **more: Any) -> Frame:
    return frame(data, offset, stream="supervisor.events", **more)


async def commit_all(it: Intake, memory: Memory, *lines: bytes) -> list[str]:
    """Commit each line in a frame of its own, and return the kinds that were stored."""
    offset = 0
    for line in lines:
        await it.commit(of_supervisor(line, offset), 0, 0.0)
        offset += len(line)
    return [event["kind"] for batch in memory.batches for event in batch]


async def test_one_exit_of_each_rank_is_stored_and_further_ones_are_gaps() -> None:
    it, memory = intake()
    exits = [told(seq, "exit", rank=0, exit_code=0, log_tail="x" * 60_000) for seq in range(3, 20)]
    kinds = await commit_all(it, memory, told(1, "prepared"), told(2, "started", ranks=[]), *exits)
    assert kinds == ["prepared", "started", "exit", *["gap"] * 16]
    assert memory.batches[-1][0]["code"] == "repeated"
    assert memory.batches[-1][0]["reason"] == "one 'exit' more than a supervisor writes"
    memory.batches.clear()
    batch = read(of_supervisor(exits[0] + exits[1]), EventSource(None, frozenset({0})), quota()).batch
    assert [event["kind"] for event in batch] == ["exit", "gap"], "in one frame"


async def test_a_run_may_be_prepared_several_times_before_its_start() -> None:
    it, memory = intake()
    kinds = await commit_all(it, memory, *(told(seq, "prepared", port=5) for seq in range(1, 15)))
    assert kinds == ["prepared"] * 10 + ["gap"] * 4


async def test_events_that_a_rebooted_host_sends_again_are_no_gaps() -> None:
    it, memory = intake()
    start = told(1, "prepared") + told(2, "started", ranks=[])
    await it.commit(of_supervisor(start), 0, 0.0)
    it.accept_restart(of_supervisor(b"", len(start), epoch=1))
    await it.commit(of_supervisor(start + told(3, "ended", reason="lost"), epoch=1), 1, 0.0)
    assert [event["kind"] for event in memory.batches[-1]] == ["ended"]


async def test_an_event_whose_commit_failed_is_stored_when_it_comes_again() -> None:
    it, memory = intake()
    commit, ended = memory.events.commit, told(1, "ended", reason="completed")

    def refuse(*_: Any, **__: Any) -> list[Any]:
        raise HostProtocolError("h", "the store did not answer")

    memory.events.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(HostProtocolError):
        await it.commit(of_supervisor(ended), 0, 0.0)
    memory.events.commit = commit  # type: ignore[method-assign]
    assert await commit_all(it, memory, ended) == ["ended"]
