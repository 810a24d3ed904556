"""Rank 0's log between the event loop, the sender's thread, Airflow's socket and the store. A real socket."""

from __future__ import annotations

import asyncio
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.logs import rank_log, sender
from airflow_provider_dtrain.engine.logs.task_log import FILES, TaskLog
from testbed.turns import Turns
from tests.support.log_world import DEADLINE_S, NO_SECRETS, World, until


@pytest.fixture
def world(log_world: World) -> World:
    return log_world


async def test_what_is_committed_stays_behind_what_was_handed_over_until_airflow_has_read_it(world: World) -> None:
    log = world.rank_log()
    log.take(0, b"one\ntwo\n", NO_SECRETS)
    await until(lambda: log.buffer.position == 8)
    await log.commit(at_once=True)
    assert log.written == 0
    assert world.store.positions in ([], [0])
    world.reader.go_on()
    await until(lambda: log.written == 8)
    await log.commit(at_once=True)
    assert world.store.positions[-1] == 8
    assert world.reader.records[0].splitlines()[1:] == ["[rank 0] one", "[rank 0] two"]


async def test_nothing_is_confirmed_before_the_parent_has_answered(world: World) -> None:
    answered, asked = world.reader.channel.confirm, list[bool]()

    def refuse() -> bool:
        asked.append(True)
        return False

    world.reader.channel.confirm = refuse  # type: ignore[method-assign]
    world.reader.go_on()
    log = world.rank_log()
    log.take(0, b"one\n", NO_SECRETS)
    # The second time it asks, the first answer has been handled.
    await until(lambda: len(asked) == 2 or log.written)
    assert (log.written, len(world.reader.records)) == (0, 1)
    world.reader.channel.confirm = answered  # type: ignore[method-assign]
    await until(lambda: log.written == 4)


async def test_a_parent_that_reads_nothing_blocks_no_logger_and_costs_no_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_log, "DELIVER_MOST_S", 0.3)
    log, block = world.rank_log(), b"0123456789\n" * 1000
    with Turns() as turns:
        for number in range(200):
            log.take(number * len(block), block, NO_SECRETS)
            await asyncio.sleep(0)
    assert turns.longest_cpu_s < 0.05
    assert len(log.buffer._pieces) <= 3
    assert log.buffer._waiting <= 1 << 20
    world.reader.go_on()
    assert await log.close()
    lines = "\n".join(world.reader.records).splitlines()
    marks = [re.search(r"bytes (\d+) to (\d+)", line) for line in lines]
    missing = sum(int(mark[2]) - int(mark[1]) for mark in marks if mark)
    there = 11 * sum("0123456789" in line for line in lines)
    assert there + missing == 200 * len(block)
    assert log.written == 200 * len(block)


async def test_the_end_waits_a_bounded_time_and_marks_what_was_not_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_log, "DELIVER_MOST_S", 0.2)
    world.log = TaskLog(world.reader.logger, 10_000)
    world.reader.go_on()
    log = world.rank_log()
    log.take(0, b"0123456789\n" * 50_000, NO_SECRETS)
    begun = time.monotonic()
    assert await log.close()
    assert time.monotonic() - begun < DEADLINE_S / 2
    assert "left out: the trial has ended" in world.reader.records[-1]
    assert f"--to {11 * 50_000} ---" in world.reader.records[-1]


async def test_a_stopped_parent_holds_the_end_up_for_a_bounded_time_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_log, "DELIVER_MOST_S", 0.2)
    monkeypatch.setattr(rank_log, "CONFIRM_MOST_S", 0.2)
    log = world.rank_log()
    log.take(0, b"one\n", NO_SECRETS)
    begun = time.monotonic()
    assert not await log.close(), "the next follower sends it again"
    assert time.monotonic() - begun < DEADLINE_S / 2
    assert log.written == 0


async def test_a_mark_without_an_end_counts_as_written_only_once_airflow_has_confirmed_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_log, "CONFIRM_MOST_S", 0.2)
    log = world.rank_log(begin=4)
    log.skip(4, None, "the host does not answer")
    assert not await log.close()
    world.reader.go_on()
    log = world.rank_log(begin=4)
    log.skip(4, None, "the host does not answer")
    assert await log.close()
    assert "everything from byte 4 on" in world.reader.records[-1]


async def test_a_thousand_lines_a_second_travel_in_few_records(world: World) -> None:
    world.reader.go_on()
    log, offset = world.rank_log(), 0
    begun = time.monotonic()
    for number in range(500):
        line = b"%d\n" % number
        log.take(offset, line, NO_SECRETS)
        offset += len(line)
        await asyncio.sleep(0.001)
    assert await log.close()
    took_s = time.monotonic() - begun
    assert len(world.reader.records) <= took_s / sender.RECORD_EVERY_S + 3
    lines = "\n".join(world.reader.records).splitlines()[1:]
    assert lines == [f"[rank 0] {number}" for number in range(500)]


async def test_full_records_follow_each_other_at_the_rate_of_the_trial(world: World) -> None:
    world.reader.go_on()
    log, begun = world.rank_log(), time.monotonic()
    log.take(0, b"0123456789\n" * 90_000, NO_SECRETS)
    await until(lambda: not log.buffer.has_record)
    # Fifteen full records, for which small ones would take RECORD_EVERY_S each.
    assert time.monotonic() - begun < 8 * sender.RECORD_EVERY_S
    assert await log.close()
    assert len("\n".join(world.reader.records).splitlines()) == 1 + 90_000


async def test_a_rate_below_full_records_is_kept(world: World) -> None:
    world.reader.go_on()
    world.log = TaskLog(world.reader.logger, 40_000)
    log, begun = world.rank_log(), time.monotonic()
    log.take(0, b"0123456789\n" * 6_000, NO_SECRETS)
    await until(lambda: not log.buffer.has_record)
    # The last of four records does not wait for its own bytes.
    assert time.monotonic() - begun > 46_000 / 40_000


@pytest.mark.parametrize("needs_s", [0.001, 0.02, 0.033, 0.1, 0.3, 3.0])
def test_the_time_of_the_parent_for_a_record_is_measured_closely_with_few_polls(
    monkeypatch: pytest.MonkeyPatch, needs_s: float
) -> None:
    now, polls = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now, polls
        now, polls = now + seconds, polls + 1

    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    channel: Any = SimpleNamespace(is_read=lambda: now >= needs_s)
    sender.LogSender(20.0, channel)._until_read(channel)
    assert needs_s <= now <= 1.125 * needs_s + sender.READ_POLL_S
    assert polls <= 100


async def test_records_per_second_are_bounded_for_all_trials_of_a_process(world: World) -> None:
    world.reader.go_on()
    world.sender.records_per_s = 10.0
    logs = [world.rank_log(trial_id=number) for number in range(8)]
    begun = time.monotonic()
    for log in logs:
        log.take(0, b"one\n", NO_SECRETS)
    await until(lambda: len(world.reader.records) == len(logs))
    assert time.monotonic() - begun >= (len(logs) - 1) / 10.0
    assert {record.split()[4] for record in world.reader.records} == {f"{number}," for number in range(8)}


async def test_what_comes_again_after_a_reboot_is_shown_once(world: World) -> None:
    world.reader.go_on()
    log = world.rank_log()
    log.take(0, b"one\ntwo\n", NO_SECRETS)
    log.restart(is_known=True)
    log.take(0, b"one\n", NO_SECRETS)
    assert log.received == 4
    log.take(4, b"two\nthree\n", NO_SECRETS)
    assert await log.close()
    assert "\n".join(world.reader.records).splitlines()[1:] == ["[rank 0] one", "[rank 0] two", "[rank 0] three"]


async def test_a_file_that_airflow_has_emptied_is_known_by_what_it_showed(world: World) -> None:
    log, file = world.rank_log(), ("ti", 1)
    FILES.note(file, log.shown)
    assert FILES.reopened(file) == [], "nothing was shown yet"
    FILES.note(file, log.shown)
    log.take(0, b"one\n", NO_SECRETS)
    await until(lambda: log.buffer.position == 4)
    await until(lambda: log.shown.end == 4)
    assert [(part.begin, part.end) for part in FILES.reopened(file)] == [(0, 4)]
    assert FILES.reopened(file) == []
