"""Delivery of logs left by earlier followers, and the marks for missing parts."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from airflow_provider_dtrain.engine.logs import trial_logs
from airflow_provider_dtrain.engine.logs.buffer import LogPlace, Shown
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.logs.trial_logs import REPLAY_BYTES, REST_BYTES, TrialLogs
from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.store.records.trials import OpenLog
from tests.support.log_world import NO_SECRETS, World, until


@pytest.fixture
def world(log_world: World) -> World:
    return log_world


def lines_of(world: World) -> list[str]:
    return "\n".join(world.reader.records).splitlines()


async def test_the_rest_of_an_ended_attempt_is_read_from_its_host(world: World) -> None:
    world.reader.go_on()
    world.store.open = [OpenLog(attempt_id=1, host="a", position=4)]
    world.logs_of["run-1"] = b"one\ntwo\nthree"
    await TrialLogs(world).finish(world.store.attempts.get(1))  # type: ignore[arg-type]
    assert lines_of(world)[1:] == ["[rank 0] two", "[rank 0] three"]
    assert (world.store.closed, world.store.positions[-1]) == ([1], 13)


async def test_of_a_long_rest_the_end_is_shown_and_the_bytes_before_it_are_named(world: World) -> None:
    world.reader.go_on()
    world.store.open = [OpenLog(attempt_id=2, host="a", position=100)]
    world.logs_of["run-2"] = b"0123456789\n" * 100_000
    await TrialLogs(world).finish(world.store.attempts.get(2))  # type: ignore[arg-type]
    lines, start = lines_of(world), 1_100_000 - REST_BYTES
    assert f"attempt 2: bytes 100 to {start} ({start - 100}) left out" in lines[0]
    assert f"trials logs 7 --attempt 2 --from 100 --to {start} ---" in lines[0]
    assert abs(len(lines) - REST_BYTES // 11) <= 3
    assert world.store.closed == [2]


async def test_what_log_limit_has_freed_of_a_rest_is_named(world: World) -> None:
    world.reader.go_on()
    world.store.open = [OpenLog(attempt_id=1, host="a", position=4)]
    world.logs_of["run-1"] = b"one\ntwo\n" + bytes(100) + b"last\n"
    world.freed["run-1"] = (8, 108)
    await TrialLogs(world).finish(world.store.attempts.get(1))  # type: ignore[arg-type]
    lines = lines_of(world)
    assert (lines[1], lines[3:]) == ("[rank 0] two", ["[rank 0] last"])
    assert "bytes 8 to 108 (100) left out: beyond log_limit" in lines[2]
    assert (world.store.closed, world.store.positions[-1]) == ([1], 113)


async def test_a_host_that_does_not_answer_leaves_a_mark_from_the_last_known_byte_on(world: World) -> None:
    world.reader.go_on()
    world.store.open = [OpenLog(attempt_id=1, host="a", position=4)]
    world.logs_of["run-1"] = HostUnreachableError("a", "Host 'a' does not answer.")
    await TrialLogs(world).finish(world.store.attempts.get(1))  # type: ignore[arg-type]
    assert lines_of(world) == [
        "[rank 0] --- trial 7, attempt 1: everything from byte 4 on left out: Host 'a' does not answer. "
        "Read: airflow dtrain trials logs 7 --attempt 1 --from 4 ---"
    ]
    assert world.store.closed == [1]


@pytest.mark.parametrize("answer", [{"size": 99, "offset": 2**62}, {"size": 99, "offset": 0}, {"size": 2**62}])
async def test_a_log_whose_host_sends_nonsense_ends_with_a_mark(world: World, answer: dict[str, Any]) -> None:
    world.reader.go_on()
    world.store.open = [OpenLog(attempt_id=1, host="a", position=4)]

    async def call(*_: Any, offset: int, length: int, **__: Any) -> dict[str, Any]:
        return {"offset": offset, "data": b"x" * length * 2, **(answer if length else {"size": 99})}

    world.call = call  # type: ignore[method-assign]
    await TrialLogs(world).finish(world.store.attempts.get(1))  # type: ignore[arg-type]
    assert "everything from byte 4 on left out: Host 'a' broke the protocol" in lines_of(world)[0]
    assert (world.store.closed, world.store.positions[-1]) == ([1], 4)


async def test_what_airflow_has_not_written_stays_open_for_the_next_follower(world: World, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.engine.logs.rank_log.DELIVER_MOST_S", 0.1)
    monkeypatch.setattr("airflow_provider_dtrain.engine.logs.rank_log.CONFIRM_MOST_S", 0.1)
    world.store.open = [OpenLog(attempt_id=1, host="a", position=4)]
    world.logs_of["run-1"] = b"one\ntwo\n"
    logs = TrialLogs(world)  # type: ignore[arg-type]
    await logs.finish(world.store.attempts.get(1))
    assert (world.store.closed, world.store.positions) == ([], [])
    (mark,) = logs.unconfirmed
    assert mark.startswith(
        "[rank 0] --- trial 7, attempt 1: everything from byte 4 on left out: Airflow has not confirmed"
    )
    assert mark.endswith("Read: airflow dtrain trials logs 7 --attempt 1 --from 4 ---")


async def test_what_airflow_has_confirmed_of_a_log_is_not_in_the_mark_for_the_rest(world: World, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.engine.logs.rank_log.DELIVER_MOST_S", 0.1)
    monkeypatch.setattr("airflow_provider_dtrain.engine.logs.rank_log.CONFIRM_MOST_S", 0.1)
    world.reader.go_on()
    logs, view = TrialLogs(world), world.store.attempts.get(1)  # type: ignore[arg-type]
    log = logs.follow(view, "a", 0)
    log.take(0, b"one\n", NO_SECRETS)
    await until(lambda: log.written == 4)
    world.reader.stop()
    log.take(4, b"two\n", NO_SECRETS)
    log.is_complete = True
    logs.end(view)
    await logs.finish(view)
    assert ["everything from byte 4 on" in mark for mark in logs.unconfirmed] == [True]
    assert world.store.closed == []


async def test_a_log_that_airflow_has_confirmed_needs_no_mark(world: World) -> None:
    world.reader.go_on()
    logs, view = TrialLogs(world), world.store.attempts.get(1)  # type: ignore[arg-type]
    log = logs.follow(view, "a", 0)
    log.take(0, b"one\n", NO_SECRETS)
    log.is_complete = True
    logs.end(view)
    await logs.finish(view)
    assert (logs.unconfirmed, world.store.closed) == ([], [1])


async def test_bytes_that_arrive_while_a_log_is_closed_are_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reader.go_on()
    logs, view = TrialLogs(world), world.store.attempts.get(1)  # type: ignore[arg-type]
    log = logs.follow(view, "a", 0)
    log.take(0, b"one\n", NO_SECRETS)
    world.logs_of["run-1"] = b"one\nlast words\n"
    close = log.close

    async def closed(**more: Any) -> bool:
        found = await close(**more)
        # The stream of the host ends at this moment.
        log.take(4, b"last words\n", NO_SECRETS)
        log.is_complete = True
        return found

    monkeypatch.setattr(log, "close", closed)
    logs.end(view)
    await logs.finish(view)
    assert [line for line in lines_of(world) if "---" not in line] == ["[rank 0] one", "[rank 0] last words"]
    assert (logs.unconfirmed, world.store.closed) == ([], [1])


async def test_the_log_of_a_trial_that_was_killed_while_it_was_followed_is_delivered(world: World) -> None:
    world.reader.go_on()
    logs, view = TrialLogs(world), world.store.attempts.get(1)  # type: ignore[arg-type]
    logs.follow(view, "a", 0).take(0, b"one\n", NO_SECRETS)
    world.logs_of["run-1"] = b"one\nlast words\n"
    await logs.finish(view)
    assert [line for line in lines_of(world) if "---" not in line] == ["[rank 0] one", "[rank 0] last words"]
    assert (logs.unconfirmed, world.store.closed) == ([], [1])


@pytest.mark.parametrize("is_external", [False, True])
async def test_lines_that_cannot_be_read_later_are_handed_over_even_if_airflow_is_slow(
    world: World, monkeypatch: pytest.MonkeyPatch, is_external: bool
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.engine.logs.rank_log.DELIVER_MOST_S", 0.1)
    world.reader.go_on()
    world.store.is_external = is_external
    logs, view = TrialLogs(world), world.store.attempts.get(1)  # type: ignore[arg-type]
    log = logs.follow(view, "a", 0)
    log.is_complete = True
    log._due_at = time.monotonic() + 0.6
    log.take(0, b"one\n", NO_SECRETS)
    await logs.receive(view)
    found = lines_of(world)
    assert found[-1] == "[rank 0] one" if is_external else "the trial has ended" in found[-1]
    assert world.store.closed == [1]


async def test_the_end_of_a_trial_waits_for_its_log_for_seconds_only(world: World, monkeypatch) -> None:
    monkeypatch.setattr(trial_logs, "FINISH_MOST_S", 0.2)
    logs, view = TrialLogs(world), world.store.attempts.get(2)  # type: ignore[arg-type]
    log = logs.follow(view, "a", 0)
    log.take(0, b"one\n", NO_SECRETS)
    world.store.open = [OpenLog(attempt_id=1, host="a", position=7)]
    world.logs_of["run-1"], world.logs_of["run-2"] = b"1234567more\n", b""
    logs.resume_earlier(view)
    await until(lambda: 1 in logs._open)
    begun = time.monotonic()
    await logs.finish(view)
    assert time.monotonic() - begun < 3.0
    assert sorted(re.findall(r"attempt (\d): everything from byte (\d)", "".join(logs.unconfirmed))) == [
        ("1", "7"), ("2", "0"),
    ]  # fmt: skip
    log.take(4, b"too late\n", NO_SECRETS)
    later = world.rank_log(trial_id=8)
    later.take(0, b"another trial\n", NO_SECRETS)
    world.reader.go_on()
    await until(lambda: later.written == 14)
    assert "too late" not in "".join(world.reader.records), "nothing more of it is sent"


async def test_recovery_takes_no_log_and_commits_none(world: World) -> None:
    world.log = TaskLog(world.reader.logger, None)
    logs = TrialLogs(world)  # type: ignore[arg-type]
    assert not logs.wanted
    world.store.open = [OpenLog(attempt_id=1, host="a", position=4)]
    logs.resume_earlier(world.store.attempts.get(1))
    await logs.finish(world.store.attempts.get(1))
    assert (world.store.closed, world.store.positions, world.reader.records) == ([], [], [])


async def test_what_airflow_has_emptied_is_shown_again_and_committed_again(world: World) -> None:
    world.reader.go_on()
    logs = TrialLogs(world)  # type: ignore[arg-type]
    logs.repeat([Shown(1, LogPlace(7, 1), 0, 500)])
    view = world.store.attempts.get(1)
    assert logs.begin_of(view, 800) == 0
    log = logs.follow(view, "a", 800)
    await log.commit(at_once=True)
    assert world.store.positions == [0], "a kill during the replay loses nothing"
    assert logs.to_repeat == []


async def test_of_a_long_file_that_airflow_has_emptied_the_end_is_shown_again(world: World) -> None:
    logs, end = TrialLogs(world), 3 * REPLAY_BYTES  # type: ignore[arg-type]
    logs.repeat([Shown(1, LogPlace(7, 1), 10, end)])
    log = logs.follow(world.store.attempts.get(1), "a", end)
    assert log.received == end - REPLAY_BYTES


async def test_an_emptied_part_of_an_earlier_attempt_is_kept_for_whoever_shows_it(world: World) -> None:
    logs = TrialLogs(world)  # type: ignore[arg-type]
    part = Shown(1, LogPlace(7, 1), 0, 500)
    logs.repeat([part])
    logs.follow(world.store.attempts.get(2), "a", 0)
    assert logs.to_repeat == [part]


async def _first(world: World) -> str:
    await until(lambda: world.reader.records)
    return world.reader.records[0]
