"""Shards to which failures are attributed, from the events of a rank and from stored failures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.shard_blame import (
    EXIT_BAD_SHARD,
    BlamedShard,
    fruitless_in_a_row,
    shard_failures,
    unfinished_shard,
)
from airflow_provider_dtrain.engine.attempt.outcome import Failure, Outcome, failure_dict
from airflow_provider_dtrain.errors import RankFailedError, ShardFailedError
from airflow_provider_dtrain.train.inference import __main__ as program
from tests.support.log_world import no_secrets


def event(kind: str, shard: int) -> dict[str, Any]:
    return {"kind": f"shard_{kind}", "shard": shard, "label": f"part-{shard}"}


def failure(index: Any, finished: Any = 0) -> dict[str, Any]:
    return {"error": "ShardFailedError", "shard": {"index": index, "label": "x", "finished": finished}}


@pytest.mark.parametrize(
    ("events", "blamed"),
    [
        ([], None),
        ([("started", 1)], 1),
        ([("started", 1), ("done", 1)], None),
        ([("started", 1), ("failed", 1)], None),
        ([("started", 1), ("skipped", 1)], None),
        ([("started", 1), ("failed", 1), ("started", 1)], 1),
        # A rank writes the results of a shard while it computes the next one.
        ([("started", 1), ("started", 2), ("done", 1)], 2),
        ([("started", 1), ("started", 2), ("done", 2)], None),
    ],
)
def test_the_shard_that_a_rank_started_last_is_blamed_unless_it_ended(events: Any, blamed: int | None) -> None:
    found = unfinished_shard([event(*one) for one in events])
    assert (found and found.index) == blamed
    assert found is None or found.label == f"part-{blamed}"


def test_failures_are_counted_by_shard_and_foreign_ones_are_left_out() -> None:
    assert shard_failures([failure(1), None, {"error": "HostLostError"}, failure(1), failure(2)]) == {1: 2, 2: 1}
    assert shard_failures([{"shard": None}, {"shard": 3}, failure("1"), failure(-1), failure(True)]) == {}


def test_attempts_that_finished_no_shard_are_counted_up_to_the_first_that_did() -> None:
    assert fruitless_in_a_row([failure(1), failure(2), failure(3, 1), failure(4)]) == 2
    assert fruitless_in_a_row([failure(1), {"error": "HostLostError"}, failure(2)]) == 1
    assert fruitless_in_a_row([failure(1, "many"), None]) == 1


def test_the_program_of_the_ranks_ends_with_the_status_that_the_engine_expects() -> None:
    assert EXIT_BAD_SHARD == program.EXIT_BAD_SHARD


async def test_a_failure_keeps_its_shard_on_the_way_through_the_store() -> None:
    rank = RankFailedError(rank=2, host="a", exit_code=-9, traceback="last lines")
    error = ShardFailedError(rank, shard=5, label="part-3 rows 0-9", finished=7)
    rt: Any = SimpleNamespace(redactor=no_secrets)
    stored = await failure_dict(rt, error)
    assert (stored["error"], stored["rank"], stored["host"], stored["kind"]) == ("ShardFailedError", 2, "a", "user")
    assert BlamedShard.of(stored) == BlamedShard(index=5, label="part-3 rows 0-9", finished=7)
    lines = str(error).splitlines()
    assert lines[0].endswith("(signal 9). It was processing shard 5 (part-3 rows 0-9).")
    assert lines[1] == "last lines"
    again = Outcome.from_dict(Outcome(state="errored", failure=Failure(**stored)).to_dict())
    assert again.failure == Failure(**stored)
    assert type(again.failure.exception()) is ShardFailedError if again.failure else False
