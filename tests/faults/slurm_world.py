"""A Slurm cluster, a store, a trigger process and trials: the targets of faults of external jobs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.external_jobs import ExternalJob
from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialView
from airflow_provider_dtrain.store.store import Store
from testbed.netns import NamespaceHost, NamespaceHosts
from testbed.programs import install_programs
from testbed.slurm import SlurmCluster
from testbed.standalone import wait_until
from tests.faults import slurm_trigger
from tests.faults.databases import DATABASES, Database
from tests.faults.processes import stat_of
from tests.faults.world import OVER, PATIENCE, TriggerProcess

POOL = "hpc"
#: Programs of a node that belong to no job. Slurm may leave the manager of a step on a node that was cut off.
DAEMONS = {"slurmd", "slurmstepd", "sshd", "munged", "slurmctld", "sleep", "sh", "init"}
#: Time after which a controller without an answer is started again, as an administrator does.
CONTROLLER_PATIENCE_S = 45.0
_JOB_LINE = re.compile(r"^\[([\d:.T-]+)\] .*JobId=\d", re.MULTILINE)
_SUBMISSION = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)")
CONF = {
    "KillWait": 3,
    "SlurmdTimeout": 15,
    "MessageTimeout": 5,
    "MinJobAge": 10,
    # A frozen controller must not count as a task that cannot be killed.
    "UnkillableStepTimeout": 120,
    "ReturnToService": 2,
    "SchedulerParameters": "batch_sched_delay=0,bf_interval=2,sched_interval=2",
}


class SlurmWorld:
    """A cluster of three nodes with two CPUs each and a login node, one store, one trigger process.

    :param login: ``ssh`` or ``local``: the way to Slurm's commands
    :param orphan_timeout_s: time after which a run or job that no follower renews ends itself
    """

    def __init__(self, login: str = "ssh", *, orphan_timeout_s: float = 12.0, kill_grace_s: float = 1.5) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain-slurm-faults-"))
        self.orphan_timeout_s, self.kill_grace_s, self.login = orphan_timeout_s, kill_grace_s, login
        self.db: Database = DATABASES["sqlite"](self.folder)
        self.hosts = NamespaceHosts(count=4, sshd_extra="SetEnv SLURM_CONF={folder}/../slurm/slurm.conf")
        self.slurm = SlurmCluster(
            hosts=self.hosts, cpus_per_node=2, gpus_per_node=0, conf=CONF,
            partitions={"main": {"Default": "YES", "MaxTime": 60, "Nodes": "n[1-3]"}, "login": {"Nodes": "n4"}},
        )  # fmt: skip
        try:
            self._begin()
        except BaseException:
            self.slurm.stop()
            self.hosts.close()
            raise

    def _begin(self) -> None:
        self.slurm.start()
        os.environ.update(self.slurm.environment)
        os.environ["AIRFLOW_CONN_SLURM_LOGIN"] = self.hosts.host(3).airflow_conn()
        slurm_trigger.shorten()
        for host in self.hosts:
            install_programs(host.home)
        self.nodes = dict(zip(self.slurm.nodes, self.hosts, strict=True))
        self.login_host = self.nodes.pop("n4")
        #: Both name the end of a gang that runs at the same time as another one of its trial.
        self.shared, self.witness = self.hosts.folder / "shared", self.hosts.folder / "witness"
        for folder in (self.shared, self.witness):
            folder.mkdir(mode=0o755)
        self.numbers = 0
        #: The controller has lost what it knew of a job. Further runs need another world.
        self.has_forgotten = False
        self._asked_at = self._answered_at = time.monotonic()
        self._expected: dict[int, tuple[str, ...]] = {}
        self.goals: dict[int, tuple[int, int]] = {}
        self.options = {
            "SQL_ALCHEMY_CONN": self.db.url, "CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "ORPHAN_TIMEOUT": str(self.orphan_timeout_s), "KILL_GRACE_S": str(self.kill_grace_s),
            "LOG_LIMIT": str(8 << 20), "PASS_INTERVAL": "0.5",
        }  # fmt: skip
        self.hook = DtrainHook(
            dataclasses.replace(
                settings(), sql_alchemy_conn=self.db.url, checkpoint_dir=self.folder / "checkpoints",
                orphan_timeout_s=self.orphan_timeout_s, kill_grace_s=self.kill_grace_s,
            )
        )  # fmt: skip
        kind = scheduler_kind("slurm")
        document = kind.checked({
            "slots": "cpu", "slots_per_node": 2, "cpus_per_slot": 1, "python": sys.executable, "time_limit": "10m",
            **({} if self.login == "local" else {"conn_id": "slurm_login"}),
        })  # fmt: skip
        self.store.pools.set_scheduler(POOL, backend="slurm", slot_type=kind.slot_type(document), scheduler=document)
        self.logs = LogKeeper(self.hosts.folder)
        self.trigger = TriggerProcess(self._environment(), self.folder, module="tests.faults.slurm_trigger")
        self.trigger.start()

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__DTRAIN")}
        names = {f"AIRFLOW__DTRAIN__{name}": value for name, value in self.options.items()}
        return {**kept, **names, "_AIRFLOW_PROCESS_CONTEXT": "server", "OMP_NUM_THREADS": "1"}

    @property
    def store(self) -> Store:
        return self.hook.store

    # -- trials --------------------------------------------------------------------------------
    def submit(
        self, slots: int = 2, *, until: int = 40, pause_s: float = 0.1, save_every: int = 5, shared: bool = True,
        ends: tuple[str, ...] = ("completed",), **more: Any,
    ) -> int:  # fmt: skip
        """Submit a trial and return its id.

        :param shared: checkpoints go to a folder that all nodes share, else those of a gang on one node are copied to
            this machine
        """
        document: dict[str, Any] = {
            "name": "faults", "entrypoint": f"python steps.py {until} {pause_s} {save_every}", "model_dir": "code",
            "max_restarts": 20, "checkpoint_policy": "all", "preemption_timeout": 10,
            "environment": {"variables": {"FAULTS_WITNESS": str(self.witness)}},
            "resources": {"slots_per_trial": slots, "pool": POOL}, **more,
        }  # fmt: skip
        if not shared and slots <= 2:
            document["resources"]["is_single_host"] = True
        else:
            document["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(self.shared)}
        self.numbers += 1
        folder = Path(__file__).parent
        key = TrialKey(dag_id="faults", run_id="r", task_id=f"t{self.numbers}")
        trial_id = submit(self.hook, render(self.hook, document, None, folder), key=key, folder=folder).trial_id
        self._expected[trial_id], self.goals[trial_id] = ends, (slots, until)
        return trial_id

    def expected(self, trial_id: int) -> tuple[str, ...]:
        return self._expected[trial_id]

    def may_end(self, trial_id: int, state: str) -> None:
        """Allow a further end state of a trial."""
        self._expected[trial_id] = (*self.expected(trial_id), state)

    def trial(self, trial_id: int) -> TrialView:
        return self.store.trials.get(trial_id)

    def jobs(self, trial_id: int | None = None) -> list[ExternalJob]:
        """Return the jobs of a trial, or all live ones."""
        if trial_id is None:
            return self.store.external_jobs.live(POOL)
        return self.store.external_jobs.of_trial(trial_id)

    def step(self, trial_id: int) -> int:
        """Return the last step that a trial's current attempt has reported, 0 before the first one."""
        view = self.trial(trial_id)
        events = self.store.events.of_attempt(view.attempt_id, kinds=("report",))
        return max((event.body["step"] for event in events), default=0)

    def is_state_saved(self) -> bool:
        """Return whether the file that Slurm's controller reads at its start is newer than its last line of a job."""
        times = _JOB_LINE.findall((self.slurm.folder / "log" / "slurmctld.log").read_text(errors="replace"))
        with contextlib.suppress(FileNotFoundError):
            saved_at = (self.slurm.folder / "state" / "job_state").stat().st_mtime
            return not times or datetime.datetime.fromisoformat(times[-1]).timestamp() + 0.1 < saved_at
        return not times

    def forgets(self) -> None:
        """Allow what follows from a lost state: Slurm cancels the job that was given a number of a lost one."""
        self.has_forgotten = True
        for trial in self.goals:
            if not self.over(trial):
                self.may_end(trial, "killed")

    def _restart_silent_controller(self) -> None:
        now = time.monotonic()
        if now < self._asked_at + 5:
            return
        self._asked_at = now
        if self.slurm.run("scontrol", "ping", check=False, timeout_s=30).returncode == 0:
            self._answered_at = now
        elif not self.slurm.controller.daemon("slurmctld") or now - self._answered_at > CONTROLLER_PATIENCE_S:
            self.slurm.controller.end("slurmctld", by=signal.SIGKILL)
            self.slurm.start_controller()
            self._answered_at = time.monotonic()

    def _is_queue_empty(self) -> bool:
        if self.has_forgotten and not self.jobs():
            # An ended job that the controller has taken for a running one at its start.
            self.slurm.run("scancel", "--user=root", check=False)
        return not self.known_jobs()

    def until(self, condition: Any, what: str, timeout_s: float = 60.0) -> Any:
        """Return the first true value of a condition."""
        try:
            return wait_until(condition, timeout_s=timeout_s * PATIENCE, what=what, poll_s=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None

    def over(self, trial_id: int) -> bool:
        """Return whether the trial has ended and Airflow would not retry it."""
        view = self.trial(trial_id)
        failed = view.state == "errored" and (view.failure or {}).get("kind") in ("infra", "platform")
        return view.state in OVER and not failed

    # -- processes -----------------------------------------------------------------------------
    def processes(self, word: str = "", *, nodes: bool = True) -> list[tuple[int, str]]:
        """Return pid and node of the processes of jobs whose command line has a word."""
        found = []
        for name, host in self.nodes.items():
            for pid in host.pids():
                line, state = _command(pid), stat_of(pid)
                if not line or state is None or state.state in "ZX":
                    continue
                # slurmstepd and sshd write what they do behind their name.
                program = os.path.basename(line[0].partition(" ")[0]).rstrip(":")
                if program not in DAEMONS and word in " ".join(line):
                    found.append((pid, name))
        return found

    def serving(self) -> list[tuple[int, str]]:
        """Return the supervisors that Slurm has started on nodes."""
        return [one for one in self.processes("import base64;exec") if _parent_is_stepd(one[0])]

    def node(self, name: str) -> NamespaceHost:
        return self.nodes[name]

    def known_jobs(self) -> str:
        """Return state and name of the jobs that Slurm has not ended."""
        done = self.slurm.run("squeue", "-h", "-o", "%i %T %r %j", check=False, timeout_s=30)
        return done.stdout if done.returncode == 0 else "no answer"

    def submissions(self) -> Counter[str]:
        """Return name -> number of jobs that Slurm has accepted under it, as the store and Slurm's log know them."""
        text = (self.slurm.folder / "log" / "slurmctld.log").read_text(errors="replace")
        names: Counter[str] = Counter()
        for number in set(_SUBMISSION.findall(text)):
            names[self.logs.names.get(number, f"job {number}")] += 1
        return names

    # -- the end -------------------------------------------------------------------------------
    def heal(self) -> None:
        """Undo every lasting fault."""
        for host in self.hosts:
            host.heal()
            if not host.is_up:
                host.boot()
            if not host.init_pid:
                host.await_sshd()
        for machine in (self.slurm.controller, *self.slurm.nodes.values()):
            for pid in machine.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        if not self.slurm.controller.daemon("slurmctld"):
            self.slurm.start_controller()
        for name, machine in self.slurm.nodes.items():
            if not machine.daemon("slurmd"):
                self.slurm.start_node(name)
        for name, state in self.slurm.node_states().items():
            if state.rstrip("*").startswith(("down", "drain", "draining", "drained", "fail")):
                self.slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        self.trigger.signal(signal.SIGCONT)
        if not self.trigger.alive:
            self.trigger.start()

    def settle(self, trials: list[int]) -> float:
        """Wait until the trials have ended and nothing of them is left, and return how long that took."""
        begun = self._answered_at = time.monotonic()

        def is_over(trial_id: int) -> bool:
            self._restart_silent_controller()
            return self.over(trial_id)

        for trial_id in trials:
            self.until(lambda trial_id=trial_id: is_over(trial_id), f"the end of trial {trial_id}", 60)
        ended_s = time.monotonic() - begun
        self.until(self._recovered, "free slots and the end of all jobs in the store", 30)
        self.until(self._is_queue_empty, "an empty queue", 25)
        self.until(lambda: not self.processes(), "the end of every process", 10)
        return ended_s

    def _recovered(self) -> bool:
        """Do the work of recovery once, as a follower of another trial does, and return whether nothing is left."""
        asyncio.run(recover(self.hook))
        return not self.jobs() and not self.held()

    def held(self) -> list[Any]:
        return [slot for slot in self.store.hosts.slots() if slot.allocation_id is not None]

    def task_log(self, trial_id: int) -> list[str]:
        """Return the text of each file of a trial's task log."""
        paths = sorted((self.folder / "task-logs").glob(f"trial-{trial_id}.*.log"))
        return [path.read_text(errors="replace") for path in paths]

    def describe(self) -> str:
        lines = [f"queue: {self.known_jobs()!r}", f"nodes: {self.slurm.node_states()}"]
        lines += [f"held: {[(one.host, one.index, one.trial_id) for one in self.held()]}"]
        for trial in self.store.trials.list(limit=4):
            lines.append(f"trial {trial.trial_id} {trial.state} {trial.failure}")
            for view in self.store.attempts.of_trial(trial.trial_id)[-5:]:
                lines.append(f"  {view.run} {view.state} {view.allocation_state} {view.reason} by {view.watcher}")
            lines += [f"  {dataclasses.replace(job, access=b'')}" for job in self.jobs(trial.trial_id)[-4:]]
        lines += [f"processes: {[(pid, node, _command(pid)[:3]) for pid, node in self.processes()]}"]
        lines += [self.trigger.log.read_text(errors="replace")[-8000:]]
        lines += [(self.slurm.folder / "log" / "slurmctld.log").read_text(errors="replace")[-4000:]]
        return "\n".join(lines)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.heal()
        self.trigger.close()
        self.logs.close()
        self.hook.links.close_all()
        self.store.close()
        self.slurm.stop()
        self.hosts.close()
        self.db.close()

    def __enter__(self) -> SlurmWorld:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LogKeeper:
    """Keeps what a job's end removes: the logs of rank 0 on the nodes, and the names of Slurm's jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, dict[Path, int]()
        #: Slurm's number -> name.
        self.names: dict[str, str] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log keeper", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._end.wait(0.2):
            # A folder may go between two steps of a pattern.
            with contextlib.suppress(FileNotFoundError):
                self._keep()

    def _keep(self) -> None:
        for path in self._folder.glob("host*/var-tmp/dtrain-*/**/*rank0/log"):
            if path not in self._files:
                with contextlib.suppress(OSError):
                    self._files[path] = os.open(path, os.O_RDONLY)
        for path in (self._folder / "slurm" / "state").glob("hash.*/job.*/environment"):
            number = path.parent.name.removeprefix("job.")
            if number not in self.names:
                with contextlib.suppress(OSError):
                    match = re.search(rb"SLURM_JOB_NAME=([^\0]+)", path.read_bytes())
                    if match:
                        self.names[number] = match[1].decode(errors="replace")

    def logs(self) -> dict[str, bytes]:
        """Return run -> rank 0's log."""
        found = {}
        for path, fd in self._files.items():
            with contextlib.suppress(OSError):
                found[path.parent.parent.name] = os.pread(fd, 32 << 20, 0)
        return found

    def close(self) -> None:
        self._end.set()
        self._thread.join(timeout=10)
        for fd in self._files.values():
            os.close(fd)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _parent_is_stepd(pid: int) -> bool:
    found = stat_of(pid)
    return found is not None and "slurmstepd" in " ".join(_command(found.parent))
