"""Every point at which something may die between a question at a rung and the end that it leads to. Real ranks."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.counting import a_minute_passes, eventually
from tests.support.engines import Engine, held
from tests.support.searches import Search, dies_at, search_config

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks", "searchers_run")]

#: Points in rank 0's process, in their order; the trial's rungs are 2, 4 and 8, and it dies at the first.
RANK_POINTS = [
    "before the question", "after the question", "before the broadcast", "before the checkpoint",
    "after the checkpoint",
]  # fmt: skip
#: Points in the follower's process.
FOLLOWER_POINTS = ["before the answer", "after the answer"]


async def after(engine: Engine, rival: float, **more: Any) -> Search:
    """Return a search in which a trial of this quality has completed."""
    search = Search(engine, search_config(**more))
    outcome, ticket = await search.run(0, rival)
    assert (outcome.state, outcome.failure) == ("completed", None)
    assert search.told(ticket) == [(0, "continue"), (1, "continue"), (2, "complete")]
    return search


def steps(search: Search, ticket: Ticket) -> list[int]:
    return sorted({one.step for one in search.hook.store.checkpoints.of_trial(ticket.trial_id)})


def run_folder(search: Search, ticket: Ticket) -> Path:
    store = search.hook.store
    run = store.attempts.get(store.trials.get(ticket.trial_id).attempt_id).run
    return search.hook.settings.checkpoint_dir.parent / "state" / "runs" / str(run)


def each_rung_once(search: Search) -> None:
    entries = search.hook.store.searches.rung_entries(search.search_id)
    assert set(Counter((entry.trial_id, entry.rung) for entry in entries).values()) == {1}


@pytest.mark.parametrize("point", RANK_POINTS)
async def test_a_rank_that_dies_around_a_stop_is_not_started_again_once_the_stop_is_decided(
    engine: Engine, point: str
) -> None:
    search = await after(engine, 0.9, variables={"FAULT": point})
    outcome, ticket = await search.run(1, 0.5)
    assert (outcome.state, outcome.failure) == ("stopped", None)
    trial = search.hook.store.trials.get(ticket.trial_id)
    # A question that never left the process is asked again by the next attempt. Any other one has its answer.
    again = int(point == "before the question")
    assert (trial.state, trial.attempts, trial.restarts) == ("stopped", 1 + again, again)
    assert search.told(ticket) == [(0, "stop")]
    assert (outcome.result["state"], outcome.result["rung"], outcome.result["metric"]) == ("stopped", 0, 0.5)
    has_saved = again or point == "after the checkpoint"
    assert steps(search, ticket)[-1] == (2 if has_saved else 1), "it ends with its latest checkpoint"
    each_rung_once(search)
    assert held(engine) == []


@pytest.mark.parametrize("point", RANK_POINTS)
async def test_a_rank_that_dies_around_a_decision_to_go_on_goes_on_and_is_told_the_same_again(
    engine: Engine, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    search = await after(engine, 0.1, variables={"FAULT": point})
    outcome, ticket = await search.run(1, 0.5)
    assert (outcome.state, outcome.failure) == ("completed", None)
    trial = search.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 1)
    assert search.told(ticket) == [(0, "continue"), (1, "continue"), (2, "complete")]
    assert outcome.result["rung"] == 2
    first = 2 if point == "after the checkpoint" else 1
    assert re.findall(r"\[rank 0\] from (\d+) with 0.5", caplog.text) == ["0", str(first)]
    first_asked = next(entry for entry in search.hook.store.searches.decisions(ticket.trial_id) if entry.rung == 0)
    assert first_asked.attempt == (2 if point == "before the question" else 1), "the first question counts"
    each_rung_once(search)


@pytest.mark.parametrize(("rival", "decision"), [(0.9, "stop"), (0.1, "continue")])
@pytest.mark.parametrize("point", FOLLOWER_POINTS)
async def test_a_follower_that_dies_around_the_answer_is_replaced_by_one_that_gives_it(
    engine: Engine, point: str, rival: float, decision: str
) -> None:
    search = await after(engine, rival)
    ticket = search.submit(1, 0.5)
    await dies_at(engine.hook, ticket, point)
    assert search.told(ticket) == [(0, decision)], "it died after the commit"
    outcome = await search.carry(ticket)
    assert (outcome.state, outcome.failure) == ("stopped" if decision == "stop" else "completed", None)
    assert search.hook.store.trials.get(ticket.trial_id).attempts == 1, "the ranks never noticed"
    assert steps(search, ticket)[-1] == (2 if decision == "stop" else 8)
    each_rung_once(search)


async def test_ranks_without_a_control_side_train_on_and_their_questions_are_answered_by_recovery(
    engine: Engine,
) -> None:
    """The ranks finish. The next follower finds their questions on the host, and the first answer is ``stop``."""
    search = await after(engine, 0.9, decision_timeout=1)
    ticket = search.submit(1, 0.5)
    await dies_at(engine.hook, ticket, "before the answer")
    store, run = engine.hook.store, run_folder(search, ticket)
    await eventually((run / "ended").exists)
    assert (run / "checkpoints" / "step-8").is_dir()
    a_minute_passes(engine)
    outcome = await search.carry(ticket)
    assert (outcome.state, outcome.result["rung"]) == ("stopped", 0)
    assert store.trials.get(ticket.trial_id).attempts == 1
    assert search.told(ticket) == [(0, "stop")], "what a stopped trial asks later counts nothing"


async def test_an_answer_after_decision_timeout_ends_the_ranks_at_a_later_boundary(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    search = await after(engine, 0.9, decision_timeout=0.5, variables={"HOLDS": "0.5"})
    ticket = search.submit(1, 0.5)
    await dies_at(engine.hook, ticket, "before the answer")
    log = run_folder(search, ticket) / "rank0" / "log"
    await eventually(lambda: "The searcher has not answered about rung 0 within 0.5 s" in log.read_text())
    outcome = await search.carry(ticket)
    assert (outcome.state, outcome.failure) == ("stopped", None)
    assert "[rank 0] ended at 3" in caplog.text
    assert steps(search, ticket)[-1] == 3
    assert search.told(ticket) == [(0, "stop")]


@pytest.mark.torch
@pytest.mark.parametrize("fault", ["", "before the broadcast"])
async def test_all_ranks_of_a_gang_leave_at_the_same_step_or_none_of_them_goes_on(engine: Engine, fault: str) -> None:
    document = search_config(variables={"FAULT": fault}, resources={"slots_per_trial": 2})
    document["entrypoint"] = "python rungs_together.py"
    search = Search(engine, document)
    outcome, ticket = await search.run(0, 0.9)
    assert (outcome.state, outcome.failure) == ("completed", None)
    outcome, ticket = await search.run(1, 0.5)
    assert (outcome.state, outcome.failure) == ("stopped", None)
    assert search.told(ticket) == [(0, "stop")]
    store = engine.hook.store
    assert store.trials.get(ticket.trial_id).attempts == 1
    run = run_folder(search, ticket)
    said = [re.findall(r"told (\d) (\w+)|left at (\d) (\w+)", (run / f"rank{k}" / "log").read_text()) for k in (0, 1)]
    ends = [] if fault else [("2", "stop", "", ""), ("", "", "2", "True")]
    assert said == [[("1", "continue", "", ""), *ends]] * 2
    assert held(engine) == []
