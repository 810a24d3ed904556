"""Airflow's own triggerer without its database, with its real parent process, runner and log files.

``FOLDER/<JOB>.triggers`` lists the triggers to run, one JSON document per line: id, classpath, kwargs. Events are
appended to ``FOLDER/events``. Airflow's code opens and empties ``FOLDER/logs/<id>.log.trigger.<JOB>.log``.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.forking import Forker, Process, serve
from testbed.turns import Turns


class Triggerers:
    """Starts triggerers.

    :param environment: more variables
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        (folder / "logs").mkdir(exist_ok=True)
        self._forker = Forker("testbed.triggerer", folder / "triggerers.out", environment)

    def start(self, job: int, triggers: list[dict[str, Any]]) -> Triggerer:
        """Start a triggerer that runs the given triggers."""
        found = Triggerer(self.folder, job)
        found.set(triggers)
        found.pid = self._forker.fork(str(self.folder), job)
        return found

    def kill(self) -> None:
        """End the triggerers that were started so far."""
        self._forker.kill()

    def close(self) -> None:
        """End every triggerer."""
        self._forker.close()


class Triggerer(Process):
    """A triggerer process and its child.

    :param job: number of this triggerer, which is part of the names of its log files
    """

    def __init__(self, folder: Path, job: int) -> None:
        super().__init__(0)
        self.folder, self.job = folder, job

    def set(self, triggers: list[dict[str, Any]]) -> None:
        """Replace the list of triggers to run."""
        path = self.folder / f"{self.job}.triggers"
        path.with_suffix(".new").write_text("".join(json.dumps(one) + "\n" for one in triggers))
        path.with_suffix(".new").rename(path)


def read_logs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of each record of all task logs."""
    for path in sorted((folder / "logs").glob("*.log")):
        for line in path.read_bytes().splitlines():
            # A killed process leaves an unfinished line.
            if line.endswith(b"}"):
                yield path.name, str(json.loads(line).get("event"))


def sent_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events that triggers have sent, without a line that is being written."""
    path = folder / "events"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


async def note_turns(path: Path) -> None:
    """Write the longest turns of the running loop since the file was last removed, each second."""
    turns = Turns().begin()
    while True:
        await asyncio.sleep(1.0)
        if not path.exists():
            turns.longest_s = turns.longest_cpu_s = 0.0
        path.write_text(json.dumps({"wall_s": turns.longest_s, "cpu_s": turns.longest_cpu_s}))


def main(folder: Path, job: int) -> None:
    """Run a triggerer."""
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerLoggingFactory, TriggerRunner, TriggerRunnerSupervisor
    from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

    class Runner(TriggerRunner):  # type: ignore[misc]
        """The child. It records its longest turns."""

        async def init_comms(self) -> None:
            await super().init_comms()
            self.noting = asyncio.create_task(note_turns(folder / f"{job}.turns"))

    class Supervisor(TriggerRunnerSupervisor):  # type: ignore[misc]
        """The parent. It reads the triggers to run from a file."""

        def load_triggers(self) -> None:
            lines = (folder / f"{job}.triggers").read_text().splitlines()
            fired = {one["id"] for one in sent_events(folder)}
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


if __name__ == "__main__":
    import airflow.jobs.triggerer_job_runner  # noqa: F401

    from testbed.deadlines import import_all

    import_all()
    serve(lambda folder, job: main(Path(folder), job))
