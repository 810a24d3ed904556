"""Trials of a search in the engine: their draws, checkpoints and results. Real ranks, no torch."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from typing import Any

import pytest

from airflow_provider_dtrain.core.hyperparameters.space import sample
from airflow_provider_dtrain.core.lifecycle.watchdog import RankReport, judge
from airflow_provider_dtrain.engine.attempt import decision_delivery, runner
from airflow_provider_dtrain.engine.attempt.job import load_job
from airflow_provider_dtrain.engine.upkeep.orphaned_trials import carry_out
from airflow_provider_dtrain.store.records.trials import AttemptView, Ticket
from airflow_provider_dtrain.store.store import Store
from tests.support.counting import a_minute_passes, eventually, preempt, until
from tests.support.engines import Engine, held
from tests.support.searches import SPACE, Search, search_config

pytestmark = pytest.mark.usefixtures("quick_looks", "searchers_run")

DEADLINE_S = 180.0
RANDOM = {"name": "random", "metric": "quality", "max_trials": 4, "max_length": {"batches": 8}}


def random_config(last: int = 4, **more: Any) -> dict[str, Any]:
    return {**search_config(last, **more), "searcher": RANDOM}


def endless(**more: Any) -> dict[str, Any]:
    """Trials that reach their first rung soon and their second one never."""
    return search_config(100_000, searcher={"max_length": {"batches": 5_000_000}, "divisor": 2000}, **more)


async def beyond_rung_0(search: Search, ticket: Ticket) -> asyncio.Future[Any]:
    """Follow a trial until it has its first decision and has continued."""
    carrying = asyncio.ensure_future(search.carry(ticket))
    store = search.hook.store

    def has_gone_on() -> bool:
        assert not carrying.done(), carrying.result()
        return (
            bool(search.told(ticket))
            and max((c.step for c in store.checkpoints.of_trial(ticket.trial_id)), default=0) > 2
        )

    await asyncio.wait_for(eventually(has_gone_on), DEADLINE_S)
    return carrying


@pytest.mark.nightly("paused")
@pytest.mark.parametrize("way", ["preempted", "paused"])
async def test_a_trial_that_gives_its_gang_back_keeps_its_rungs(
    engine: Engine, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # Its rungs are 1, 2500 and 5000000.
    search, store = Search(engine, endless()), engine.hook.store
    ticket = search.submit(0, 0.5)
    carrying = await beyond_rung_0(search, ticket)
    before = store.searches.rung_entries(search.search_id)
    if way == "preempted":
        preempt(engine, ticket)
    else:
        store.control.pause(ticket.trial_id, by="ann")
        await until(lambda: store.trials.get(ticket.trial_id).state == "paused", carrying)
        assert store.searches.rung_entries(search.search_id) == before
        store.control.activate(ticket.trial_id, by="ann")
    await until(lambda: len(re.findall(r"\[rank 0\] from \d+ with", caplog.text)) == 2, carrying)
    await until(lambda: store.attempts.get(store.trials.get(ticket.trial_id).attempt_id).state == "running", carrying)

    def questions() -> list[Any]:
        current = store.trials.get(ticket.trial_id).attempt_id
        return store.events.of_attempt(current, kinds=["rung"])

    await until(questions, carrying)
    assert [event.body["rung"] for event in questions()] == [0], "it asks again, and the answer is the stored one"
    assert store.searches.rung_entries(search.search_id) == before
    assert store.trials.get(ticket.trial_id).restarts == 0
    store.control.kill(ticket.trial_id, by="ann")
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome.state == "killed"
    entries = [entry for entry in store.searches.rung_entries(search.search_id) if not entry.is_error]
    assert entries == before


@pytest.mark.nightly
async def test_a_trial_that_is_stopped_while_it_is_preempted_ends_there(engine: Engine) -> None:
    """The decision and a preemption request arrive at the same time: the trial is not launched again."""
    search, store = Search(engine, search_config()), engine.hook.store
    await search.run(0, 0.9)
    ticket = search.submit(1, 0.5)
    carrying = asyncio.ensure_future(search.carry(ticket))
    await until(lambda: store.attempts.get(ticket.attempt_id).state == "running", carrying)
    preempt(engine, ticket)
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    trial = store.trials.get(ticket.trial_id)
    assert outcome.state == "stopped"
    assert search.told(ticket) == [(0, "stop")]
    assert trial.attempts <= 2, "it may have left before its first rung"
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_program_that_ignores_the_stop_is_ended_after_preemption_timeout(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    document = search_config(100_000, preemption_timeout=2, variables={"IGNORES": "0.5"})
    search = Search(engine, document)
    await search.run(0, 0.9)
    outcome, _ = await search.run(1, 0.5)
    assert (outcome.state, outcome.failure) == ("stopped", None)
    assert "its ranks still run after preemption_timeout" in caplog.text
    assert held(engine) == []


# -- hyperparameters -----------------------------------------------------------------------------
@pytest.mark.nightly
async def test_refused_hyperparameters_are_drawn_again_in_the_same_trial_and_cost_no_restart(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    draws = [sample(SPACE, experiment_seed=7, trial=1, draw=k)["quality"] for k in range(21)]
    least = sorted(draws[:4])[-1]
    search = Search(engine, random_config(max_restarts=0, variables={"REFUSES": repr(least)}))
    outcome, ticket = await search.run(1)
    assert (outcome.state, outcome.failure) == ("completed", None)
    trial, accepted = search.hook.store.trials.get(ticket.trial_id), draws.index(least)
    assert (trial.draw, trial.attempts, trial.restarts) == (accepted, accepted + 1, 0)
    assert trial.hparams == {"quality": least}
    assert re.findall(r"\[rank 0\] from 0 with ([\d.]+)", caplog.text) == [str(draw) for draw in draws[: accepted + 1]]
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_sample_that_was_refused_before_is_passed_over(engine: Engine) -> None:
    space = {"quality": {"type": "categorical", "vals": [0.1, 0.9]}}
    draws = [[sample(space, experiment_seed=7, trial=n, draw=k)["quality"] for k in range(3)] for n in range(40)]
    number = next(n for n, found in enumerate(draws) if found == [0.1, 0.1, 0.9])
    found = []
    for least, run_id in (("0.5", "one is accepted"), ("2", "none is accepted")):
        document = random_config(max_restarts=0, variables={"REFUSES": least})
        document = {**document, "hyperparameters": space, "searcher": {**RANDOM, "max_trials": 40}}
        outcome, ticket = await Search(engine, document, run_id=run_id).run(number)
        trial = engine.hook.store.trials.get(ticket.trial_id)
        found.append((outcome.state, trial.draw, trial.attempts, trial.hparams["quality"]))
    assert found == [("completed", 2, 2, 0.9), ("errored", 2, 2, 0.9)]


@pytest.mark.nightly
async def test_what_refused_hyperparameters_reached_is_no_result_of_the_trial(engine: Engine) -> None:
    """With the metric turned around, the refused sample is the better one."""
    draws = [[sample(SPACE, experiment_seed=7, trial=n, draw=k)["quality"] for k in range(2)] for n in range(8)]
    number = next(n for n, (first, second) in enumerate(draws) if first < second)
    refused, accepted = draws[number]
    variables = {"REFUSES": repr(accepted), "REFUSES_AT": "1"}
    document = search_config(searcher={"smaller_is_better": True}, max_restarts=0, variables=variables)
    search = Search(engine, document)
    outcome, ticket = await search.run(number)
    trial = search.hook.store.trials.get(ticket.trial_id)
    reported = [row.metrics["quality"] for row in search.hook.store.metrics.of_trial(ticket.trial_id, "validation")]
    assert (outcome.state, refused in reported) == ("completed", True)
    assert (trial.hparams["quality"], trial.best_metric, outcome.result["metric"]) == (accepted,) * 3
    entries = search.hook.store.searches.rung_entries(search.search_id)
    assert [(entry.rung, entry.metric, entry.attempt) for entry in entries] == [(n, accepted, 2) for n in range(3)]


@pytest.mark.nightly
async def test_a_trial_whose_every_sample_is_refused_fails_by_name(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.restarts.MOST_DRAWS", 2)
    search = Search(engine, random_config(variables={"REFUSES": "2"}))
    outcome, ticket = await search.run(0)
    assert (outcome.state, outcome.failure.error) == ("errored", "InvalidHPError")
    trial = search.hook.store.trials.get(ticket.trial_id)
    assert (trial.draw, trial.attempts, trial.restarts) == (2, 3, 0)


@pytest.mark.nightly
async def test_a_point_of_a_grid_that_is_refused_fails(engine: Engine) -> None:
    grid = {**random_config(variables={"REFUSES": "2"}), "searcher": {"name": "grid", "metric": "quality"}}
    grid["hyperparameters"] = {"quality": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 2}}
    outcome, ticket = await Search(engine, grid).run(0)
    assert (outcome.state, outcome.failure.error) == ("errored", "InvalidHPError")
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 1


@pytest.mark.nightly
async def test_checkpoints_of_refused_hyperparameters_are_no_start_for_others(engine: Engine) -> None:
    """The script saves before it rejects. Its checkpoint may not fit the next model."""
    draws = [[sample(SPACE, experiment_seed=7, trial=n, draw=k)["quality"] for k in range(2)] for n in range(4)]
    number = next(n for n, (first, second) in enumerate(draws) if first < second)
    search = Search(engine, random_config(100_000, variables={"REFUSES": repr(draws[number][1])}))
    store, ticket = engine.hook.store, search.submit(number)
    carrying = asyncio.ensure_future(search.carry(ticket))
    await until(lambda: store.trials.get(ticket.trial_id).draw > 0, carrying)
    refused = [one for one in store.attempts.of_trial(ticket.trial_id) if one.failure]
    await until(lambda: len(store.checkpoints.of_trial(ticket.trial_id)) > 2, carrying)
    assert any(c.attempt == refused[0].number for c in store.checkpoints.of_trial(ticket.trial_id)), "it had saved one"
    view = store.attempts.get(store.trials.get(ticket.trial_id).attempt_id)
    assert load_job(store, view, engine.hook.settings).checkpoint_source is None
    same = load_job(store, dataclasses.replace(view, draw=0), engine.hook.settings)
    assert same.checkpoint_source is not None, "with the same hyperparameters it would go on from there"
    store.control.kill(ticket.trial_id, by="ann")
    await asyncio.wait_for(carrying, DEADLINE_S)


@pytest.mark.nightly
async def test_a_slot_of_optuna_draws_when_it_starts_from_what_has_ended_by_then(engine: Engine) -> None:
    pytest.importorskip("optuna")
    search = Search(engine, {**random_config(), "searcher": {**RANDOM, "name": "optuna"}})
    assert [spec["hparams"] for spec in search.specs] == [None] * 4
    ticket = search.submit(0)
    assert not engine.hook.store.trials.get(ticket.trial_id).is_drawn
    outcome = await search.carry(ticket)
    assert outcome.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert trial.is_drawn
    assert 0.0 <= trial.hparams["quality"] <= 1.0
    assert outcome.result["metric"] == trial.hparams["quality"]


async def test_trials_that_start_together_draw_one_after_the_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(engine, search_config(1, searcher={"sampler": "gp"}))
    store, draws = engine.hook.store, []

    def slowly(_store: Store, view: AttemptView, draw: int) -> dict[str, float]:
        before = sum(row.is_drawn for row in store.searches.history(search.search_id))
        time.sleep(0.3)
        draws.append(before)
        return {"quality": 0.5}

    monkeypatch.setattr(runner, "drawn", slowly)
    tickets = [search.submit(number) for number in (0, 1)]
    await asyncio.gather(*(search.carry(ticket) for ticket in tickets))
    assert draws == [0, 1]


# -- stops by a user --------------------------------------------------------------------------
@pytest.mark.nightly
async def test_a_trial_that_a_person_stops_writes_a_checkpoint_and_ends_as_stopped(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    search, store = Search(engine, endless()), engine.hook.store
    ticket = search.submit(0, 0.5)
    carrying = await beyond_rung_0(search, ticket)
    store.control.stop(ticket.trial_id, "ann")
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert (outcome.state, outcome.failure) == ("stopped", None)
    assert (outcome.result["rung"], outcome.result["metric"]) == (0, 0.5)
    (stopped,) = re.findall(r"\[rank 0\] stopped at (\d+)", caplog.text)
    assert max(c.step for c in store.checkpoints.of_trial(ticket.trial_id)) == int(stopped)
    assert store.trials.get(ticket.trial_id).attempts == 1
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_waiting_trial_that_a_person_stops_ends_at_once(engine: Engine) -> None:
    search, store = Search(engine, endless(resources={"slots_per_trial": 2})), engine.hook.store
    first, second = search.submit(0, 0.5), search.submit(1, 0.6)
    carrying = await beyond_rung_0(search, first)
    waiting = asyncio.ensure_future(search.carry(second))
    await until(lambda: store.attempts.get(second.attempt_id).reason, waiting)
    store.control.stop(second.trial_id, "ann")
    outcome = await asyncio.wait_for(waiting, DEADLINE_S)
    assert (outcome.state, outcome.failure) == ("stopped", None)
    assert store.attempts.get(second.attempt_id).started_at is None
    assert not carrying.done()
    store.control.stop(first.trial_id, "ann")
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome.state == "stopped"
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_command_stops_a_trial_that_nobody_follows(engine: Engine) -> None:
    search, store = Search(engine, endless()), engine.hook.store
    ticket = search.submit(0, 0.5)
    carrying = await beyond_rung_0(search, ticket)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    store.control.stop(ticket.trial_id, "ann")
    assert await asyncio.to_thread(carry_out, engine.hook, [ticket.trial_id]) == [], "it was followed just now"
    a_minute_passes(engine)
    assert await asyncio.to_thread(carry_out, engine.hook, [ticket.trial_id]) == [ticket.trial_id]
    assert store.trials.get(ticket.trial_id).state == "stopped"
    assert held(engine) == []


# -- parts ---------------------------------------------------------------------------------------
def test_the_watchdog_names_nobody_while_rank_0_waits_for_the_searcher() -> None:
    """This holds only for a declared wait. At any other place the same gang has a culprit."""
    same = {"host": "a", "steps": 4, "started": True, "silent_s": 0.5, "still_s": 25.0, "idle_s": 25.0}
    others = [RankReport(rank=rank, phase="exchange", what="an exchange of metrics", **same) for rank in (1, 2)]
    waits = RankReport(rank=0, phase="wait", what="the searcher's decision", **same)
    assert judge([waits, *others]).behind == ()
    computes = RankReport(rank=0, phase="compute", what="its training loop", **same)
    assert [one.report.rank for one in judge([computes, *others]).behind] == [0]


@pytest.mark.parametrize(("decisions", "end"), [
    (["continue", "stop"], "stop"), (["continue", "continue"], None), (["complete"], "complete"), ([], None),
    ([None], None),
])  # fmt: skip
def test_the_last_decision_says_how_a_trial_ends(decisions: list[Any], end: str | None) -> None:
    from datetime import UTC, datetime

    from airflow_provider_dtrain.store.records.searches import RungEntry

    entries = [
        RungEntry(trial_id=1, trial_number=0, bracket=0, rung=rung, units=1, metric=None, decision=decision,
                  is_error=decision is None, attempt=1, at=datetime.now(UTC))
        for rung, decision in enumerate(decisions)
    ]  # fmt: skip
    assert decision_delivery.final(entries) == end


@pytest.mark.nightly
async def test_a_program_without_the_library_takes_part_in_asha(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    document = {**search_config(), "entrypoint": "python plain_metrics.py 8"}
    search = Search(engine, document)
    (best, first), (_, second) = [await search.run(number, quality) for number, quality in ((0, 0.9), (1, 0.1))]
    assert [rung for rung, _ in search.told(first)] == [0, 1, 2]
    assert search.told(second) == [(0, "stop")]
    assert engine.hook.store.trials.get(second.trial_id).state == "stopped"
    assert "DTRAIN_METRICS: Line 1 is ignored: it must be JSON" in caplog.text
