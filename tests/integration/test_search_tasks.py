"""Plan, trials and best trial of a search in a worker, on this machine: no scheduler, real ranks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_dtrain.assets import best_alias, best_asset
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from tests.support.search_tasks import GRID, RANDOM, Run, config, local_hook


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DtrainHook]:
    with local_hook(tmp_path, monkeypatch) as hook:
        yield hook


def test_a_grid_runs_and_its_best_trial_is_announced(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config())
    assert [spec["name"] for spec in plan] == ["0 | lr=0.1", "1 | lr=0.2", "2 | lr=0.3"]
    results = [run.trial(spec) for spec in plan]
    assert [result["metric"] for result in results] == [0.1, 0.2, 0.3]
    best = run.best(plan)
    assert {**best, "checkpoint": None} == {
        "experiment_id": results[2]["experiment_id"], "search_id": plan[0]["search_id"],
        "trial_id": results[2]["trial_id"], "number": 2, "metric": 0.3, "metrics": {"score": 0.3}, "checkpoint": None,
        "hparams": {"lr": 0.3}, "rung": None, "trials": {"completed": 3},
    }  # fmt: skip
    assert run.events.sent == [("dtrain-best-searched", "x-dtrain://searched/best", best)]
    assert run.best_task is not None
    assert run.best_task.outlets == [best_alias("searched")], "Airflow takes no events of other aliases"
    assert hook.store.experiments.get(best["experiment_id"]).state == "completed"


@pytest.mark.nightly
def test_only_what_beats_every_earlier_run_is_announced(hook: DtrainHook) -> None:
    said = []
    for run_id, score in (("first", 0.5), ("worse", 0.4), ("equal", 0.5), ("better", 0.6), ("other metric", 0.1)):
        says = "loss" if run_id == "other metric" else "score"
        searcher = {"name": "single", "metric": says, "smaller_is_better": says == "loss"}
        run = Run(run_id)
        plan = run.plan(config(searcher, says=says, score=score))
        run.trial(plan[0])
        run.best(plan)
        said.append(len(run.events.sent))
    assert said == [1, 0, 0, 1, 1]


@pytest.mark.nightly
def test_a_run_announces_the_same_best_once_unless_its_announcement_may_be_lost(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config())
    for spec in plan[:2]:
        run.trial(spec)
    run.best(plan)
    run.best(plan)
    assert [extra["metric"] for _, _, extra in run.events.sent] == [0.2, 0.2], "its worker may have died"
    run.trial(plan[0], max_tries=1)
    run.best(plan, max_tries=1)
    assert len(run.events.sent) == 2
    run.trial(plan[2])
    run.best(plan, max_tries=2)
    assert [extra["metric"] for _, _, extra in run.events.sent[2:]] == [0.3]


def test_failed_trials_do_not_sink_the_search(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config(fails={"type": "categorical", "vals": [True, False]}, lr=0.5))
    with pytest.raises(AirflowFailException, match="cannot go on with lr 0.5"):
        run.trial(plan[0])
    run.trial(plan[1])
    best = run.best(plan)
    assert (best["number"], best["trials"]) == (1, {"errored": 1, "completed": 1})


@pytest.mark.nightly
def test_a_search_of_failed_trials_fails_with_the_first_cause(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config(fails=True))
    for spec in plan[:2]:
        with pytest.raises(AirflowFailException):
            run.trial(spec)
    with pytest.raises(AirflowFailException, match=r"2 errored, 1 not started of 3.*cannot go on with lr 0\.1") as why:
        run.best(plan)
    assert "lr 0.2" not in str(why.value)
    assert run.events.sent == []
    assert hook.store.experiments.get(hook.store.searches.get(plan[0]["search_id"]).experiment_id).state == "errored"


def test_a_best_task_without_a_plan_says_so(hook: DtrainHook) -> None:
    with pytest.raises(AirflowFailException, match="the task that plans the trials has not succeeded"):
        Run().best(None)


def test_a_best_task_that_comes_too_early_says_what_to_do(hook: DtrainHook) -> None:
    run = Run()
    with pytest.raises(AirflowFailException, match="3 not started of 3"):
        run.best(run.plan(config()))


@pytest.mark.nightly
def test_a_metric_that_no_trial_reports_is_named_with_those_that_it_does(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config(says="loss"))
    with pytest.raises(AirflowFailException, match="score") as of_trial:
        run.trial(plan[0])
    with pytest.raises(AirflowFailException) as of_search:
        run.best(plan)
    assert str(of_trial.value) in str(of_search.value)
    alone = Run("alone")
    plan = alone.plan(config({**GRID, "name": "single"}, says="loss"))
    alone.trial(plan[0])
    with pytest.raises(AirflowFailException, match="reported 'score' in a validation; they reported: loss"):
        alone.best(plan)


@pytest.mark.nightly
def test_metrics_that_are_no_numbers_make_no_best_trial(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config(score="nan"))
    for spec in plan:
        run.trial(spec)
    with pytest.raises(AirflowFailException, match="reported NaN or an infinite value of 'score'"):
        run.best(plan)


def test_a_cleared_trial_runs_again_with_its_sample_and_seed(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config(RANDOM))
    first = [run.trial(spec) for spec in plan]
    again = run.trial(plan[1], max_tries=1)
    old, new = (hook.store.trials.get(one["trial_id"]) for one in (first[1], again))
    assert new.trial_id != old.trial_id
    assert (new.number, new.hparams, new.seed, new.search_id) == (old.number, old.hparams, old.seed, old.search_id)
    best = run.best(plan)
    assert best["trials"] == {"completed": 4}, "the older one is history"
    assert len(hook.store.trials.list(limit=None)) == 5


@pytest.mark.nightly
def test_a_cleared_plan_is_the_next_generation_with_the_same_seed(hook: DtrainHook) -> None:
    run = Run()
    first = run.plan(config(RANDOM))
    run.trial(first[0])
    second = run.plan(config(RANDOM), max_tries=1)
    before, after = (hook.store.searches.get(plan[0]["search_id"]) for plan in (first, second))
    assert (before.generation, after.generation) == (1, 2)
    assert before.experiment_id == after.experiment_id
    assert [spec["hparams"] for spec in first] == [spec["hparams"] for spec in second]
    documents = [hook.store.configs.get(one.config_id).document for one in (before, after)]
    assert [document["reproducibility"]["experiment_seed"] for document in documents] == [before.seed] * 2
    assert hook.store.searches.history(after.search_id) == []
    other = Run("other").plan(config(RANDOM))
    assert [spec["hparams"] for spec in other] != [spec["hparams"] for spec in first], "each run draws a seed"


def test_a_retried_plan_is_the_same_plan(hook: DtrainHook) -> None:
    run = Run()
    assert run.plan(config(RANDOM)) == run.plan(config(RANDOM))


def test_an_experiment_of_one_trial_needs_no_space(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan({**config({"name": "single"}), "hyperparameters": {"lr": 0.7}, "name": None})
    run.trial(plan[0])
    best = run.best(plan)
    assert (best["number"], best["metric"], best["hparams"]) == (0, None, {"lr": 0.7})
    assert run.events.sent == [], "without a metric nothing is better"


def test_two_experiments_of_one_dag_run_need_two_names(hook: DtrainHook) -> None:
    run = Run()
    run.plan(config())
    with pytest.raises(AirflowFailException, match="both plan an experiment 'searched'.*Set `name`"):
        run.plan(config(), task_id="second")
    plan = run.plan(config(), task_id="second", name="another")
    assert hook.store.searches.get(plan[0]["search_id"]).experiment == "another"


def test_the_plan_takes_what_a_render_task_has_stored(hook: DtrainHook) -> None:
    run = Run()
    task = RenderConfigOperator(task_id="config", config=config(RANDOM))
    stored = task.execute(run.context("config"))
    plan = run.plan(stored)
    assert hook.store.searches.get(plan[0]["search_id"]).config_id == stored["config_id"]


def test_a_single_task_refuses_a_search_that_nobody_has_planned(hook: DtrainHook) -> None:
    task = TrialOperator(task_id="train", config=config(), deferrable=False)
    with pytest.raises(AirflowFailException, match=r"searcher.name: grid has many trials.*experiment\(\)"):
        task.execute(Run().context("train"))


def test_a_single_trial_gets_the_sample_of_number_0(hook: DtrainHook) -> None:
    document = {**config({"name": "single", "metric": "score"}), "reproducibility": {"experiment_seed": 7}}
    task = TrialOperator(task_id="train", config=document, deferrable=False)
    result = task.execute(Run().context("train"))
    assert result is not None
    planned = Run("other").plan({**document, "searcher": {**RANDOM, "metric": "score"}})
    assert hook.store.trials.get(result["trial_id"]).hparams == planned[0]["hparams"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hyperparameters": {"lr": {"type": "log", "minval": -3, "maxval": -1}}}, "lr.count: missing; a grid"),
        ({"searcher": {**RANDOM, "max_trials": 0}}, "searcher.max_trials: 0"),
        ({"hyperparameters": {"lr": 0.1}}, "hyperparameters: constants only"),
        (
            {"searcher": {**RANDOM, "name": "adaptive_asha", "max_length": 16, "bracket_rungs": [4]}},
            "searcher.bracket_rungs: 4 rungs need at least 2^3 trials",
        ),
        ({"searcher": {**RANDOM, "max_trials": 1025}}, "searcher.max_trials: 1025 trials; Airflow maps at most 1024"),
    ],
)
def test_a_search_that_cannot_begin_fails_in_its_plan(hook: DtrainHook, change: dict[str, Any], words: str) -> None:
    # Errors of a document by itself are found when the DAG file is read.
    with pytest.raises((ConfigError, AirflowFailException)) as why:
        Run().plan({**config(), **change})
    assert words in str(why.value)
    assert hook.store.experiments.list() == [], "nothing has begun"


def test_a_killed_experiment_has_no_best_trial_although_some_completed(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 2}))
    run.trial(plan[0])
    (view,) = hook.store.experiments.list()
    hook.store.experiments.kill(view.experiment_id, "ann")
    with pytest.raises(AirflowFailException, match="killed by ann"):
        run.trial(plan[1])
    with pytest.raises(AirflowFailException, match=r"killed by ann\. Trials of 'searched': 1 completed, 1 killed"):
        run.best(plan)
    assert hook.store.experiments.get(view.experiment_id).state == "killed"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("package", "searcher"),
    [
        ("optuna", {"name": "optuna"}),
        ("scipy", {"name": "async_halving", "sampler": "gp", "num_rungs": 1, "max_length": {"batches": 2}}),
    ],
)
def test_a_trial_that_others_inform_draws_when_it_starts_and_its_name_is_complete_then(
    hook: DtrainHook, package: str, searcher: dict[str, Any]
) -> None:
    pytest.importorskip(package)
    run = Run()
    plan = run.plan(config({**RANDOM, **searcher, "max_trials": 2}))
    assert [spec["hparams"] for spec in plan] == [None, None]
    task = TrialOperator(task_id="trial", trial=plan[1], deferrable=False)
    assert task.map_index_name == "1 | not drawn yet"
    result = task.execute(run.context("trial", 1))
    assert result is not None
    drawn = hook.store.trials.get(result["trial_id"])
    assert drawn.is_drawn
    score = result["metrics"]["score"]
    assert task.map_index_name == f"1 | lr={drawn.hparams['lr']:.3g} -> score {score:.3g}"


@pytest.mark.nightly
def test_a_cleared_trial_of_optuna_runs_again_with_what_it_drew(hook: DtrainHook) -> None:
    pytest.importorskip("optuna")
    run = Run()
    plan = run.plan(config({**RANDOM, "name": "optuna"}))
    first = [run.trial(spec) for spec in plan]
    again = run.trial(plan[1], max_tries=1)
    old, new = (hook.store.trials.get(one["trial_id"]) for one in (first[1], again))
    assert new.trial_id != old.trial_id
    assert (new.number, new.hparams, new.seed, new.draw) == (old.number, old.hparams, old.seed, old.draw)


@pytest.mark.nightly
def test_the_event_of_a_deferred_trial_brings_its_name(hook: DtrainHook, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("airflow_provider_dtrain.triggers.trial.EARLIEST_EVENT_S", 0.0)
    run = Run()
    plan = run.plan(config({**RANDOM, "name": "optuna", "max_trials": 2}))
    # The first one runs in its worker.
    TrialOperator(task_id="trial", trial=plan[0], deferrable=True).execute(run.context("trial", 0))
    task, last = (TrialOperator(task_id="trial", trial=plan[1], deferrable=True) for _ in range(2))
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(run.context("trial", 1))

    async def fired() -> Any:
        return [event.payload async for event in deferred.value.trigger.run()]

    [event] = asyncio.run(fired())
    monkeypatch.setattr(DtrainHook, "store", property(lambda _: pytest.fail("the worker that ends a trial asks")))
    result = last.execute_complete(run.context("trial", 1), json.loads(json.dumps(event)))
    assert result is not None
    assert result["state"] == "completed"
    assert last.map_index_name.startswith("1 | lr=0.")


def test_the_mapped_trial_that_is_submitted_first_starts_in_its_worker_and_its_links_do_not_delay_it(
    hook: DtrainHook,
) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 2}))
    later, first = (TrialOperator(task_id="trial", trial=trial, deferrable=True) for trial in plan)
    stored: dict[str, str] = {}
    context = run.context("trial", 1)
    context["ti"].xcom_push = lambda key, value: stored.update({key: hook.store.trials.list()[0].state})
    result = first.execute(context)
    assert result is not None
    assert result["state"] == "completed"
    assert set(stored) == {"_link_TrialLink", "_link_ExperimentLink"}
    assert set(stored.values()) <= {"running", "completed"}
    with pytest.raises(TaskDeferred):
        later.execute(run.context("trial", 0))


def test_an_asset_of_any_name_has_an_address() -> None:
    assert best_asset("a b/c").uri == "x-dtrain://a%20b%2Fc/best"
