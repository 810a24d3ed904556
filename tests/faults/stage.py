"""A complete Airflow with test hosts: its components are killed and restarted, users change its tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.trials import AttemptView, TrialView
from airflow_provider_dtrain.store.store import Store
from testbed.netns import NamespaceHosts
from testbed.standalone import Standalone, wait_until
from tests.faults.processes import Checker, Holder, stat_of
from tests.faults.verdict import violations
from tests.support.registered_hosts import register

#: Longer than Airflow needs on a busy machine to notice a dead worker (60 s here).
ORPHAN_TIMEOUT_S = 400
CONFIG = """
name: faults
entrypoint: python steps.py {until} 0.1 10
model_dir: code
max_restarts: 5
checkpoint_policy: all
resources: {{slots_per_trial: {slots}, pool: gpus}}
checkpoint_storage: {{type: shared_fs, host_path: {shared}}}
"""


class Stage:
    """Airflow, hosts, and a checker of the hosts' processes."""

    def __init__(self, airflow: Standalone, hosts: NamespaceHosts) -> None:
        self.airflow, self.hosts = airflow, hosts
        self.checker = Checker(hosts)
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        #: Trial -> number of ranks and last step.
        self.goals: dict[int, tuple[int, int]] = {}
        self._asked: dict[str, tuple[int, int]] = {}
        self._expected: dict[int, tuple[str, ...]] = {}
        url = airflow.environment.get("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", f"sqlite:///{airflow.home / 'dtrain.db'}")
        self.hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=url))
        (hosts.folder / "shared").mkdir(exist_ok=True)

    @property
    def store(self) -> Store:
        return self.hook.store

    # -- trials --------------------------------------------------------------------------------
    def start(self, dag_id: str, slots: int = 4, until: int = 3000) -> str:
        """Start a DAG run with one trial and return its run id.

        :param until: last step; a step takes 0.1 s
        """
        config = CONFIG.format(slots=slots, until=until, shared=self.hosts.folder / "shared")
        run_id = self.airflow.trigger(dag_id, {"config": config})
        self._asked[run_id] = slots, until
        return run_id

    def trial_of(self, run_id: str, *, after: int = 0) -> TrialView:
        """Return the latest trial of a DAG run.

        :param after: wait for a trial with a higher id
        """

        def known() -> TrialView | None:
            found = [view for view in self.store.trials.list() if view.key.run_id == run_id and view.trial_id > after]
            return max(found, key=lambda view: view.trial_id, default=None)

        view = self.until(known, f"the trial of {run_id}")
        self.goals[view.trial_id] = self._asked[run_id]
        return view

    def trials_of(self, run_id: str) -> list[TrialView]:
        """Return every trial of a DAG run."""
        found = [view for view in self.store.trials.list(limit=None) if view.key.run_id == run_id]
        for view in found:
            self.goals[view.trial_id] = self._asked[run_id]
        return found

    def attempt(self, trial_id: int) -> AttemptView:
        return self.store.attempts.get(self.trial(trial_id).attempt_id)

    def trial(self, trial_id: int) -> TrialView:
        return self.store.trials.get(trial_id)

    def expected(self, trial_id: int) -> tuple[str, ...]:
        return self._expected.get(trial_id, ("completed",))

    def holders(self, trial_id: int | None = None) -> list[Holder]:
        """Return the processes on the hosts, of one trial or of all."""
        return [one for one in self.checker.look() if trial_id is None or f"t{trial_id}." in one.run]

    def held(self) -> list[Any]:
        return [slot for slot in self.store.hosts.slots() if slot.allocation_id is not None]

    def running(self, trial_id: int) -> set[int]:
        """Return the pids of the trial's processes, once every rank has reported a step."""
        slots, _ = self.goals[trial_id]
        self.until(lambda: self.steps(trial_id) >= slots, f"{slots} ranks of trial {trial_id}")
        return {one.pid for one in self.holders(trial_id)}

    def steps(self, trial_id: int) -> int:
        """Return how many ranks of the latest attempt have reported a step."""
        events = self.store.events.of_attempt(self.trial(trial_id).attempt_id, kinds=("report",))
        return len({event.stream for event in events})

    def deferred(self, run_id: str, dag_id: str = "deferred") -> AttemptView:
        """Return the attempt once the triggerer follows it."""
        self.airflow.wait_task(dag_id, run_id, "train", "deferred", timeout_s=240)
        trial_id = self.trial_of(run_id).trial_id
        return self.followed(trial_id, "triggerer")

    def followed(self, trial_id: int, by: str, *, after: int = 0) -> AttemptView:
        """Return the attempt once a follower has it under a higher watch.

        :param by: prefix of the follower's name
        :param after: the watch must be higher than this
        """

        def there() -> AttemptView | None:
            view = self.attempt(trial_id)
            return view if view.watch > after and (view.watcher or "").startswith(by) else None

        return self.until(there, f"{by} as follower of trial {trial_id}")

    def until(self, condition: Any, what: str, timeout_s: float = 300.0) -> Any:
        """Return the first true value of a condition.

        :raises TimeoutError: the condition stayed false; the message describes the stage
        """
        try:
            return wait_until(condition, timeout_s=timeout_s, what=what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None

    def ends(self, run_id: str, state: str, dag_id: str = "deferred") -> None:
        """Wait until the DAG run has ended, and assert its state."""
        try:
            found = self.airflow.wait(dag_id, run_id, timeout_s=600)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None
        assert found == state, self.describe()

    def is_clean(self, ends: dict[int, str]) -> None:
        """Wait until the trials have ended, and assert that there are no violations.

        :param ends: trial -> state in which it must have ended
        """
        assert self.left(ends) == [], self.describe()

    def left(self, ends: dict[int, str]) -> list[str]:
        """Wait until the trials have ended and every slot is free, and return the violations.

        :param ends: trial -> state in which it must have ended
        """
        for trial_id, state in ends.items():
            self._expected[trial_id] = (state,)
            self.until(lambda found=trial_id: self.trial(found).ended_at, f"the end of trial {trial_id}")
        self.until(lambda: not self.holders(), "the end of every process", 120)
        self.until(lambda: not self.held(), "free slots", 120)
        return violations(self, list(ends))  # type: ignore[arg-type]

    def describe(self) -> str:
        lines = [f"held: {[(one.host, one.index, one.trial_id) for one in self.held()]}", f"run: {self.holders()}"]
        for trial in self.store.trials.list(limit=4):
            lines.append(f"trial {trial.trial_id} of {trial.key} {trial.state} {trial.failure}")
            for view in self.store.attempts.of_trial(trial.trial_id)[-4:]:
                lines.append(f"  {view.run} {view.state} {view.allocation_state} {view.reason} by {view.watcher}")
        return "\n".join(lines)

    # -- Airflow's processes -------------------------------------------------------------------
    def kill_part(self, name: str, *, alone: bool = False) -> None:
        """Kill a component of Airflow with SIGKILL.

        :param alone: leave its child processes alive
        """
        self._kill([self.part(name)] if alone else tree([self.part(name)]))

    def kill_worker(self, dag_id: str, run_id: str) -> None:
        """Kill the process that runs a task, and its parents up to the scheduler, with SIGKILL."""
        scheduler, title = self.part("scheduler"), f"airflow worker -- {self._task_id(dag_id, run_id)}"
        pid = next(int(entry.name) for entry in processes() if title in words(entry))
        chain = []
        while pid not in (scheduler, 1):
            chain.append(pid)
            status = stat_of(pid)
            assert status is not None
            pid = status[1]
        assert pid == scheduler, "its parents end at the scheduler"
        self._kill(reversed(chain))

    def followers(self) -> list[int]:
        """Return the pids of the triggerer, whose processes follow gangs."""
        return tree([self.part("triggerer")])

    def start_part(self, name: str) -> None:
        """Start a component of Airflow that was killed."""
        log = (self.airflow.home / f"{name}-again.log").open("ab")
        command = [sys.executable, "-m", "airflow", name]
        self.parts[name] = subprocess.Popen(
            command, env=self.airflow.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def restart_dead_parts(self) -> None:
        """Restart dead components, as a service manager does.

        The scheduler of Airflow 3.3 dies when a DAG is deleted.
        """
        for name in ("scheduler", "triggerer", "api-server"):
            if not self._lives(name):
                self.start_part(name)
        self.until(self.airflow.healthy, "a healthy Airflow")

    def _lives(self, name: str) -> bool:
        if name in self.parts:
            return self.parts[name].poll() is None
        with contextlib.suppress(AssertionError):
            return bool(self.part(name))
        return False

    def _task_id(self, dag_id: str, run_id: str) -> str:
        return str(self.airflow.task(dag_id, run_id, "train")["id"])

    def part(self, name: str) -> int:
        """Return the pid of the main process of a component of Airflow."""
        if name in self.parts:
            return self.parts[name].pid
        names = (f"airflow {name}", f"airflow {name.replace('-', '_')}")
        for entry in processes():
            status = stat_of(int(entry.name))
            if status and status[1] == self.airflow.pid and any(one in words(entry) for one in names):
                return int(entry.name)
        raise AssertionError(f"{name} has no process")

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.checker.close()
        for part in self.parts.values():
            self._kill(tree([part.pid]))
            part.wait(timeout=60)
        self.store.close()


def processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def words(entry: Path) -> str:
    """Return the command line or title of a process."""
    with contextlib.suppress(OSError):
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def tree(pids: list[int]) -> list[int]:
    """Return the processes and their descendants."""
    parents = {int(entry.name): status[1] for entry in processes() if (status := stat_of(int(entry.name)))}
    found = list(pids)
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@contextlib.contextmanager
def staged(kind: type[AnyStage], home: Path, dags: Path, **more: str) -> Iterator[AnyStage]:
    """Yield a stage of Airflow with three registered hosts.

    :param kind: class of the stage
    :param more: further environment variables of Airflow
    """
    with NamespaceHosts(count=3, slots=2) as hosts:
        variables = {f"AIRFLOW_CONN_{host.name.upper().replace('-', '_')}": host.airflow_conn() for host in hosts}
        variables |= {
            "AIRFLOW__DTRAIN__ORPHAN_TIMEOUT": str(ORPHAN_TIMEOUT_S),
            # By default a scheduler looks for the tasks of a dead scheduler every five minutes.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        }
        stage = kind(Standalone(home, dags, variables | more), hosts)
        try:
            stage.airflow.start()
            register(stage)
            yield stage
        finally:
            stage.close()
            stage.airflow.stop()


AnyStage = TypeVar("AnyStage", bound=Stage)
