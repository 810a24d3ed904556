"""Task logs of real ranks under Airflow's own triggerer, whose processes are killed, stopped and replaced.

``DTRAIN_TEST_REPEATS`` repeats each fault.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.store.store import Store
from testbed import task_logs
from testbed.log_scene import LINES, LogScene

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.airflow]

REPEATS = range(int(os.environ.get("DTRAIN_TEST_REPEATS", "1")))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogScene]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("scene")
        patch.setenv("HOME", str(folder))
        scene = LogScene(folder)
        yield scene
        scene.close()


@pytest.fixture
def trials(scene: LogScene) -> Iterator[list[int]]:
    yield scene.submit()
    scene.triggerers.kill()


@pytest.fixture(params=REPEATS)
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def test_a_log_without_a_fault_is_there_once_and_in_order(scene: LogScene, trials: list[int]) -> None:
    scene.start(trials)
    scene.fired(trials)
    assert scene.lost(trials) == []
    for trial_id in trials:
        shown = scene.shown(trial_id)
        assert (shown.marks, shown.repeated) == ({}, 0)
        (numbers,) = shown.lines.values()
        assert list(numbers) == list(range(LINES))


@pytest.mark.each_change("0-triggerer")
@pytest.mark.parametrize("parent", [True, False], ids=["triggerer", "runner"])
def test_a_killed_triggerer_loses_no_line(
    scene: LogScene, trials: list[int], dice: random.Random, parent: bool
) -> None:
    first = scene.start(trials)
    scene.writing(trials, dice)
    first.signal(signal.SIGKILL, parent=parent)
    scene.start(trials)
    scene.fired(trials)
    assert scene.lost(trials) == []


def test_a_stopped_triggerer_that_wakes_up_beside_another_one_loses_no_line(
    scene: LogScene, trials: list[int], dice: random.Random
) -> None:
    first = scene.start(trials)
    scene.writing(trials, dice)
    scene.stop([first])
    scene.start(trials)
    scene.writing(trials, dice, least=LINES // 4)
    first.signal(signal.SIGCONT)
    scene.fired(trials)
    first.signal(signal.SIGKILL)
    assert scene.lost(trials) == []


@pytest.mark.parametrize("is_over", [False, True], ids=["during the trial", "after its end"])
def test_what_a_stopped_parent_had_not_written_is_repeated_when_it_is_killed(
    scene: LogScene, trials: list[int], dice: random.Random, is_over: bool
) -> None:
    first = scene.start(trials)
    scene.writing(trials, dice)
    first.signal(signal.SIGSTOP, child=False)
    store, before = scene.hook.store, max(scene.count(one) for one in trials)
    # The runner goes on without its parent, and so do the ranks.
    # At high load, the fastest trial may have written nearly all its lines by now.
    scene.until(lambda: all(scene.stored(one) >= min(before + 200, LINES - 1) for one in trials), "more lines")
    if is_over:
        scene.until(lambda: all(store.trials.get(one).ended_at for one in trials), "the end of the trials")
    first.signal(signal.SIGKILL)
    scene.start(trials)
    scene.fired(trials)
    assert scene.lost(trials) == []


def test_a_trigger_that_returns_to_the_same_triggerer_shows_again_what_airflow_has_emptied(
    scene: LogScene, trials: list[int], dice: random.Random
) -> None:
    first = scene.start(trials)
    scene.writing(trials, dice)
    second = scene.start(trials)
    first.set([])
    scene.writing(trials, dice, least=LINES // 4)
    second.set([])
    first.set(scene.triggers(trials))
    scene.fired(trials)
    assert scene.lost(trials) == []


def test_what_recovery_ends_in_place_of_a_killed_triggerer_is_read_by_the_next_one(
    scene: LogScene, trials: list[int], dice: random.Random
) -> None:
    first = scene.start(trials)
    scene.writing(trials, dice)
    first.signal(signal.SIGKILL)
    state, store = scene.state, scene.hook.store
    runs = [str(store.attempts.get(store.trials.get(one).attempt_id).run) for one in trials]
    scene.until(
        lambda: all(task_logs.host_logs(state)[run].count(b"\n") == LINES for run in runs), "the end of the ranks"
    )
    later = Store.open(scene.hook.settings.sql_alchemy_conn, clock=lambda: datetime.now(UTC) + timedelta(seconds=90))
    hook = DtrainHook(scene.hook.settings)
    # At high load, the fastest trials may have completed before the slowest has some lines.
    running = [one for one in trials if store.trials.get(one).state == "running"]
    assert running
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(hook), "store", property(lambda _: later))
        scene.until(
            lambda: (asyncio.run(recover(hook)), all(store.trials.get(one).ended_at for one in trials))[1], "recovery"
        )
    later.close()
    counts = {one: scene.count(one) for one in running}
    scene.start(trials)
    scene.fired(trials)
    assert scene.lost(trials) == []
    assert all(scene.count(one) > count for one, count in counts.items() if count < LINES)
