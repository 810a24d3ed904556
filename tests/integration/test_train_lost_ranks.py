"""Ranks that miss each other: the error says where each rank was, and what to compare."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.lifecycle.rank_exits import RankExit, first_failure
from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

UNEVEN = """
    with dtrain.init(hparams={"global_batch_size": 4}, timeout_s=TIMEOUT) as ctx:
        model = torch.nn.Linear(2, 1)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        for number in range(BATCHES):
            ctx.backward(model(torch.ones(2, 2)).sum())
            ctx.step(optimizer)
        END
"""


def ends(tmp_path, batches, end, timeout_s):
    text = UNEVEN.replace("BATCHES", batches).replace("END", end).replace("TIMEOUT", str(timeout_s))
    ranks = run_ranks(script(tmp_path, text), tmp_path / "run", 2)
    exits = [
        RankExit(rank=number, exit_code=rank.exit_code, host="h", at=10.0 + number, error=rank.error)
        for number, rank in enumerate(ranks)
    ]
    return ranks, first_failure(exits)


@pytest.mark.nightly  # it waits for a time-out that a busy machine does not reach by itself
def test_loops_of_different_lengths_name_the_place_of_each_rank(tmp_path):
    ranks, _ = ends(tmp_path, "4 + ctx.rank", "ctx.report_validation(1, {'v': 1.0})", 8)
    assert [rank.exit_code for rank in ranks] == [1, 1]
    first, second = (rank.error["message"] for rank in ranks)
    assert first.startswith("LostRankError: Rank 0 waited for the other ranks in an exchange of metrics, after 4 steps")
    assert second.startswith("LostRankError: Rank 1 waited for the other ranks in the gradient exchange, after 4 steps")
    assert any("Let all ranks do the same steps" in message for message in (first, second))
    assert any("Timed out waiting" in rank.error["traceback"] for rank in ranks), "the error of gloo is kept"


def test_a_rank_that_ends_is_named_as_the_cause_and_not_the_one_that_waits(tmp_path):
    ranks, cause = ends(tmp_path, "4 - ctx.rank", "if ctx.rank == 1: import os; os._exit(7)", 60)
    message = ranks[0].error["message"]
    assert message.startswith(
        "LostRankError: Rank 0 waited for the other ranks in the gradient exchange, after 3 steps"
    )
    assert "one of them has ended" in message
    assert (cause.rank, cause.exit_code) == (1, 7)
