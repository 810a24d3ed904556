"""Hosts, a store, a trigger process and trials: the targets of faults."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialView
from airflow_provider_dtrain.store.store import Store
from testbed.netns import NamespaceHost, NamespaceHosts
from testbed.netns.transport import ssh_to
from testbed.programs import install_programs
from testbed.standalone import wait_until
from tests.faults.databases import DATABASES, Database
from tests.faults.processes import Checker, Holder, lives, stat_of

ROOT = Path(__file__).parents[2]
POOL = "gang"
OVER = ("completed", "errored", "killed", "stopped")
#: Factor of all time-outs, for a machine that runs several jobs at once.
PATIENCE = float(os.environ.get("DTRAIN_TEST_PATIENCE", "3"))

#: sshd sessions see a wall clock that a file sets. Debian's faketime is not usable: Python's sleep fails with it.
CLOCK = "SetEnv LD_PRELOAD={folder}/clock.so CLOCK_WHEN={folder}/clock"


def can_set_clocks() -> bool:
    return shutil.which("cc") is not None


def build_clock(folder: Path) -> None:
    """Compile the library that shifts the wall clock of one host."""
    source = Path(__file__).parent / "clock.c"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(folder / "clock.so"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    (folder / "clock").write_text("0")


class TriggerProcess:
    """The process that follows all trials. At most one is alive."""

    def __init__(self, environment: dict[str, str], folder: Path, *, module: str = "tests.faults.trigger") -> None:
        self.log, self.clock = folder / "trigger.log", folder / "clock"
        self.clock.write_text("0")
        self.parent = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT, env=environment, stderr=(folder / "zygote.log").open("wb"),
        )  # fmt: skip
        assert self.parent.stdout
        ready = self.parent.stdout.readline()
        assert ready == "ready\n", (folder / "zygote.log").read_text()[-3000:]
        self.pid, self.start_time = 0, 0

    def start(self) -> None:
        assert self.parent.stdin
        assert self.parent.stdout
        self.parent.stdin.write(json.dumps([str(self.log), str(self.clock)]) + "\n")
        self.parent.stdin.flush()
        self.pid = int(self.parent.stdout.readline())
        found = stat_of(self.pid)
        self.start_time = found[2] if found else 0

    @property
    def alive(self) -> bool:
        return bool(self.pid) and lives(self.pid, self.start_time)

    def signal(self, number: int) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.alive, timeout_s=20, what="the trigger's end", poll_s=0.02)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.kill()
        assert self.parent.stdin
        self.parent.stdin.close()
        self.parent.wait(120)


class World:
    """Three hosts of two slots, one store, one trigger process.

    :param database: ``sqlite`` or ``postgresql``
    :param orphan_timeout_s: time after which a run that is not renewed ends itself
    :param clocks: the wall clocks of the hosts can be set
    :param disk_mib: size of the disk that holds a host's state; None: this machine's disk
    """

    def __init__(
        self, database: str = "sqlite", *, count: int = 3, slots: int = 2, orphan_timeout_s: float = 10.0,
        kill_grace_s: float = 1.5, clocks: bool = False, disk_mib: int | None = None,
    ) -> None:  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain-faults-"))
        self.orphan_timeout_s, self.kill_grace_s, self.slots = orphan_timeout_s, kill_grace_s, slots
        self.disk_mib = disk_mib
        self.db: Database = DATABASES[database](self.folder)
        self.hosts = NamespaceHosts(count=count, slots=slots, disk_mib=disk_mib, sshd_extra=CLOCK if clocks else "")
        for host in self.hosts if clocks else ():
            build_clock(host.folder)
        self.shared = self.hosts.folder / "shared"
        self.shared.mkdir(mode=0o755)
        self.numbers = 0
        self._expected: dict[int, tuple[str, ...]] = {}
        #: Trial -> number of ranks and last step; 0: it has no steps.
        self.goals: dict[int, tuple[int, int]] = {}
        self.options = dataclasses.replace(
            settings(), sql_alchemy_conn=self.db.url, checkpoint_dir=self.folder / "checkpoints",
            orphan_timeout_s=orphan_timeout_s, kill_grace_s=kill_grace_s,
        )  # fmt: skip
        self.hook = DtrainHook(self.options)
        self._register()
        self.checker = Checker(self.hosts)
        self.trigger = TriggerProcess(self._environment(), self.folder)
        self.trigger.start()

    # -- set-up --------------------------------------------------------------------------------
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__DTRAIN")}
        connections = {
            f"AIRFLOW_CONN_{host.name.replace('-', '_').upper()}": host.airflow_conn() for host in self.hosts
        }
        options = {
            "SQL_ALCHEMY_CONN": self.db.url, "CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "ORPHAN_TIMEOUT": str(self.orphan_timeout_s), "KILL_GRACE_S": str(self.kill_grace_s),
            "LOG_LIMIT": str(8 << 20), "PASS_INTERVAL": "0.5",
        }  # fmt: skip
        names = {f"AIRFLOW__DTRAIN__{name}": value for name, value in options.items()}
        return {**kept, **connections, **names, "_AIRFLOW_PROCESS_CONTEXT": "server", "OMP_NUM_THREADS": "1"}

    def _register(self) -> None:
        for host in self.hosts:
            install_programs(host.home)
            address = HostAddress(
                name=host.name, remote_dir=".dtrain", state_dir=None, python=sys.executable,
                make_transport=lambda host=host: ssh_to(host),
            )  # fmt: skip
            link = self.hook.links.get(address)
            record = host_record_from_facts(
                host.name, pool=POOL, conn_id=host.name.replace("-", "_"), facts=link.call("probe").result(60),
                hello=link.hello, slots=f"cpu:{self.slots}", remote_dir=".dtrain", python=sys.executable,
            )  # fmt: skip
            self.store.hosts.add(record)
        self.hook.links.close_all()

    @property
    def store(self) -> Store:
        return self.hook.store

    def reopen(self) -> None:
        """Drop the connections to a database that was replaced."""
        from airflow_provider_dtrain.hooks import dtrain

        self.store.close()
        dtrain._shared().stores.pop(self.db.url, None)
        self.hook = DtrainHook(self.options)

    # -- trials --------------------------------------------------------------------------------
    def submit(
        self, slots: int = 2, *, until: int = 40, pause_s: float = 0.1, save_every: int = 5, words: str = "",
        shared: bool = True, ends: tuple[str, ...] = ("completed",), **more: Any,
    ) -> int:  # fmt: skip
        """Submit a trial and return its id.

        :param shared: checkpoints go to a folder that all hosts share, else to the run's own folder on its one host
        :param ends: states in which the trial may end
        """
        document = {
            "name": "faults", "entrypoint": f"python steps.py {until} {pause_s} {save_every} {words}".strip(),
            "model_dir": "code", "max_restarts": 20, "checkpoint_policy": "all",
            "resources": {"slots_per_trial": slots, "pool": POOL}, **more,
        }  # fmt: skip
        if not shared:
            document["resources"]["is_single_host"] = True
        else:
            document["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(self.shared)}
        return self._submit(document, ends, (slots, until))

    def infer(self, section: dict[str, Any], slots: int, *, ends: tuple[str, ...] = ("completed",), **more: Any) -> int:
        """Submit a batch inference and return its id. It has no steps.

        :param section: ``inference`` of the configuration
        :param ends: states in which the trial may end
        """
        document = {
            "name": "inference", "inference": section, "model_dir": "inference_code", "max_restarts": 20,
            "resources": {"slots_per_trial": slots, "pool": POOL}, **more,
        }  # fmt: skip
        return self._submit(document, ends, (slots, 0))

    def _submit(self, document: dict[str, Any], ends: tuple[str, ...], goal: tuple[int, int]) -> int:
        self.numbers += 1
        folder = Path(__file__).parent
        key = TrialKey(dag_id="faults", run_id="r", task_id=f"t{self.numbers}")
        trial_id = submit(self.hook, render(self.hook, document, None, folder), key=key, folder=folder).trial_id
        self._expected[trial_id], self.goals[trial_id] = ends, goal
        return trial_id

    def expected(self, trial_id: int) -> tuple[str, ...]:
        return self._expected.get(trial_id, ("completed",))

    def may_end(self, trial_id: int, state: str) -> None:
        """Allow a further end state of a trial."""
        self._expected[trial_id] = (*self.expected(trial_id), state)

    def trial(self, trial_id: int) -> TrialView:
        return self.store.trials.get(trial_id)

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Return the first true value of a condition, which counts as false while the store is unavailable."""

        def asked() -> Any:
            from airflow_provider_dtrain.errors import StoreUnavailableError

            with contextlib.suppress(StoreUnavailableError):
                return condition()
            return None

        try:
            return wait_until(asked, timeout_s=timeout_s * PATIENCE, what=what, poll_s=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None

    def running(
        self, trial_id: int, timeout_s: float = 60.0, *, step: int = 1, attempt: int = 1, or_over: bool = False
    ) -> None:
        """Wait until the trial has reached a step, in this attempt or a later one.

        :param or_over: a completed trial counts, too
        """

        def there() -> bool:
            view = self.trial(trial_id)
            if or_over and view.state == "completed":
                return True
            if view.state in OVER and not self.tried_again(view):
                raise AssertionError(f"trial {trial_id} ended {view.state}: {view.failure}\n{self.describe()}")
            events = self.store.events.of_attempt(view.attempt_id, kinds=("report",))
            return view.attempts >= attempt and any(event.body["step"] >= step for event in events)

        self.until(there, f"step {step} of trial {trial_id}", timeout_s)

    def ended(self, trial_id: int, timeout_s: float = 90.0) -> TrialView:
        """Return the trial once it has ended and Airflow would not retry it."""

        def over() -> TrialView | None:
            view = self.trial(trial_id)
            return view if view.state in OVER and not self.tried_again(view) else None

        return self.until(over, f"the end of trial {trial_id}", timeout_s)

    def tried_again(self, view: TrialView) -> bool:
        """Return whether Airflow would retry the trial: it failed because of a host, and no test expects that."""
        failed = view.state == "errored" and (view.failure or {}).get("kind") in ("infra", "platform")
        return failed and "errored" not in self.expected(view.trial_id)

    def holders(self, trial_id: int | None = None) -> list[Holder]:
        """Return the processes on the hosts, of one trial or of all."""
        found = self.checker.census.look()
        return [one for one in found if trial_id is None or f"t{trial_id}." in one.run]

    def ranks(self, trial_id: int | None = None) -> list[Holder]:
        """Return the ranks' own processes, without their child processes."""
        return [one for one in self.holders(trial_id) if one.is_rank]

    def supervisors(self, trial_id: int | None = None) -> list[int]:
        found = {status[1] for one in self.ranks(trial_id) if (status := stat_of(one.pid))}
        return sorted(pid for pid in found if pid > 1)

    def followers(self) -> list[int]:
        """Return the processes that follow gangs."""
        return [self.trigger.pid] if self.trigger.alive else []

    def host(self, name: str) -> NamespaceHost:
        return next(host for host in self.hosts if host.name == name)

    def task_log(self, trial_id: int) -> list[str]:
        """Return the text of each file of a trial's task log."""
        paths = sorted((self.folder / "task-logs").glob(f"trial-{trial_id}.*.log"))
        return [path.read_text(errors="replace") for path in paths]

    def turns(self) -> list[tuple[float, float]]:
        """Return wall-clock and CPU seconds of the longest turns of each trigger process's event loop."""
        found = []
        for path in self.folder.glob("turns-*.json"):
            with contextlib.suppress(ValueError):
                turn = json.loads(path.read_text())
                found.append((turn["wall_s"], turn["cpu_s"]))
        return found

    # -- the end -------------------------------------------------------------------------------
    def heal(self) -> None:
        """Undo every lasting fault."""
        for host in self.hosts:
            host.heal()
            if not host.is_up:
                host.boot()
            if not host.init_pid:
                host.await_sshd()
        self.trigger.signal(signal.SIGCONT)
        if not self.trigger.alive:
            self.trigger.start()

    def settle(self, trials: list[int]) -> float:
        """Wait until the trials have ended and all slots are free.

        :return: seconds from the end of the trials until a gang held every slot
        """
        for trial_id in trials:
            self.ended(trial_id)
        begun = time.monotonic()
        closing = self.submit(self.slots * len(self.hosts), until=1, pause_s=0.0)
        self.running(closing, or_over=True)
        recovery_s = time.monotonic() - begun
        self.ended(closing)
        self.until(lambda: not self.held(), "free slots", 30)
        self.until(lambda: not self.holders(), "the end of every process", 30)
        return recovery_s

    def held(self) -> list[Any]:
        return [slot for slot in self.store.hosts.slots() if slot.allocation_id is not None]

    def describe(self) -> str:
        lines = [f"hosts: {[(record.name, record.state) for record in self.store.hosts.list()]}"]
        lines += [f"held: {[(one.host, one.index, one.trial_id) for one in self.held()]}"]
        for trial in self.store.trials.list(limit=6):
            lines.append(f"trial {trial.trial_id} {trial.state} {trial.failure}")
            for view in self.store.attempts.of_trial(trial.trial_id)[-4:]:
                lines.append(f"  {view.run} {view.state} {view.allocation_state} {view.reason} by {view.watcher}")
        lines += [f"running: {self.holders()}", self.trigger.log.read_text(errors="replace")[-6000:]]
        return "\n".join(lines)

    def close(self) -> None:
        self.checker.close()
        with contextlib.suppress(Exception):
            self.heal()
        self.trigger.close()
        self.hook.links.close_all()
        self.store.close()
        self.hosts.close()
        self.db.close()
        self.checker.check()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
