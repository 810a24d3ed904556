"""A store, this machine as a host, ranks that write numbered lines, and the triggerers and workers that follow them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.engine.submission.submit import render, revive, submit
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed import task_logs
from testbed.forking import Process
from testbed.programs import install_programs
from testbed.standalone import wait_until
from testbed.stores import new_sqlite
from testbed.triggerer import Triggerer, Triggerers, read_logs, sent_events
from testbed.worker import Workers

CODE = Path(__file__).parents[1] / "tests" / "faults"
TRIGGER = "airflow_provider_dtrain.triggers.trial.TrialTrigger"
#: Trials at once, lines of each and lines per second.
TRIALS, LINES, RATE = 4, 1200, 200
DEADLINE_S = 180.0


def numbers(lines: int = LINES, rate: float = RATE) -> dict[str, Any]:
    """Return the configuration of a trial whose rank writes numbered lines.

    :param rate: lines per second
    """
    return {
        "name": "numbers", "entrypoint": f"python numbers.py {lines} {rate} 40", "model_dir": "code",
        "resources": {"slots_per_trial": 1, "pool": "local"}, "max_restarts": 0,
    }  # fmt: skip


class LogScene:
    """A store, this machine as a host, and triggerers and workers that come and go."""

    def __init__(self, folder: Path, *, slots: int = TRIALS) -> None:
        self.folder, self.state, self.jobs = folder, folder / "state", 0
        (folder / "logs").mkdir(exist_ok=True)
        options = dataclasses.replace(
            settings(), sql_alchemy_conn=new_sqlite(folder / "dtrain.db"), checkpoint_dir=folder / "checkpoints",
            kill_grace_s=2.0,
        )  # fmt: skip
        self.hook = DtrainHook(options)
        self._register(slots)
        self.environment = {
            "HOME": str(folder), "AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"), "AIRFLOW__DTRAIN__KILL_GRACE_S": "2",
            "AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN": options.sql_alchemy_conn,
            "AIRFLOW__DTRAIN__CHECKPOINT_DIR": str(options.checkpoint_dir),
        }  # fmt: skip

    @functools.cached_property
    def triggerers(self) -> Triggerers:
        return Triggerers(self.folder, self.environment)

    @functools.cached_property
    def workers(self) -> Workers:
        return Workers(self.folder, self.environment, numbers(), CODE / "code")

    def _register(self, slots: int) -> None:
        install_programs(Path.home())
        address = HostAddress(
            name="local", remote_dir=".dtrain", state_dir=str(self.state), python=sys.executable,
            make_transport=lambda: LocalTransport("local"),
        )  # fmt: skip
        link = self.hook.links.get(address)
        record = host_record_from_facts(
            "local", pool="local", conn_id=None, facts=link.call("probe").result(30), hello=link.hello,
            slots=f"cpu:{slots}", remote_dir=".dtrain", state_dir=str(self.state), python=sys.executable,
        )  # fmt: skip
        self.hook.store.hosts.add(record)

    def submit(self, count: int = TRIALS, lines: int = LINES, rate: float = RATE) -> list[int]:
        """Submit trials whose rank writes numbered lines."""
        document = numbers(lines, rate)
        found = []
        for number in range(count):
            key = TrialKey(dag_id="dag", run_id=os.urandom(6).hex(), task_id=f"train{number}")
            ticket = submit(self.hook, render(self.hook, document, None, CODE), key=key, folder=CODE)
            revive(self.hook.store, ticket)
            found.append(ticket.trial_id)
        return found

    def start(self, trials: list[int]) -> Triggerer:
        """Start another triggerer that carries these trials."""
        self.jobs += 1
        return self.triggerers.start(self.jobs, self.triggers(trials))

    def start_task(self, run_id: str, number: int = 1) -> Process:
        """Start a worker with one try of the task of a DAG run."""
        return self.workers.start(run_id, number)

    def trial_of(self, run_id: str) -> int:
        """Return the trial of a worker's task, once it is submitted."""

        def found() -> int | None:
            return next((one.trial_id for one in self.hook.store.trials.list() if one.key.run_id == run_id), None)

        return int(self.until(found, f"the trial of {run_id}"))

    @staticmethod
    def triggers(trials: list[int]) -> list[dict[str, Any]]:
        return [{"id": one, "classpath": TRIGGER, "kwargs": {"trial_ids": [one], "deadline": None}} for one in trials]

    def stop(self, processes: Sequence[Process], *, child: bool = True) -> None:
        """Stop processes, at a moment at which none of them is in a transaction.

        A stopped process keeps SQLite's lock, so nothing else could write until it goes on.
        """

        def is_stopped() -> bool:
            for process in processes:
                process.signal(signal.SIGSTOP, child=child)
            with contextlib.closing(sqlite3.connect(self.folder / "dtrain.db", timeout=0.5)) as connection:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    return True
                except sqlite3.OperationalError:
                    for process in processes:
                        process.signal(signal.SIGCONT, child=child)
                    return False

        self.until(is_stopped, "a moment without a transaction")

    def texts(self, trial_id: int) -> list[str]:
        """Return the records of a trial's task log, and the marks that the worker adds which resumes the task."""
        marks = [
            mark for event in self.events() if event["id"] == trial_id and "payload" in event
            for mark in event["payload"]["trials"][0]["log_marks"]
        ]  # fmt: skip
        names = (f"{trial_id}.log", f"{self.hook.store.trials.get(trial_id).key.run_id}.attempt=")
        return marks + [text for name, text in read_logs(self.folder) if name.startswith(names)]

    def events(self) -> list[dict[str, Any]]:
        """Return what triggers have sent."""
        return sent_events(self.folder)

    def shown(self, trial_id: int) -> task_logs.Shown:
        return task_logs.read(self.texts(trial_id), trial_id)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return wait_until(condition, timeout_s=DEADLINE_S, what=what, poll_s=0.1)
        except TimeoutError as error:
            out = "".join(path.read_text()[-4000:] for path in self.folder.glob("*.out"))
            raise TimeoutError(f"{error}\n{out}") from None

    def writing(self, trials: list[int], dice: random.Random, least: int = 20) -> None:
        """Return when the task log of each trial has some lines, at a moment by chance."""
        wanted = dice.randint(least, LINES // 2)
        for trial_id in trials:
            self.until(lambda one=trial_id: self.count(one) >= wanted, f"{wanted} lines of trial {trial_id}")

    def count(self, trial_id: int) -> int:
        return sum(len(counts) for counts in self.shown(trial_id).lines.values())

    def stored(self, trial_id: int) -> int:
        """Return the number of the last line in the end of the log that the store has, 0 without one."""
        store = self.hook.store
        ranks = store.events.ranks(store.trials.get(trial_id).attempt_id)
        found = task_logs.NUMBERED.findall(ranks[0].log_tail.encode()) if ranks else []
        return int(found[-1][1]) if found else 0

    def fired(self, trials: list[int]) -> None:
        """Return when the trigger of each trial has fired."""

        def there() -> bool:
            events = [event for event in self.events() if event["id"] in trials]
            assert [event for event in events if "failure" in event] == []
            return set(trials) == {event["id"] for event in events}

        self.until(there, f"the events of {trials}")

    def lost(self, trials: list[int]) -> list[str]:
        """Return which lines the task logs miss without a mark."""
        logs, found = task_logs.host_logs(self.state), []
        for trial_id in trials:
            view = self.hook.store.attempts.get(self.hook.store.trials.get(trial_id).attempt_id)
            assert view.run is not None
            assert logs[view.run].count(b"\n") == LINES, "the rank wrote all its lines"
            found += task_logs.lost(self.shown(trial_id), {view.number: (view.run, logs[view.run])})
        return found

    def close(self) -> None:
        """End every process."""
        for name in ("triggerers", "workers"):
            if name in vars(self):
                getattr(self, name).close()
        self.hook.links.close_all()
