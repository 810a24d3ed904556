"""Stand-in for a triggerer, in a process that tests may kill, stop and restart.

As a program it imports everything once and reads commands: each line forks a trigger process, whose pid is the answer.
A trigger process follows every trial that has not ended, with the provider's own trigger, and starts the next attempt
of a trial that failed because of its host, as Airflow's retries do.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from testbed.deadlines import import_all
from testbed.turns import Turns

RETRIES, RETRY_DELAY_S, LOOK_S = 30, 1.0, 0.5
log = logging.getLogger("trigger")


class Trigger:
    """Follows all trials of the store.

    :param clock_file: holds the offset of the store's clock in seconds
    """

    def __init__(self, clock_file: Path) -> None:
        from airflow_provider_dtrain.hooks import dtrain

        self.clock_file, self.carried, self.tries = clock_file, dict[int, asyncio.Future[None]](), dict[int, int]()
        self.hook, self.folder = dtrain.DtrainHook(), clock_file.parent
        self.dtrain = dtrain

    def now(self) -> datetime:
        try:
            off_s = float(self.clock_file.read_text() or 0)
        except (OSError, ValueError):
            off_s = 0.0
        return datetime.now(UTC) + timedelta(seconds=off_s)

    async def run(self) -> None:
        from airflow_provider_dtrain.engine.session.threads import in_thread

        store = await self.open_store()
        turns = Turns().begin()
        while True:
            self.note(turns)
            try:
                trials = await in_thread(store.trials.list, limit=None)
            except Exception as error:
                log.warning("The store does not answer: %s", error)
                trials = []
            for trial in trials:
                running = self.carried.get(trial.trial_id)
                if (running is None or running.done()) and self.wants(trial):
                    self.carried[trial.trial_id] = asyncio.ensure_future(self.carry(trial.trial_id))
            await asyncio.sleep(LOOK_S)

    def note(self, turns: Turns) -> None:
        """Write the longest turns of the event loop to a file."""
        found = {"wall_s": turns.longest_s, "cpu_s": turns.longest_cpu_s}
        (self.folder / f"turns-{os.getpid()}.json").write_text(json.dumps(found))

    async def open_store(self) -> Any:
        from airflow_provider_dtrain.engine.session.threads import in_thread
        from airflow_provider_dtrain.store.store import Store

        url = self.hook.settings.sql_alchemy_conn
        while True:
            try:
                store = await in_thread(Store.open, url, clock=self.now)
            except Exception as error:
                log.warning("The store cannot be opened: %s", error)
                await asyncio.sleep(0.5)
                continue
            self.dtrain._shared().stores[url] = store
            return store

    def wants(self, trial: Any) -> bool:
        if trial.state in ("queued", "running", "paused") or not self.has_fired(trial.trial_id):
            return True
        return self.is_failed(trial) and self.tries.get(trial.trial_id, 0) < RETRIES

    @staticmethod
    def is_failed(trial: Any) -> bool:
        return trial.state == "errored" and (trial.failure or {}).get("kind") in ("infra", "platform")

    def has_fired(self, trial_id: int) -> bool:
        """Return whether Airflow has received a trial's event. Until then it restarts the trigger."""
        path = self.folder / "fired"
        return path.exists() and str(trial_id) in path.read_text().split()

    def trigger(self, kind: type[Any], trial_id: int) -> Any:
        """Return a trigger with its own task log, one per try and triggerer as in Airflow."""
        (self.folder / "task-logs").mkdir(exist_ok=True)
        name = f"trial-{trial_id}.{os.getpid()}.{self.tries[trial_id]}.log"
        path = self.folder / "task-logs" / name
        task_log = logging.Logger(f"trial {trial_id}", logging.INFO)
        task_log.addHandler(logging.FileHandler(path, mode="w", delay=True))
        task_log.parent = log
        trigger = kind([trial_id])
        trigger._log, trigger._log_file = task_log, lambda: name
        return trigger

    async def carry(self, trial_id: int) -> None:
        """Act as one try of a trial's task: start, defer, end."""
        from airflow_provider_dtrain.engine.session.threads import in_thread
        from airflow_provider_dtrain.engine.submission.submit import revive
        from airflow_provider_dtrain.store.records.trials import Ticket
        from airflow_provider_dtrain.triggers.trial import TrialTrigger

        self.tries[trial_id] = self.tries.get(trial_id, 0) + 1
        trigger = self.trigger(TrialTrigger, trial_id)
        try:
            view = await in_thread(self.hook.store.trials.get, trial_id)
            ticket = Ticket(
                experiment_id=view.experiment_id, trial_id=trial_id, attempt_id=view.attempt_id,
                attempt_number=view.attempts, allocation_id=0,
            )  # fmt: skip
            if view.ended_at is None or self.is_failed(view):
                await in_thread(revive, self.hook.store, ticket)
            async for event in trigger.run():
                log.info("trial %s: %s", trial_id, json.dumps(event.payload)[:500])
                for mark in event.payload["trials"][0]["log_marks"]:
                    trigger.log.warning("%s", mark)
                with (self.folder / "fired").open("a") as file:
                    file.write(f"{trial_id}\n")
        except Exception:
            log.exception("trial %s: the trigger failed", trial_id)
        await asyncio.sleep(RETRY_DELAY_S)


def become(log_file: str, clock_file: str) -> None:
    # This process is killed when its parent dies.
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(fd, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    form = f"%(asctime)s {os.getpid()} %(name)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, force=True)
    logging.getLogger("paramiko").setLevel(logging.ERROR)
    asyncio.run(Trigger(Path(clock_file)).run())


def main() -> None:
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                become(*arguments)
            except BaseException:
                log.exception("the trigger process ended")
            os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
