"""Several trials in one task, on this machine: no scheduler, real ranks."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_dtrain.engine.attempt import runner
from airflow_provider_dtrain.errors import HostRefusedError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.triggers.trial import TrialTrigger
from tests.support.engines import processes
from tests.support.search_tasks import GRID, RANDOM, Run, config, local_hook
from tests.support.searches import search_config

DEADLINE_S = 120.0


class Events(BaseNotifier):
    """Notifier that keeps the title of each event."""

    template_fields = ()
    sent: ClassVar[list[str]] = []

    def notify(self, context: Any) -> None:
        self.sent.append(f"{context['dtrain']['event']}: {context['dtrain']['title']}")


class Lines:
    """Logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, level: str) -> Any:
        return lambda text, *args: self.lines.extend((text % args).split("\n"))


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DtrainHook]:
    monkeypatch.setattr("airflow_provider_dtrain.triggers.trial.EARLIEST_EVENT_S", 0.0)
    with local_hook(tmp_path, monkeypatch) as hook:
        yield hook


def operator(planned: dict[str, Any], **options: Any) -> TrialOperator:
    return TrialOperator(task_id="trial", trial=planned, **{"deferrable": False, **options})


def executed(run: Run, planned: dict[str, Any], *, max_tries: int = 0, **options: Any) -> Any:
    return operator(planned, **options).execute(run.context("trial", 0, max_tries))


def deferred(run: Run, planned: dict[str, Any], *, max_tries: int = 0) -> TrialTrigger:
    """Return the trigger of a task, as Airflow's database returns it."""
    with pytest.raises(TaskDeferred) as found:
        executed(run, planned, max_tries=max_tries, deferrable=True)
    _, arguments = found.value.trigger.serialize()
    return TrialTrigger(**json.loads(json.dumps(arguments)))


@asynccontextmanager
async def running(trigger: TrialTrigger) -> AsyncIterator[asyncio.Future[list[Any]]]:
    """Run a trigger, and cancel it at the end as Airflow does."""

    async def events() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    work = asyncio.ensure_future(events())
    try:
        yield work
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def until(condition: Callable[[], Any], work: asyncio.Future[Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):
            assert not work.done(), work.result()
            await asyncio.sleep(0.1)


def states(hook: DtrainHook) -> dict[int, list[str]]:
    """Return number -> states of its trials, oldest first."""
    found: dict[int, list[str]] = {}
    for trial in reversed(hook.store.trials.list(limit=None)):
        found.setdefault(trial.number, []).append(str(trial.state))
    return dict(sorted(found.items()))


def trained(hook: DtrainHook) -> Callable[[], bool]:
    """Return a condition: both slots of this machine have a trial that has reported."""
    return lambda: sum(
        bool(hook.store.metrics.of_trial(trial.trial_id, "validation"))
        for trial in hook.store.trials.list(limit=None)
        if trial.state == "running"
    ) == 2  # fmt: skip


def test_the_trials_of_a_task_have_one_log_and_each_has_a_result(
    hook: DtrainHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, log = Run(), Lines()
    plan = run.plan(config({**RANDOM, "trials_per_task": 3}))
    assert [spec["name"] for spec in plan] == ["trials 0 to 2", "trial 3"]
    with monkeypatch.context() as patch:
        patch.setattr(TrialOperator, "log", log)
        first = executed(run, plan[0])
    last = operator(plan[1]).execute(run.context("trial", 1))
    assert last is not None
    results = [*first["trials"], *last["trials"]]  # type: ignore[typeddict-item]
    assert [hook.store.trials.get(result["trial_id"]).number for result in results] == [0, 1, 2, 3]
    assert {result["state"] for result in results} == {"completed"}
    best = run.best(plan)
    assert best["metric"] == max(result["metric"] for result in results)
    assert best["trials"] == {"completed": 4}
    for result in first["trials"]:
        number = result["trial_id"]
        own = [line for line in log.lines if line.startswith(f"[trial {number}] ")]
        assert "Granted: slots of local" in " ".join(own)
        assert own[0].startswith(f"[trial {number}] --- {hook.store.trials.get(number).number} | lr=")
        assert re.search(r"-> score 0\.\d+ ---$", own[-1])
        assert [line for line in own if re.search(rf"trial (?!{number}\b)\d", line)] == [], "lines of another trial"


def test_one_that_fails_leaves_its_siblings_alone_and_a_clear_repeats_it_alone(
    hook: DtrainHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Events, "sent", [])
    run = Run()
    fails = {"type": "categorical", "vals": [False, True, 0]}
    plan = run.plan(config({**GRID, "trials_per_task": 3}, fails=fails, lr=0.5))
    task = operator(plan[0], notify={"trial_failed": Events()})
    with pytest.raises(AirflowFailException) as why:
        task.execute(run.context("trial", 0))
    assert re.match(r"1 of 3 trials failed: trial \d+ \(1 \| fails=true\): ValueError: cannot go on", str(why.value))
    assert task.map_index_name == "trials 0 to 2 -> 2 completed, 1 errored"
    assert states(hook) == {0: ["completed"], 1: ["errored"], 2: ["completed"]}
    (sent,) = Events.sent
    assert re.match(r"trial_failed: Trial \d+ of searched failed: ValueError: cannot go on", sent)
    before = {trial.number: trial.trial_id for trial in hook.store.trials.list(limit=None)}
    with pytest.raises(AirflowFailException):
        executed(run, plan[0])
    assert states(hook) == {0: ["completed"], 1: ["errored"], 2: ["completed"]}, "the code fails without a retry"
    with pytest.raises(AirflowFailException):
        executed(run, plan[0], max_tries=1)
    assert states(hook) == {0: ["completed"], 1: ["errored", "errored"], 2: ["completed"]}
    best = run.best(plan)
    assert (best["trial_id"] in (before[0], before[2]), best["trials"]) == (True, {"completed": 2, "errored": 1})


@pytest.mark.nightly
def test_a_clear_of_a_task_with_results_runs_nothing(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 2, "trials_per_task": 2}))
    assert executed(run, plan[0]) == executed(run, plan[0], max_tries=1)
    assert states(hook) == {0: ["completed"], 1: ["completed"]}


@pytest.mark.nightly
async def test_a_retry_continues_only_what_a_host_has_failed(hook: DtrainHook, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, refused = runner.launch, [1]

    async def refuses(rt: Any, view: Any) -> None:
        if view.trial_number in refused:
            raise HostRefusedError("local", "The disk is full.", code="no_space")
        await launch(rt, view)

    monkeypatch.setattr(runner, "launch", refuses)
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 2, "trials_per_task": 2}))
    first = deferred(run, plan[0])
    async with running(first) as work:
        [event] = await asyncio.wait_for(work, DEADLINE_S)
    with pytest.raises(HostRefusedError, match=r"^1 of 2 trials failed: trial \d+ \(1 \| lr=.*\): .*disk is full"):
        operator(plan[0]).execute_complete(run.context("trial", 0), event)
    before = {trial.number: trial for trial in hook.store.trials.list(limit=None)}
    assert [before[number].state for number in (0, 1)] == ["completed", "errored"]
    refused.clear()
    again = deferred(run, plan[0])
    assert again.trial_ids == first.trial_ids
    async with running(again) as work:
        [event] = await asyncio.wait_for(work, DEADLINE_S)
    result = operator(plan[0]).execute_complete(run.context("trial", 0), event)
    assert [one["state"] for one in result["trials"]] == ["completed"] * 2  # type: ignore[index, typeddict-item]
    after = {trial.number: trial for trial in hook.store.trials.list(limit=None)}
    assert after[0] == before[0], "the one with a result was left alone"


@pytest.mark.nightly
async def test_a_kill_of_one_trial_leaves_its_siblings_alone(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 2, "trials_per_task": 2}, says="score waits"))
    trigger = deferred(run, plan[0])
    async with running(trigger) as work:
        await until(trained(hook), work)
        first, second = trigger.trial_ids
        hook.store.control.kill(first, "ann")
        await until(lambda: hook.store.trials.get(first).state == "killed", work)
        assert hook.store.trials.get(second).state == "running"
        hook.store.control.stop(second, "ann")
        [event] = await asyncio.wait_for(work, DEADLINE_S)
    ends = [end["outcome"]["state"] for end in event["trials"]]
    assert ends == ["killed", "stopped"]
    with pytest.raises(AirflowFailException, match=r"1 of 2 trials failed: trial \d+ \(0 \| lr=.*\): .*killed by ann"):
        operator(plan[0]).execute_complete(run.context("trial", 0), event)
    again = deferred(run, plan[0], max_tries=1)
    assert again.trial_ids[0] not in (first, second)
    assert again.trial_ids[1] == second, "it has a result"


@pytest.mark.parametrize("moved", [False, True])
async def test_the_end_of_the_task_in_airflow_kills_all_of_its_trials(
    hook: DtrainHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moved: bool
) -> None:
    async def is_deferred(_: object) -> bool:
        return moved

    monkeypatch.setattr("airflow_provider_dtrain.triggers.trial.is_deferred", is_deferred)
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 3, "trials_per_task": 3}, says="score waits"))
    trigger = deferred(run, plan[0])
    async with running(trigger) as work:
        await until(trained(hook), work)
    await trigger.on_kill()
    if moved:
        assert len(processes("searched.py", tmp_path)) >= 2
        next_one = deferred(run, plan[0])
        monkeypatch.setattr("airflow_provider_dtrain.triggers.trial.is_deferred", lambda _: asyncio.sleep(0, False))
        await next_one.on_kill()
    assert states(hook) == {0: ["killed"], 1: ["killed"], 2: ["killed"]}
    assert processes("searched.py", tmp_path) == []


@pytest.mark.nightly
async def test_the_next_triggerer_continues_all_trials(hook: DtrainHook, tmp_path: Path) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 3, "trials_per_task": 3}, says="score waits"))
    trigger = deferred(run, plan[0])
    async with running(trigger) as work:
        await until(trained(hook), work)
        first = next(trial for trial in hook.store.trials.list(limit=None) if trial.state == "running")
        hook.store.control.stop(first.trial_id, "ann")
        await until(lambda: hook.store.trials.get(first.trial_id).state == "stopped", work)
        await until(trained(hook), work)
    pids = {process.pid for process in processes("searched.py", tmp_path)}
    _, arguments = trigger.serialize()
    async with running(TrialTrigger(**arguments)) as work:
        others = [trial_id for trial_id in trigger.trial_ids if trial_id != first.trial_id]
        await until(lambda: all("triggerer" in (_view(hook, one).watcher or "") for one in others), work)
        assert {process.pid for process in processes("searched.py", tmp_path)} == pids, "the ranks go on"
        for trial_id in others:
            hook.store.control.stop(trial_id, "ann")
        [event] = await asyncio.wait_for(work, DEADLINE_S)
    result = operator(plan[0]).execute_complete(run.context("trial", 0), event)
    assert [one["state"] for one in result["trials"]] == ["stopped"] * 3  # type: ignore[index, typeddict-item]


def _view(hook: DtrainHook, trial_id: int) -> Any:
    return hook.store.attempts.get(hook.store.trials.get(trial_id).attempt_id)


@pytest.mark.nightly
def test_at_most_max_concurrent_trials_of_a_task_run_at_a_time(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 3, "trials_per_task": 3, "max_concurrent_trials": 1}))
    executed(run, plan[0])
    assert_one_after_the_other(hook)


def assert_one_after_the_other(hook: DtrainHook) -> None:
    """Assert that each trial got slots after the one before it had reported."""
    trials = [trial.trial_id for trial in reversed(hook.store.trials.list(limit=None))]
    granted = sorted(_view(hook, trial_id).granted_at for trial_id in trials)
    reported = sorted(hook.store.metrics.of_trial(trial_id, "validation")[0].at for trial_id in trials)
    assert all(before < after for before, after in zip(reported, granted[1:], strict=False))


@pytest.mark.nightly
def test_asha_stops_trials_of_a_task_early(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(search_config(searcher={"max_trials": 6, "trials_per_task": 6}))
    result = executed(run, plan[0])
    ends = {one["trial_id"]: one["state"] for one in result["trials"]}
    assert set(ends.values()) == {"completed", "stopped"}, "a stopped trial is a success"
    decisions = {trial_id: hook.store.searches.decisions(trial_id)[-1].decision for trial_id in ends}
    assert decisions == {one: "stop" if state == "stopped" else "complete" for one, state in ends.items()}
    assert run.best(plan)["trials"] == Counter(ends.values())


@pytest.mark.nightly
def test_optuna_draws_for_a_later_trial_of_the_task_from_the_results_of_earlier_ones(hook: DtrainHook) -> None:
    pytest.importorskip("optuna")
    run = Run()
    searcher = {**RANDOM, "name": "optuna", "max_trials": 2, "trials_per_task": 2, "max_concurrent_trials": 1}
    plan = run.plan(config(searcher))
    assert [spec["hparams"] for spec in plan[0]["trials"]] == [None, None]
    executed(run, plan[0])
    first, second = reversed(hook.store.trials.list(limit=None))
    assert first.is_drawn
    assert second.is_drawn
    assert_one_after_the_other(hook)
    assert first.hparams != second.hparams


def test_a_task_has_no_more_trials_than_its_search_whatever_its_xcom(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "max_trials": 2, "trials_per_task": 2}))
    changed = {**plan[0], "trials": plan[0]["trials"] * 2}
    with pytest.raises(AirflowFailException, match=r"trial\.trials: 4 trials, and the search has 2"):
        executed(run, changed)
    assert hook.store.trials.list(limit=None) == []


def test_a_held_gang_is_for_one_trial_at_a_time(hook: DtrainHook) -> None:
    run = Run()
    plan = run.plan(config({**RANDOM, "trials_per_task": 2}))
    allocation = {"allocation_id": 1, "token": 1, "slots": {"local": [0]}}
    with pytest.raises(AirflowFailException, match=r"searcher\.trials_per_task: must be 1 for trials on a held gang"):
        executed(run, plan[0], allocation=allocation)
    assert hook.store.trials.list(limit=None) == []
