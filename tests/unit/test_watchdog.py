"""Detection of the ranks that block a gang, from reports alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.watchdog import GangVerdict, RankReport, judge
from airflow_provider_dtrain.engine.attempt import watchdog
from airflow_provider_dtrain.engine.attempt.watchdog import GangWatchdog, text_of
from airflow_provider_dtrain.errors import ProcessStuckError, RankHangsError
from airflow_provider_dtrain.hosts.wire import ProgressFrame, WireError


def rank(number: int, **changes: Any) -> RankReport:
    """A rank that waits in the gradient exchange of step 120, as in a healthy gang a moment ago."""
    defaults: dict[str, Any] = {
        "rank": number, "host": f"gpu-{number // 2}", "pid": 1000 + number, "silent_s": 0.5, "still_s": 0.4,
        "phase": "exchange", "what": "the gradient exchange", "steps": 120, "started": True,
    }  # fmt: skip
    return RankReport(**{**defaults, **changes})


IN_LOOP = {"phase": "compute", "what": "its training loop"}


def test_the_collective_that_a_rank_never_entered_is_named_with_the_ranks_that_wait_in_it() -> None:
    waiting = [rank(i, still_s=12.0, idle_s=12.0, collectives=812) for i in (0, 1, 3)]
    absent = rank(2, still_s=12.0, idle_s=12.0, collectives=811, **IN_LOOP)
    verdict = judge([*waiting, absent])
    (behind,) = verdict.behind
    assert verdict.waits_text(behind, 100.0) == (
        "ranks 0, 1 and 3 wait in the gradient exchange, collective number 812, which it never entered, "
        "since 00:01:28 UTC"
    )
    assert GangVerdict().waits_text(behind, 100.0) == ""


def test_a_rank_that_rests_in_a_collective_of_the_program_waits_for_one_that_has_not_entered_it() -> None:
    ahead = rank(0, still_s=12.0, idle_s=12.0, collectives=812, **IN_LOOP)
    absent = rank(1, still_s=12.0, idle_s=12.0, collectives=811, **IN_LOOP)
    verdict = judge([ahead, absent])
    assert [(one.report.rank, one.why) for one in verdict.behind] == [(1, "idle")]
    assert verdict.waits_text(verdict.behind[0], 100.0) == (
        "rank 0 waits in a collective of the program, collective number 812, which it never entered, since 00:01:28 UTC"
    )
    for changes in ({"idle_s": 0.0}, {"collectives": 811}, {"phase": "wait"}):
        assert judge([replace(ahead, **changes), absent]).behind == (), changes
    assert judge([ahead, replace(absent, collectives=0)]).behind == (), "its count is not known"


def gang(culprit: RankReport, waited_s: float = 11.0, size: int = 4) -> list[RankReport]:
    others = [rank(i, still_s=waited_s, idle_s=waited_s) for i in range(size) if i != culprit.rank]
    return sorted([*others, culprit], key=lambda one: one.rank)


@pytest.mark.parametrize(
    ("change", "why", "kind"),
    [
        ({"state": "T", "state_s": 12.0, "silent_s": 12.5, "still_s": 12.5}, "stopped", "infra"),
        ({"state": "t", "state_s": 12.0, "silent_s": 12.5, "still_s": 12.5}, "traced", "infra"),
        ({"state": "D", "state_s": 12.0, "still_s": 12.0, **IN_LOOP}, "uninterruptible", "infra"),
        ({"silent_s": 12.0, "still_s": 12.4, "idle_s": 12.0}, "unresponsive", "infra"),
        ({"silent_s": 12.0, "still_s": 12.4, "idle_s": 12.0, **IN_LOOP}, "unresponsive", "infra"),
        ({"still_s": 12.0, "idle_s": 12.0, **IN_LOOP}, "idle", "user"),
        ({"still_s": 61.0, "idle_s": 0.0, **IN_LOOP}, "busy", "user"),
        ({"silent_s": 61.0, "still_s": 61.0, "idle_s": 0.0, **IN_LOOP}, "busy", "user"),
        ({"still_s": 61.0, "idle_s": 61.0, "phase": "data", "what": "data loading"}, "loading", "user"),
        ({"still_s": 12.0, "idle_s": 12.0, "steps": 119}, "idle", "user"),
    ],
)
def test_the_rank_that_holds_up_the_others_is_named(change: dict[str, Any], why: str, kind: str) -> None:
    verdict = judge(gang(rank(3, **change)))
    assert [(one.report.rank, one.why, one.kind) for one in verdict.behind] == [(3, why, kind)]
    assert [one.rank for one in verdict.waiting] == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"still_s": 30.0, "idle_s": 30.0, "phase": "wait", "what": "a checkpoint"},
        {"still_s": 30.0, "idle_s": 30.0, "phase": "ended"},
        {"still_s": 30.0, "idle_s": 30.0, "started": False, **IN_LOOP},
        {"still_s": 30.0, "idle_s": 0.5, **IN_LOOP},
        {"silent_s": 30.0, "still_s": 30.0, "idle_s": 0.5, **IN_LOOP},
        {"still_s": 30.0, "idle_s": 30.0, "phase": "data", "what": "data loading"},
        {"still_s": 5.0, "idle_s": 5.0, **IN_LOOP},
        {"state": "D", "state_s": 30.0, "still_s": 30.0, "phase": "wait", "what": "a checkpoint"},
        {"state": "T", "state_s": 3.0, "still_s": 3.0, "silent_s": 3.0},
        {"silent_s": None, "started": False, "phase": ""},
        {"silent_s": None, "started": False, "phase": "", "state": "D", "state_s": 30.0},
        {"still_s": 30.0, "idle_s": 30.0},
    ],
)
def test_slow_exempt_and_starting_ranks_are_not_named(change: dict[str, Any]) -> None:
    assert judge(gang(rank(3, **change))).behind == ()


def test_a_living_rank_is_named_only_while_another_one_waits_for_it() -> None:
    lonely = rank(0, still_s=300.0, idle_s=300.0, **IN_LOOP)
    assert judge([lonely]).behind == ()
    assert judge([lonely, rank(1, **IN_LOOP)]).behind == ()
    stopped = rank(0, state="T", state_s=6.0)
    assert [one.why for one in judge([stopped]).behind] == ["stopped"], "named even when no rank waits"


def test_a_program_without_the_library_is_known_by_its_process_alone() -> None:
    plain = {"silent_s": None, "started": False, "phase": "", "what": "", "still_s": 0.0}
    stuck = rank(0, state="D", state_s=61.0, **plain)
    assert [one.why for one in judge([stuck, rank(1, **plain)]).behind] == ["uninterruptible"]
    assert judge([rank(0, idle_s=900.0, **plain), rank(1, idle_s=900.0, **plain)]).behind == ()


def test_while_a_host_is_away_only_stopped_processes_are_named() -> None:
    reports = gang(rank(1, still_s=90.0, idle_s=90.0, **IN_LOOP))[:2]
    assert judge(reports).behind
    assert judge(reports, complete=False).behind == ()
    reports[1] = replace(reports[1], state="T", state_s=8.0)
    assert [one.report.rank for one in judge(reports, complete=False).behind] == [1]


def test_a_stand_that_ended_by_itself_makes_the_next_one_bearable() -> None:
    slow = gang(rank(3, still_s=35.0, idle_s=35.0, **IN_LOOP), waited_s=35.0)
    assert judge(slow).behind
    assert judge(slow, longest_s=20.0).behind == ()
    assert judge(slow, longest_s=17.0).behind


def test_a_gang_in_which_all_wait_and_nobody_is_behind_is_named_as_a_whole() -> None:
    everyone = [rank(i, still_s=61.0, idle_s=61.0) for i in range(4)]
    verdict = judge(everyone)
    assert [one.why for one in verdict.behind] == ["together"] * 4
    assert text_of(list(verdict.behind), verdict).startswith("No rank has made progress for 61 s and none is behind")
    everyone[2] = replace(everyone[2], idle_s=0.3)
    assert judge(everyone).behind == (), "one that computes is on its way"


def test_a_stalled_gang_is_named_with_the_place_of_each_rank() -> None:
    everyone = [rank(i, still_s=61.0 + i, idle_s=61.0) for i in range(10)]
    verdict = judge(everyone)
    assert text_of(list(verdict.behind), verdict) == (
        "No rank has made progress for 61 s and none is behind: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more in the "
        "gradient exchange, step 120. Messages between the hosts are lost, or the ranks call their collectives in "
        "different orders."
    )


APART = {"what": "an exchange of metrics"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (APART, "mismatch"),
        ({**APART, "steps": 121}, "idle"),
        ({**APART, "steps": 119}, "idle"),
        ({**APART, "still_s": 59.0}, None),
        ({**APART, "idle_s": 0.5}, None),
        ({**APART, "phase": "wait"}, None),
        ({}, "together"),
    ],
)
def test_ranks_that_wait_in_different_exchanges_of_one_step_never_meet(change: dict[str, Any], why: str | None) -> None:
    everyone = [rank(i, still_s=61.0, idle_s=61.0) for i in range(3)]
    everyone[0] = replace(everyone[0], **change)
    assert {one.why for one in judge(everyone).behind} == ({why} if why else set())


def test_the_words_name_rank_host_place_and_who_waits() -> None:
    verdict = judge(gang(rank(3, state="T", state_s=12.0, **IN_LOOP), size=8))
    assert text_of(list(verdict.behind), verdict) == (
        "Rank 3 on gpu-1 has made no progress for 12 s (stopped by a signal, in its training loop, step 120, pid 1003)"
        "; 7 ranks wait for it in the gradient exchange (for 11 s)"
    )
    assert GangVerdict().waiting_text == ""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: self.now)


def report(dog: GangWatchdog, ranks: list[RankReport], at: float, *, only: str | None = None, **more: float) -> None:
    for host in sorted({one.host for one in ranks}):
        if only is None or host == only:
            mine = tuple(one for one in ranks if one.host == host)
            dog.take(host, ProgressFrame(run="t1.1.1", boottime_s=at, ranks=mine, **more))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def follow(dog: GangWatchdog, clock: Clock, make: Any, seconds: int, **options: Any) -> list[Any]:
    """Report and check once per second, and return the errors."""
    errors = []
    for second in range(seconds):
        clock.now += 1.0
        report(dog, make(float(second)), clock.now, **options)
        errors.append(dog.check())
    return [error for error in errors if error is not None]


def test_a_rank_is_named_once_and_again_when_it_goes_on(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dog = GangWatchdog(["gpu-0", "gpu-1"], 1800.0, logging.getLogger("watchdog"))

    def stopped(second: float) -> list[RankReport]:
        return gang(rank(3, state="T", state_s=second, silent_s=second, still_s=second), waited_s=second)

    assert follow(dog, clock, stopped, 40) == []
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert caplog.records[0].message.startswith("Rank 3 on gpu-1 has made no progress for 5 s (stopped")
    assert follow(dog, clock, lambda second: [rank(i, steps=121) for i in range(4)], 3) == []
    assert caplog.records[-1].message == "Rank 3 on gpu-1 resumed after 39 s"
    assert dog.named == {}


@pytest.mark.parametrize(("change", "error"), [({"state": "T"}, ProcessStuckError), ({}, RankHangsError)])
def test_the_gang_ends_after_hang_timeout_and_not_before(clock: Clock, change: dict[str, Any], error: Any) -> None:
    dog = GangWatchdog(["gpu-0", "gpu-1"], 100.0, logging.getLogger("watchdog"))

    def hanging(second: float) -> list[RankReport]:
        spans = {"still_s": second, "idle_s": second, "state_s": second, **IN_LOOP}
        return gang(rank(3, **{**spans, **change}), waited_s=second)

    assert follow(dog, clock, hanging, 100) == []
    found = follow(dog, clock, lambda second: hanging(second + 100), 3)
    assert {type(one) for one in found} == {error}
    assert "hang_timeout is 100 s" in str(found[0])
    assert "Rank 3 on gpu-1 has made no progress for 100 s" in str(found[0])


def test_a_gang_that_can_never_meet_is_ended_a_minute_after_it_was_named(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    dog = GangWatchdog(["gpu-0", "gpu-1"], 1800.0, logging.getLogger("watchdog"))

    def apart(second: float) -> list[RankReport]:
        spans = {"still_s": second, "idle_s": second}
        return [rank(0, **spans, **APART), *(rank(number, **spans) for number in range(1, 4))]

    assert follow(dog, clock, apart, 120) == []
    (named,) = (record.message for record in caplog.records)
    assert named == (
        "The ranks wait for each other in different exchanges for 61 s: rank 0 on gpu-0 in an exchange of metrics, "
        "step 120; ranks 1, 2, 3 in the gradient exchange, step 120. Their loops have different lengths, or they call "
        "collectives in different orders. Let all ranks do the same steps. The gang is ended in 60 s, because this "
        "cannot pass."
    )
    (error, *_) = follow(dog, clock, lambda second: apart(second + 120), 5)
    assert type(error) is RankHangsError
    assert "rank 0 on gpu-0 in an exchange of metrics, step 120; ranks 1, 2, 3 in the gradient exchange" in str(error)


def test_a_machine_that_slept_ends_nothing(clock: Clock) -> None:
    dog = GangWatchdog(["gpu-0", "gpu-1"], 100.0, logging.getLogger("watchdog"))
    assert follow(dog, clock, lambda second: [rank(i, steps=int(second)) for i in range(4)], 5) == []

    def woken(second: float) -> list[RankReport]:
        # Right after a sleep of an hour all spans are long; the ranks move a moment later.
        span = 3600.0 if second < 1 else 0.3
        return gang(rank(3, still_s=span, idle_s=span, **IN_LOOP), waited_s=span)

    assert follow(dog, clock, woken, 30) == []
    assert dog.named == {}


def test_a_partitioned_host_is_not_named_and_neither_is_who_waits_for_it(clock: Clock) -> None:
    dog = GangWatchdog(["gpu-0", "gpu-1"], 20.0, logging.getLogger("watchdog"))
    assert follow(dog, clock, lambda second: [rank(i, steps=int(second)) for i in range(4)], 5) == []

    def alone(second: float) -> list[RankReport]:
        idle = rank(1, still_s=second, idle_s=second, **IN_LOOP)
        return [rank(0, still_s=second, idle_s=second), idle, rank(2), rank(3)]

    # The last reports of the host that is away stay what they were, and grow old.
    assert follow(dog, clock, lambda second: alone(min(second, 3.0)), 12, only="gpu-0") == []
    assert follow(dog, clock, lambda second: alone(second), 200, only="gpu-0") == []
    assert dog.named == {}


def test_slow_steps_of_an_uneven_gang_are_learned(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    dog = GangWatchdog(["gpu-0", "gpu-1"], 1800.0, logging.getLogger("watchdog"))

    def uneven(second: float) -> list[RankReport]:
        # Every 40 s, rank 3 makes no progress and uses no CPU for 20 s, while the other ranks wait.
        stands = second % 40 if second % 40 < 20 else 0.2
        return gang(rank(3, still_s=stands, idle_s=stands, steps=int(second // 40), **IN_LOOP), waited_s=stands)

    assert follow(dog, clock, uneven, 400) == []
    assert len([record for record in caplog.records if "no progress" in record.message]) == 1, "the first time only"


def test_a_stopped_supervisor_is_said_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dog = GangWatchdog(["gpu-0", "gpu-1"], 1800.0, logging.getLogger("watchdog"))
    healthy = [rank(i) for i in range(4)]
    follow(dog, clock, lambda second: healthy, 5, only="gpu-0", supervisor_stopped_s=8.0)
    follow(dog, clock, lambda second: healthy, 5)
    words = [record.message for record in caplog.records]
    assert len(words) == 2
    assert words[0].startswith("The supervisor on gpu-0 is stopped")
    assert words[1] == "The supervisor on gpu-0 has resumed"


@pytest.mark.parametrize(
    "document",
    [
        {}, {"run": "t1.1.1", "boottime_s": 1.0, "ranks": 3}, {"run": "t1.1.1", "boottime_s": -1.0, "ranks": []},
        {"run": "t1.1.1", "boottime_s": 1.0, "ranks": [{}]},
        {"run": "t1.1.1", "boottime_s": 1.0, "ranks": [{"rank": 0, "still_s": "long"}]},
        {"run": "t1.1.1", "boottime_s": 1.0, "ranks": [{"rank": 0, "steps": -1}]},
    ],
)  # fmt: skip
def test_a_report_that_cannot_be_understood_breaks_the_protocol(document: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        ProgressFrame.parse(document, "gpu-0")


def test_words_of_a_host_are_harmless_and_unknown_fields_are_left_out() -> None:
    document = {"rank": 0, "what": "\x1b[31m" + "x" * 100, "later": [1]}
    found = ProgressFrame.parse({"run": "t1.1.1", "boottime_s": 1.0, "ranks": [document]}, "gpu-0").ranks[0]
    assert found.what.startswith("\\x1b[31m")
    assert found.host == "gpu-0"
