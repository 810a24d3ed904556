"""Task logs of real ranks under Airflow's own task supervisor, whose processes are killed, stopped and replaced.

``DTRAIN_TEST_REPEATS`` repeats each fault.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.forking import Process
from testbed.log_scene import LINES, TRIALS, LogScene

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


class Tasks:
    """Tasks of some DAG runs, each in a worker of its own."""

    def __init__(self, scene: LogScene) -> None:
        self.scene, self.runs = scene, [os.urandom(6).hex() for _ in range(TRIALS)]
        self.number = 0
        self.workers: list[Process] = []

    def begin_try(self) -> None:
        """Start the next try of each task."""
        self.number += 1
        self.workers = [self.scene.start_task(run, self.number) for run in self.runs]

    @property
    def trials(self) -> list[int]:
        return [self.scene.trial_of(run) for run in self.runs]

    def signal(self, number: int, *, parent: bool = True, child: bool = True) -> None:
        """Send a signal to each supervisor, to its task process, or to both."""
        for worker in self.workers:
            worker.signal(number, parent=parent, child=child)

    def ended(self) -> None:
        """Return when every trial is completed, and every supervisor of the latest try has ended."""
        store = self.scene.hook.store
        self.scene.until(lambda: all(store.trials.get(one).ended_at for one in self.trials), "the end of the trials")
        self.scene.until(lambda: not any(Path(f"/proc/{one.pid}").exists() for one in self.workers), "the tasks' end")
        assert {store.trials.get(one).state for one in self.trials} == {"completed"}
        assert [store.trials.get(one).attempts for one in self.trials] == [1] * TRIALS

    def lost(self) -> list[str]:
        return self.scene.lost(self.trials)


@pytest.fixture
def tasks(scene: LogScene) -> Iterator[Tasks]:
    tasks = Tasks(scene)
    tasks.begin_try()
    yield tasks
    tasks.signal(signal.SIGKILL)


@pytest.fixture(params=REPEATS)
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def test_the_log_of_a_worker_without_a_fault_is_there_once_and_in_order(scene: LogScene, tasks: Tasks) -> None:
    tasks.ended()
    assert tasks.lost() == []
    for trial_id in tasks.trials:
        shown = scene.shown(trial_id)
        assert (shown.marks, shown.repeated) == ({}, 0)
        (numbers,) = shown.lines.values()
        assert list(numbers) == list(range(LINES))


@pytest.mark.parametrize(("parent", "child"), [(True, True), (True, False), (False, True)],
                         ids=["both", "supervisor", "task"])  # fmt: skip
def test_a_killed_worker_loses_no_line(
    scene: LogScene, tasks: Tasks, dice: random.Random, parent: bool, child: bool
) -> None:
    scene.writing(tasks.trials, dice)
    tasks.signal(signal.SIGKILL, parent=parent, child=child)
    tasks.begin_try()
    tasks.ended()
    assert tasks.lost() == []


@pytest.mark.parametrize("child", [True, False], ids=["both", "supervisor"])
def test_a_stopped_worker_that_wakes_up_beside_the_next_try_loses_no_line(
    scene: LogScene, tasks: Tasks, dice: random.Random, child: bool
) -> None:
    scene.writing(tasks.trials, dice)
    stopped = list(tasks.workers)
    scene.stop(stopped, child=child)
    tasks.begin_try()
    scene.writing(tasks.trials, dice, least=LINES // 4)
    for worker in stopped:
        worker.signal(signal.SIGCONT)
    tasks.ended()
    for worker in stopped:
        worker.signal(signal.SIGKILL)
    assert tasks.lost() == []


def test_what_a_stopped_supervisor_had_not_written_is_repeated_when_it_is_killed(
    scene: LogScene, tasks: Tasks, dice: random.Random
) -> None:
    scene.writing(tasks.trials, dice)
    tasks.signal(signal.SIGSTOP, child=False)
    before = max(scene.count(one) for one in tasks.trials)
    # At high load, the fastest trial may have written nearly all its lines by now.
    scene.until(lambda: all(scene.stored(one) >= min(before + 200, LINES - 1) for one in tasks.trials), "more lines")
    tasks.signal(signal.SIGKILL)
    tasks.begin_try()
    tasks.ended()
    assert tasks.lost() == []
