"""Seeded fuzz runs with a complete Airflow: killed and stopped processes, failed hosts, tasks changed by users."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.netns import NamespaceHost
from testbed.standalone import wait_until
from tests.faults.fuzz import Run
from tests.faults.inject import nothing, wait
from tests.faults.processes import lives, stat_of
from tests.faults.stage import Stage, tree

Undo = Callable[[], object]
PARTS = ("scheduler", "triggerer", "api-server")
OVER = ("success", "failed")


@dataclass
class Begun:
    """A DAG run of a fuzz run, and the states in which it may end."""

    dag_id: str
    run_id: str
    #: States in which the DAG run may end.
    ends: tuple[str, ...] = ("success",)
    #: States in which its trials except the last one may end.
    earlier: tuple[str, ...] = ("completed",)
    #: States in which its last trial may end.
    last: tuple[str, ...] = ("completed",)


@dataclass
class Scene:
    """Targets of the faults of one run."""

    stage: Stage
    runs: list[Begun]
    dice: random.Random

    def live(self) -> Begun | None:
        """Return a random DAG run whose task has started and not ended, None when there is none."""
        found = [run for run in self.runs if self.task_state(run) in ("running", "deferred")]
        return self.dice.choice(found) if found else None

    def task_state(self, run: Begun) -> str:
        """Return the state of the task of a DAG run, empty when the API server does not answer."""
        with contextlib.suppress(OSError, RuntimeError):
            return str(self.stage.airflow.task(run.dag_id, run.run_id, "train")["state"])
        return ""

    def busy_host(self) -> NamespaceHost:
        """Return a host on which a run has processes, the first host when there is none."""
        names = sorted({one.host for one in self.stage.holders()})
        hosts = list(self.stage.hosts)
        name = self.dice.choice(names) if names else hosts[0].name
        return next(host for host in hosts if host.name == name)

    def signal_rank(self, number: int, *, parent: bool = False) -> tuple[int, int] | None:
        """Send a signal to a process that holds a slot, or to its parent.

        :return: pid and start time of the signalled process, None when there is none
        """
        found = sorted(self.stage.holders(), key=lambda one: (one.run, one.host, one.slot))
        pid = self.dice.choice(found).pid if found else 0
        status = stat_of(pid) if pid else None
        if status is not None and parent:
            pid, status = status[1], stat_of(status[1])
        if status is None or pid <= 1:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid, status[2]


def _kill(name: str) -> Callable[[Scene], Undo]:
    def fault(scene: Scene) -> Undo:
        scene.stage.kill_part(name)
        return lambda: scene.stage.start_part(name)

    return fault


def _stop(name: str) -> Callable[[Scene], Undo]:
    def fault(scene: Scene) -> Undo:
        stopped = [(pid, found[2]) for pid in tree([scene.stage.part(name)]) if (found := stat_of(pid))]
        _signal_all(stopped, signal.SIGSTOP)
        return lambda: _signal_all(stopped, signal.SIGCONT)

    return fault


def _signal_all(pids: Sequence[tuple[int, int]], number: int) -> None:
    for pid, start in pids:
        if lives(pid, start):
            os.kill(pid, number)


def kill_worker(scene: Scene) -> Undo:
    """Kill the worker that follows a trial. The retry follows the same gang."""
    for run in scene.runs:
        if run.dag_id == "in_worker" and scene.task_state(run) == "running":
            with contextlib.suppress(StopIteration, AssertionError):
                scene.stage.kill_worker(run.dag_id, run.run_id)
    return nothing


def _mark(state: str) -> Callable[[Scene], Undo]:
    def fault(scene: Scene) -> Undo:
        run = scene.live()
        if run is not None:
            with contextlib.suppress(OSError, RuntimeError):
                scene.stage.airflow.set_task_state(run.dag_id, run.run_id, "train", state)
            run.ends, run.last = (state, "success"), ("killed", "completed")
        return nothing

    return fault


def clear(scene: Scene) -> Undo:
    """Clear a task: its trial is killed, and a new trial starts from the beginning."""
    run = scene.live()
    if run is not None:
        body = {"dag_run_id": run.run_id, "task_ids": ["train"], "dry_run": False, "only_failed": False}
        with contextlib.suppress(OSError, RuntimeError):
            scene.stage.airflow.api("POST", f"/dags/{run.dag_id}/clearTaskInstances", body)
        run.earlier = ("killed", "completed")
    return nothing


def kill_rank(scene: Scene) -> Undo:
    scene.signal_rank(signal.SIGKILL)
    return nothing


def kill_supervisor(scene: Scene) -> Undo:
    scene.signal_rank(signal.SIGKILL, parent=True)
    return nothing


def crash_host(scene: Scene) -> Undo:
    host = scene.busy_host()
    host.crash()

    def back() -> None:
        host.boot()
        host.await_sshd()

    return back


def cut_host(scene: Scene) -> Undo:
    host = scene.busy_host()
    host.partition()
    return host.heal


FAULTS: Mapping[str, Callable[[Scene], Undo]] = {
    **{f"kill {name}": _kill(name) for name in PARTS},
    **{f"stop {name}": _stop(name) for name in PARTS},
    "kill worker": kill_worker,
    "mark failed": _mark("failed"),
    "mark success": _mark("success"),
    "clear": clear,
    "kill rank": kill_rank,
    "kill supervisor": kill_supervisor,
    "host crash": crash_host,
    "cut host": cut_host,
}
#: Faults that need an answer of the API server.
NEED_ANSWERS = {"mark failed", "mark success", "clear", "kill worker"}
AWAY = {"kill api-server", "stop api-server"}


def draw(dice: random.Random, names: Sequence[str], most: int) -> tuple[str, ...]:
    """Return some random faults that can be combined.

    There is at most one per component of Airflow, and no user action while the API server is down.
    """
    while True:
        chosen = tuple(dice.sample(list(names), dice.randint(1, most)))
        parts = [name.split()[-1] for name in chosen if name.split()[-1] in PARTS]
        if len(parts) == len(set(parts)) and not (NEED_ANSWERS & set(chosen) and AWAY & set(chosen)):
            return chosen


def one_run(stage: Stage, seed: int, names: Sequence[str] = tuple(FAULTS), *, most: int = 2) -> Run:
    """Run some DAG runs with some faults, and return the record with its violations."""
    dice, begun, notes = random.Random(seed), time.monotonic(), list[str]()
    stage.restart_dead_parts()
    runs = []
    for slots in dice.choice([(4,), (6,), (2, 4), (2, 2, 2)]):
        dag_id = dice.choice(["deferred", "in_worker"])
        runs.append(Begun(dag_id, stage.start(dag_id, slots=slots, until=dice.choice([100, 200]))))
    scene = Scene(stage, runs, dice)
    first = stage.trial_of(runs[0].run_id).trial_id
    if dice.random() < 0.8:
        stage.running(first)
    chosen = draw(dice, names, most)
    recovery_s = -1.0
    try:
        _disturb(scene, chosen, notes)
        healed = time.monotonic()
        found = _ends(scene)
        recovery_s = time.monotonic() - healed
    except Exception as error:
        found = [f"did not settle: {error!r}"]
    return Run(seed, chosen, tuple(found), recovery_s, time.monotonic() - begun, notes)


def _disturb(scene: Scene, chosen: Sequence[str], notes: list[str]) -> None:
    begun, undos = time.monotonic(), []
    for name in sorted(chosen, key=lambda name: name in AWAY):
        notes.append(f"{time.monotonic() - begun:.1f} s after the first fault: {name}")
        undos.append(FAULTS[name](scene))
        wait(scene.dice.choice([0.0, 1.0]))
    wait(scene.dice.choice([scene.dice.uniform(0.2, 5.0), scene.dice.uniform(10.0, 40.0)]))
    for undo in undos:
        undo()
    scene.stage.restart_dead_parts()


def _end_of(stage: Stage, trial_id: int) -> None:
    """Wait until a trial has ended.

    A task that is marked before a triggerer has its trigger leaves a gang without a follower. The processes of the next
    trial recover it, so this starts one after a minute.
    """
    ended = lambda: stage.trial(trial_id).ended_at  # noqa: E731
    try:
        wait_until(ended, timeout_s=60, what="the end of the trial")
    except TimeoutError:
        stage.airflow.wait("in_worker", stage.start("in_worker", slots=1, until=1), timeout_s=600)
    stage.until(ended, f"the end of trial {trial_id}")


def _ends(scene: Scene) -> list[str]:
    """Wait until every DAG run and trial has ended, and return the violations."""
    stage, found, ends = scene.stage, list[str](), dict[int, str]()
    for run in scene.runs:
        state = stage.airflow.wait(run.dag_id, run.run_id, timeout_s=900)
        if state not in run.ends:
            found.append(f"{run.dag_id} {run.run_id} ended {state}, not {run.ends}")
        views = sorted(stage.trials_of(run.run_id), key=lambda view: view.trial_id)
        for view in views:
            allowed = run.last if view is views[-1] else run.earlier
            _end_of(stage, view.trial_id)
            ended = stage.trial(view.trial_id).state
            ends[view.trial_id] = ended if ended in allowed else allowed[0]
    return [*found, *stage.left(ends)]
