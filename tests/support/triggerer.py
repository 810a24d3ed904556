"""Airflow's own triggerer without its database: the real parent process, the real runner, the real log files.

``FOLDER/<JOB>.triggers`` names what a triggerer runs, one JSON document per line: id, classpath, kwargs. Events are
appended to ``FOLDER/events``. Airflow's code opens and empties ``FOLDER/logs/<id>.log.trigger.<JOB>.log``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.turns import Turns

ROOT = Path(__file__).parents[2]


class Triggerers:
    """Starts triggerers: one program imports Airflow once and forks them.

    :param environment: more variables
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        (folder / "logs").mkdir(exist_ok=True)
        self.out = folder / "triggerers.out"
        self.parent = subprocess.Popen(
            [sys.executable, "-m", "tests.support.triggerer"], cwd=ROOT, env={**os.environ, **environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.out.open("ab"),
        )  # fmt: skip
        assert self._answer() == "ready", self.out.read_text()[-3000:]
        self.started: list[Triggerer] = []

    def start(self, job: int, triggers: list[dict[str, Any]]) -> Triggerer:
        """Start a triggerer that runs these triggers."""
        found = Triggerer(self.folder, job)
        found.set(triggers)
        assert self.parent.stdin
        self.parent.stdin.write(json.dumps([str(self.folder), job]) + "\n")
        self.parent.stdin.flush()
        found.pid = int(self._answer())
        self.started.append(found)
        return found

    def _answer(self) -> str:
        assert self.parent.stdout
        return self.parent.stdout.readline().strip()

    def close(self) -> None:
        """End all of them."""
        for triggerer in self.started:
            triggerer.signal(signal.SIGKILL)
        assert self.parent.stdin
        self.parent.stdin.close()
        self.parent.wait(60)


class Triggerer:
    """A triggerer process and its child.

    :param job: tells this triggerer from others, in the names of its log files
    """

    def __init__(self, folder: Path, job: int) -> None:
        self.folder, self.job, self.pid = folder, job, 0

    def set(self, triggers: list[dict[str, Any]]) -> None:
        """Let it run these triggers and no other ones."""
        path = self.folder / f"{self.job}.triggers"
        path.with_suffix(".new").write_text("".join(json.dumps(one) + "\n" for one in triggers))
        path.with_suffix(".new").rename(path)

    @property
    def child(self) -> int:
        """Process id of the runner; 0 when there is none."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError, IndexError):
            return int(path.read_text().split()[0])
        return 0

    def signal(self, number: int, *, parent: bool = True, child: bool = True) -> None:
        """Send a signal to the processes that live."""
        for pid in [self.child] * child + [self.pid] * parent:
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, number)


def read_logs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the file's name and the text of each record of all task logs."""
    for path in sorted((folder / "logs").glob("*.log")):
        for line in path.read_bytes().splitlines():
            # A killed process leaves an unfinished line.
            if line.endswith(b"}"):
                yield path.name, str(json.loads(line).get("event"))


async def note_turns(path: Path) -> None:
    """Write the longest turns of the running loop, each second."""
    turns = Turns().begin()
    while True:
        await asyncio.sleep(1.0)
        path.write_text(json.dumps({"wall_s": turns.longest_s, "cpu_s": turns.longest_cpu_s}))


def main(folder: Path, job: int) -> None:
    """Be a triggerer."""
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerLoggingFactory, TriggerRunner, TriggerRunnerSupervisor
    from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

    class Runner(TriggerRunner):  # type: ignore[misc]
        """The child, which notes its longest turns."""

        async def init_comms(self) -> None:
            await super().init_comms()
            self.noting = asyncio.create_task(note_turns(folder / f"{job}.turns"))

    class Supervisor(TriggerRunnerSupervisor):  # type: ignore[misc]
        """The parent, which is told what to run by a file."""

        def load_triggers(self) -> None:
            lines = (folder / f"{job}.triggers").read_text().splitlines()
            events = folder / "events"
            fired = {json.loads(line)["id"] for line in events.read_text().splitlines()} if events.exists() else ()
            # Airflow forgets a trigger that has fired.
            self.wanted = {one["id"]: one for one in map(json.loads, lines) if one["id"] not in fired}
            self.update_triggers(set(self.wanted))

        def build_trigger_workloads(self, ids: set[int]) -> list[RunTrigger]:
            return [self._workload(self.wanted[number]) for number in sorted(ids)]

        def _workload(self, one: dict[str, Any]) -> RunTrigger:
            ti = TaskInstanceDTO(
                id=uuid.UUID(int=one["id"]), dag_version_id=uuid.UUID(int=1), task_id="train", dag_id="dag",
                run_id="run", try_number=1, map_index=-1, queue="default", pool_slots=1, priority_weight=1,
            )  # fmt: skip
            self.logger_cache[one["id"]] = TriggerLoggingFactory(
                log_path=str(folder / "logs" / f"{one['id']}.log.trigger.{job}.log"), ti=ti
            )
            kwargs = json.dumps(one["kwargs"])
            return RunTrigger(id=one["id"], classpath=one["classpath"], encrypted_kwargs=kwargs, ti=ti)

        def on_trigger_event(self, trigger_id: int, event: Any) -> None:
            with (folder / "events").open("a") as file:
                file.write(json.dumps({"id": trigger_id, "payload": event.payload, "job": job}) + "\n")

        def on_trigger_failure(self, trigger_id: int, exc: Any) -> None:
            with (folder / "events").open("a") as file:
                file.write(json.dumps({"id": trigger_id, "failure": str(exc), "job": job}) + "\n")

        def _handle_request(self, msg: Any, log: Any, req_id: int) -> None:
            if isinstance(msg, GetTaskStates):
                states = TaskStatesResult(task_states={"run": {"train": "deferred"}})
                self.send_msg(states, request_id=req_id, error=None)
                return
            super()._handle_request(msg, log, req_id)

        @classmethod
        def run_in_process(cls) -> None:
            Runner().run()

        def heartbeat(self) -> None: ...

        def clean_unused(self) -> None: ...

        def emit_metrics(self) -> None: ...

    supervisor = Supervisor.start(job=None, capacity=1000)
    supervisor.run()


def serve() -> None:
    """Fork a triggerer for each command."""
    import airflow.jobs.triggerer_job_runner  # noqa: F401

    from tests.faults.trigger import import_all

    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        folder, job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A test run that dies takes this process along.
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            try:
                main(Path(folder), job)
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
