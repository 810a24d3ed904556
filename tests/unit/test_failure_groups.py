"""Failures with the same cause are one group, whatever numbers, paths, addresses, ranks and hosts they name."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind
from airflow_provider_dtrain.core.lifecycle.failure_groups import (
    FailedTrial,
    blamed_rank,
    cause_groups,
    cause_key,
    headline,
    own_cause,
)
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.errors import HostLostError, RankFailedError


def failure(fact: str, *, kind: str | None = "exception", rank: int = 0, host: str = "a", when: str = "") -> Any:
    """Return a failure as the store keeps it."""
    advice = CauseKind(kind).advice if kind else ""
    error = RankFailedError(
        rank=rank, host=host, exit_code=1, traceback="", message=fact, when=when, advice=advice, cause_kind=kind
    )
    return {"error": "RankFailedError", "kind": "user", "message": str(error), "cause_kind": kind, "rank": rank}


def groups(*failures: Any) -> list[tuple[int, str]]:
    found = cause_groups(FailedTrial(trial_id=number, failure=one) for number, one in enumerate(failures))
    return [(len(one.trials), one.cause) for one in found]


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ("lost 3 of 8", "lost 4 of 8", "lost ... of 8"),
        ("no file '/data/a/1.tar' there", "no file '/mnt/b.tar' there", "no file '...' there"),
        ("object at 0x7f12ab", "object at 0x7f99cd", "object at ..."),
        ("no route to 10.0.0.1:29500", "no route to 10.0.0.27:29501", "no route to ..."),
        ("no route to [fe80::1]", "no route to [fe80::27]", "no route to [...]"),
        ("GET https://a.example/x failed", "GET https://b.example/y failed", "GET ... failed"),
        ("loss 1e-3 is high", "loss 2.5E+10 is high", "loss ... is high"),
        ("stopped at 10:00:01 UTC", "stopped at 23:59:59 UTC", "stopped at ..."),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174000", "id ..."),
        ("Host 'gpu-1' was restarted", "Host 'gpu-27' was restarted", "Host '...' was restarted"),
        ("shard-0017.tar is broken", "shard-0018.tar is broken", "shard....tar is broken"),
        ("ranks 0, 1 and 3 waited", "ranks 2 and 3 waited", "ranks ... waited"),
    ],
)
def test_numbers_paths_addresses_and_names_of_hosts_may_differ(first: str, second: str, common: str) -> None:
    assert groups(failure(first), failure(second)) == [(2, common)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failure("KeyError: 'label'"), failure("KeyError: 'name'")),
        (failure("KeyError: 1, at train.py:34 in f"), failure("KeyError: 1, at train.py:35 in f")),
        (failure("KeyError: 1, at train.py:34 in f"), failure("KeyError: 1, at data.py:34 in f")),
        (failure("killed", kind="killed"), failure("killed", kind="out_of_memory")),
        ({"error": "HostLostError", "message": "x"}, {"error": "HostSilentError", "message": "x"}),
    ],
)
def test_another_error_or_line_of_the_program_is_another_cause(first: Any, second: Any) -> None:
    assert [number for number, _ in groups(first, second)] == [1, 1]


def test_an_error_of_a_resource_is_the_same_at_another_line_of_the_program() -> None:
    texts = [failure(f"CUDA out of memory, at train.py:{line} in f", kind="device_memory") for line in (1, 2)]
    assert groups(*texts) == [(2, "CUDA out of memory, at train.py:... in f")]


def test_rank_host_time_advice_and_further_ranks_are_no_part_of_a_cause() -> None:
    own = "KeyError: 'x', at train.py:3 in f"
    several = [
        failure(own, rank=1, host="b", when="10:00:00 UTC"),
        failure(f"{own}, as rank 3", rank=2),
        failure(f"{own}, as ranks 0, 1 and 3"),
        failure(f"{own}, as ranks 0, 1 and 5 more"),
    ]
    assert groups(*several) == [(4, own)]
    assert own_cause(several[0]) == own


def test_the_largest_group_comes_first_and_its_first_trial_is_the_example() -> None:
    found = cause_groups(
        FailedTrial(trial_id=number, failure=failure(text)) for number, text in ((9, "a"), (8, "b"), (7, "b"))
    )
    assert [[one.trial_id for one in group.trials] for group in found] == [[8, 7], [9]]


@pytest.mark.parametrize(
    ("sizes", "failed", "ended", "is_over", "text"),
    [
        ([8], 8, 10, True, "8 of 10 trials failed with the same error."),
        ([8, 1], 9, 10, True, "9 of 10 trials failed, 8 of them with the same error."),
        ([1, 1], 2, 32, True, "2 of 32 trials failed, each with another error."),
        ([1], 1, 32, True, "1 of 32 trials failed."),
        ([1], 1, 1, True, "The only trial failed."),
        ([1], 1, 1, False, "The first trial that ended failed."),
        ([3], 3, 4, False, "3 of 4 trials that have ended failed with the same error."),
        ([2], 2000, 2000, True, "2000 of 2000 trials failed, 2 of them with the same error."),
    ],
)
def test_one_sentence_says_how_many_trials_failed_alike(
    sizes: list[int], failed: int, ended: int, is_over: bool, text: str
) -> None:
    assert headline(sizes, failed, ended, is_over=is_over) == text


def test_the_blamed_rank_is_that_of_the_record_else_of_the_sentence() -> None:
    assert blamed_rank(failure("x", rank=3)) == 3
    assert blamed_rank({"message": "Rank 12 on host 'a' failed first (signal 9): x"}) == 12
    for other in ({"message": "Host 'a' was restarted."}, {"rank": True, "message": ""}, {}):
        assert blamed_rank(other) is None


def test_the_brief_cause_of_an_outcome_is_read_from_the_same_sentence() -> None:
    stored = Failure.of(RankFailedError(rank=1, host="a", exit_code=1, traceback="t", message="KeyError: 'x'"))
    assert stored.cause == "KeyError: 'x' (rank 1 on host 'a' failed first (exit code 1))"
    assert Failure.of(HostLostError("a", "Host 'a' was restarted.\nmore")).cause == "Host 'a' was restarted."


@pytest.mark.parametrize("text", ["9" * 100_000, "/" * 100_000, "':" * 50_000, "a:" * 50_000, "rank 1, " * 20_000, ""])
def test_any_text_has_a_key_soon(text: str) -> None:
    begin = time.process_time()
    cause_key({"error": "RankFailedError", "message": text})
    assert time.process_time() - begin < 1.0
