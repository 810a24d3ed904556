"""The restart policy as a table: facts about a failed or preempted attempt, and the action that follows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain import errors
from airflow_provider_dtrain.core.lifecycle.after_failure import (
    AWAY,
    FINAL,
    KEEP_GANG_S,
    MOST_REFUSALS,
    PLATFORM_FAILURES,
    REFUSALS,
    Action,
    DrawAgain,
    Facts,
    Fence,
    Finish,
    GiveBack,
    MoveOn,
    Restart,
    Stop,
    after_failure,
    back_off_s,
    platform_back_off_s,
    platform_failures_in_a_row,
    refusals_in_a_row,
    restart_of,
)

#: Facts of a failed rank with two of five restarts used, of a failure of the platform, and of a rejected sample.
RANK: dict[str, Any] = {"error": "RankFailedError", "kind": "user", "restarts": 2, "max_restarts": 5}
RUN: dict[str, Any] = {"error": "RunEndedError", "kind": "platform", "restarts": 5, "max_restarts": 5}
SAMPLE: dict[str, Any] = {"error": "InvalidHPError", "kind": "user", "has_draw": True}
SHARD: dict[str, Any] = {"error": "ShardFailedError", "kind": "user", "restarts": 2, "max_restarts": 5}
SKIP = {"skips_bad_shards": True}
CLEAR, UNCLEAR, HELD, SALVAGED = {"is_clear": True}, {"is_clear": False}, {"is_held_gang": True}, {"is_salvaged": True}
NONE: dict[str, Any] = {"error": None, "kind": None}


def user(error: str, **more: Any) -> dict[str, Any]:
    return {**RANK, "error": error, **more}


def host(error: str, **more: Any) -> dict[str, Any]:
    return {"error": error, "kind": "infra", "restarts": 5, "max_restarts": 5, **more}


def counted(pause_s: float, *, keeps_gang: bool = True) -> Restart:
    return Restart(counted=True, pause_s=pause_s, keeps_gang=keeps_gang)


def uncounted(pause_s: float, *, keeps_gang: bool = True) -> Restart:
    return Restart(counted=False, pause_s=pause_s, keeps_gang=keeps_gang, pauses_first=not keeps_gang)


def uncounted_shard(pause_s: float, *, keeps_gang: bool = True) -> Restart:
    return Restart(counted=False, pause_s=pause_s, keeps_gang=keeps_gang)


LEFT_OUT, GONE = MoveOn(excludes=True, is_away=False), Finish(waits_for_end=True)
CASES: dict[str, tuple[dict[str, Any], Action]] = {
    # -- the user's code
    "a failed rank fences its gang first": (RANK, Fence(then=counted(4))),
    "a failed rank restarts on a clear gang": ({**RANK, **CLEAR}, counted(4)),
    "the first restart pauses for a second": ({**RANK, **CLEAR, "restarts": 0}, counted(1)),
    "later restarts pause for a minute": ({**RANK, **CLEAR, "restarts": 9, "max_restarts": 10}, counted(60)),
    "a gang with a silent host is broken up": ({**RANK, **UNCLEAR}, counted(4, keeps_gang=False)),
    "the last restart is used": ({**RANK, **CLEAR, "restarts": 4}, counted(16)),
    "no restart is left": ({**RANK, "restarts": 5}, Finish()),
    "no restart is allowed": ({**RANK, "restarts": 0, "max_restarts": 0}, Finish()),
    "more restarts than allowed": ({**RANK, "restarts": 6}, Finish()),
    "a held gang restarts its trial": ({**RANK, **HELD, **CLEAR}, counted(4)),
    "a held gang is fenced first": ({**RANK, **HELD}, Fence(then=counted(4))),
    "a held gang with a silent host ends its trial": ({**RANK, **HELD, **UNCLEAR}, Finish()),
    "recovery leaves the restart to Airflow": ({**RANK, **SALVAGED}, Finish(resumes=True)),
    "recovery ends a trial without restarts": ({**RANK, **SALVAGED, "restarts": 5}, Finish()),
    "recovery of a held gang leaves the restart": ({**RANK, **HELD, **SALVAGED}, Finish(resumes=True)),
    "a hang counts": (user("RankHangsError", **CLEAR), counted(4)),
    "a missing environment counts": (user("EnvironmentMissingError", **CLEAR), counted(4)),
    "a misuse of the library is final": (user("TrainingRefusedError"), Finish()),
    "a log policy is final": (user("LogPolicyError"), Finish()),
    "max_runtime is final": (user("MaxRuntimeError"), Finish()),
    "recovery ends a final failure for good": (user("MaxRuntimeError", **SALVAGED), Finish()),
    # -- shards of a batch inference
    "a failed shard fences its gang first": (SHARD, Fence(then=uncounted_shard(1))),
    "a failed shard does not count": ({**SHARD, **CLEAR}, uncounted_shard(1)),
    "a failed shard needs no restarts": ({**SHARD, **CLEAR, "restarts": 5}, uncounted_shard(1)),
    "the second failure of a shard pauses longer": ({**SHARD, **CLEAR, "shard_failures": 1}, uncounted_shard(2)),
    "the third failure of a shard is final": ({**SHARD, "shard_failures": 2}, Finish()),
    "the third failure is set aside": ({**SHARD, **CLEAR, **SKIP, "shard_failures": 2}, uncounted_shard(4)),
    "a shard that was not set aside is final": ({**SHARD, **SKIP, "shard_failures": 3}, Finish()),
    "a failed shard on a silent host": ({**SHARD, **UNCLEAR}, uncounted_shard(1, keeps_gang=False)),
    "a failed shard on a silent held gang": ({**SHARD, **HELD, **UNCLEAR}, Finish()),
    "recovery leaves a failed shard to Airflow": ({**SHARD, **SALVAGED, "restarts": 5}, Finish(resumes=True)),
    "recovery ends the third failure of a shard": ({**SHARD, **SALVAGED, "shard_failures": 2}, Finish()),
    "a rank that gave a shard up is final": (user("BadShardError"), Finish()),
    "results that cannot be put into their folder are final": (user("CollectError"), Finish()),
    "a processor that fails everywhere is final": ({**SHARD, **SKIP, "fruitless": 29}, Finish()),
    "a processor that finished a shard continues": ({**SHARD, **SKIP, **CLEAR, "fruitless": 29, "finished": 1},
                                                   uncounted_shard(60)),
    "a failed shard of a preempted gang": ({**SHARD, "shard_failures": 1, "request": "preempted"},
                                           GiveBack(is_paused=False, follows=True)),
    # -- rejected hyperparameters
    "a rejected sample fences its gang first": (SAMPLE, Fence(then=DrawAgain(keeps_gang=True))),
    "a rejected sample is drawn again": ({**SAMPLE, **CLEAR}, DrawAgain(keeps_gang=True)),
    "a rejected sample needs no restarts": (user("InvalidHPError", restarts=5, has_draw=True, **CLEAR),
                                            DrawAgain(keeps_gang=True)),
    "a rejected sample on a silent host": ({**SAMPLE, **UNCLEAR}, DrawAgain(keeps_gang=False)),
    "a rejected sample on a held gang": ({**SAMPLE, **HELD, **CLEAR}, DrawAgain(keeps_gang=True)),
    "a rejected sample on a silent held gang": ({**SAMPLE, **HELD, **UNCLEAR}, Finish()),
    "recovery draws again and releases the gang": ({**SAMPLE, **SALVAGED, **CLEAR}, DrawAgain(keeps_gang=False)),
    "recovery fences before it draws": ({**SAMPLE, **SALVAGED}, Fence(then=DrawAgain(keeps_gang=False))),
    "rejected parameters without samples are final": (user("InvalidHPError"), Finish()),
    "no sample is left in recovery": (user("InvalidHPError", **SALVAGED), Finish()),
    # -- the platform
    "a platform failure fences its gang first": (RUN, Fence(then=uncounted(5))),
    "a platform failure does not count": ({**RUN, **CLEAR}, uncounted(5)),
    "a pause of 40 s keeps the gang": ({**RUN, **CLEAR, "platform_failures": 3}, uncounted(40)),
    "a pause of 80 s releases it": ({**RUN, **CLEAR, "platform_failures": 4}, uncounted(80, keeps_gang=False)),
    "a pause of 320 s releases it": ({**RUN, **CLEAR, "platform_failures": 6}, uncounted(320, keeps_gang=False)),
    "a long pause keeps a held gang": ({**RUN, **CLEAR, **HELD, "platform_failures": 4}, uncounted(80)),
    "a platform failure with a silent host": ({**RUN, **UNCLEAR}, uncounted(5, keeps_gang=False)),
    "a platform failure of a silent held gang": ({**RUN, **HELD, **UNCLEAR}, Finish()),
    "too many platform failures": ({**RUN, "platform_failures": 7}, Finish()),
    "recovery ends a platform failure": ({**RUN, **SALVAGED}, Finish()),
    "a store's failure is the platform's": ({**RUN, **CLEAR, "error": "StoreError"}, uncounted(5)),
    # -- hosts
    "a lost host is left out": (host("HostLostError"), LEFT_OUT),
    "a broken protocol leaves the host out": (host("HostProtocolError"), LEFT_OUT),
    "a host without a network path is left out": (host("NetworkPathError"), LEFT_OUT),
    "a stuck process leaves the host out": (host("ProcessStuckError"), LEFT_OUT),
    "a log policy leaves a host out": (host("HostError"), LEFT_OUT),
    "a changed host key leaves the host out": (host("HostKeyError"), LEFT_OUT),
    "an unreachable host may come back": (host("HostUnreachableError"), MoveOn(excludes=True, is_away=True)),
    "a silent host may come back": (host("HostSilentError"), MoveOn(excludes=True, is_away=True)),
    "a host that lost results may compute again": (host("ResultsLostError"), MoveOn(excludes=True, is_away=True)),
    "results are lost again": (host("ResultsLostError", losses=1), MoveOn(excludes=True, is_away=True)),
    "results are lost a third time": (host("ResultsLostError", losses=2), LEFT_OUT),
    "a busy slot becomes free": (host("SlotBusyError"), MoveOn(excludes=True, is_away=True)),
    "a slot of a forgotten run": (host("SlotBusyError", is_behind=True), MoveOn(excludes=False, is_away=True)),
    "a forgotten run again and again": (host("SlotBusyError", is_behind=True, refusals=2),
                                        MoveOn(excludes=True, is_away=True)),
    "a host refuses a launch": (host("HostRefusedError"), LEFT_OUT),
    "a host has seen a later grant": (host("HostRefusedError", is_behind=True), MoveOn(excludes=False, is_away=False)),
    "it refuses a second grant": (host("HostRefusedError", is_behind=True, refusals=1),
                                  MoveOn(excludes=False, is_away=False)),
    "it refuses a third grant": (host("HostRefusedError", is_behind=True, refusals=2), LEFT_OUT),
    "a host of a held gang fails": (host("HostLostError", **HELD), Finish()),
    "recovery waits until a host's run is gone": (host("HostLostError", **SALVAGED), GONE),
    "recovery of a held gang waits for nothing": (host("HostLostError", **HELD, **SALVAGED), Finish()),
    # -- requests
    "a preempted trial waits in the queue": ({**NONE, "request": "preempted"}, GiveBack(is_paused=False, follows=True)),
    "a paused trial waits for its user": ({**NONE, "request": "paused"}, GiveBack(is_paused=True, follows=True)),
    "a stopped trial ends": ({**NONE, "request": "stopped"}, Stop()),
    "recovery requeues a preempted trial": ({**NONE, **SALVAGED, "request": "preempted"},
                                            GiveBack(is_paused=False, follows=False)),
    "a rank that fails on the way out": ({**RANK, "restarts": 5, "request": "preempted"},
                                         GiveBack(is_paused=False, follows=True)),
    "a rank that fails while it is stopped": ({**RANK, "request": "stopped"}, Stop()),
    "a host's fault on the way out": (host("HostError", request="paused"), GiveBack(is_paused=True, follows=True)),
    "a death in a shard on the way out": ({**SHARD, "request": "paused"}, GiveBack(is_paused=True, follows=True)),
    "a bad shard on the way out": ({**SHARD, "shard_failures": 2, "request": "paused"}, Finish()),
    "a platform failure on the way out": ({**RUN, "request": "preempted"}, GiveBack(is_paused=False, follows=True)),
    "a final failure on the way out": (user("LogPolicyError", request="preempted"), Finish()),
    "a rejected sample on the way out": ({**SAMPLE, "request": "paused"}, Fence(then=DrawAgain(keeps_gang=True))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_action_after_a_failure(name: str) -> None:
    facts, expected = CASES[name]
    assert after_failure(Facts(**facts)) == expected


def test_the_table_names_errors_and_kinds_that_exist() -> None:
    named = {(facts["error"], facts["kind"]) for facts, _ in CASES.values() if facts["error"] is not None}
    assert {(name, getattr(errors, name).kind) for name, _ in named} == named
    assert named >= {(name, getattr(errors, name).kind) for name in FINAL | AWAY | REFUSALS}


def test_an_answered_fence_is_never_repeated_and_no_slots_are_kept_without_an_answer() -> None:
    names, yes_or_no = ["RankFailedError", "InvalidHPError", "RunEndedError", "HostLostError"], [False, True]
    for error, held, salvaged, draw, clear in itertools.product(names, *([yes_or_no] * 4)):
        action = after_failure(Facts(
            error=error, kind=getattr(errors, error).kind, max_restarts=1, is_held_gang=held, is_salvaged=salvaged,
            has_draw=draw, is_clear=clear,
        ))  # fmt: skip
        assert not isinstance(action, Fence)
        if isinstance(action, Restart | DrawAgain):
            assert clear or not action.keeps_gang


def test_platform_failures_end_the_task_after_the_eighth_in_a_row() -> None:
    actions = [after_failure(Facts(error="RunEndedError", kind="platform", platform_failures=n)) for n in range(9)]
    assert [isinstance(action, Finish) for action in actions] == [False] * (PLATFORM_FAILURES - 1) + [True] * 2


def test_platform_failures_count_from_the_latest_attempt_until_another_kind() -> None:
    platform, other = {"kind": "platform"}, {"kind": "infra"}
    assert platform_failures_in_a_row([]) == 0
    assert platform_failures_in_a_row([platform, platform, other, platform]) == 2
    assert platform_failures_in_a_row([None, platform]) == 0


def test_refusals_count_for_one_host_until_the_users_code_ran() -> None:
    refused = {"kind": "infra", "error": "HostRefusedError", "host": "a"}
    busy, lost = {**refused, "error": "SlotBusyError"}, {**refused, "error": "HostLostError"}
    elsewhere, code = {**refused, "host": "b"}, {"kind": "user", "error": "RankFailedError", "host": "a"}
    assert refusals_in_a_row([refused, elsewhere, lost, {"kind": "platform"}, busy, code, refused], "a") == 2
    assert refusals_in_a_row([None, refused], "a") == 0
    assert MOST_REFUSALS == 3


def test_pauses_double_up_to_a_minute() -> None:
    assert [back_off_s(n) for n in (0, 1, 2, 5, 6, 7, 9999)] == [1, 2, 4, 32, 60, 60, 60]


def test_pauses_after_failures_of_the_platform_grow_until_the_gang_is_given_back() -> None:
    pauses = [platform_back_off_s(failures) for failures in range(9)]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert [pause > KEEP_GANG_S for pause in pauses] == [False] * 4 + [True] * 5


@pytest.mark.parametrize(
    ("error", "kind", "restarts", "expected"),
    [
        ("HostLostError", "infra", 5, False),
        ("RunEndedError", "platform", 5, False),
        ("RankFailedError", "user", 4, True),
        ("RankFailedError", "user", 5, None),
        ("TrainingRefusedError", "user", 0, None),
        ("MaxRuntimeError", "user", 0, None),
        ("UnplaceableError", "user", 0, None),
        ("RankHangsError", "user", 0, None),
    ],
)
def test_an_ended_trial_goes_on_only_where_the_rules_say(
    error: str, kind: str, restarts: int, expected: bool | None
) -> None:
    failure = {"error": error, "kind": kind, "message": ""}
    view: Any = SimpleNamespace(trial_state="errored", failure=failure, restarts=restarts, max_restarts=5)
    assert restart_of(view) is expected
    view.trial_state = "killed"
    assert restart_of(view) is None


@pytest.mark.parametrize("state", ["completed", "stopped", "running"])
def test_a_trial_that_has_not_failed_has_no_next_attempt(state: str) -> None:
    failure = {"error": "HostLostError", "kind": "infra", "message": ""}
    assert restart_of(SimpleNamespace(trial_state=state, failure=failure, restarts=0, max_restarts=5)) is None


def test_a_trial_whose_task_airflow_lost_goes_on_without_a_restart() -> None:
    failure = {"error": "TaskEndedError", "kind": "platform", "message": ""}
    killed: Any = SimpleNamespace(trial_state="killed", failure=failure, restarts=5, max_restarts=5)
    assert restart_of(killed) is False
    killed.failure = None
    assert restart_of(killed) is None
