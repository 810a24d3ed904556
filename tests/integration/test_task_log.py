"""Task logs of real ranks under Airflow's own triggerer, whose processes are killed, stopped and replaced.

``DTRAIN_TEST_REPEATS`` repeats each fault.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.recovery import recover
from airflow_provider_dtrain.engine.submission import render, revive, submit
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.local import LocalTransport
from airflow_provider_dtrain.hosts.remote import HostAddress
from airflow_provider_dtrain.store.records import TrialKey
from airflow_provider_dtrain.store.repository import Store
from tests.faults import task_logs
from tests.support.standalone import wait_until
from tests.support.triggerer import Triggerer, Triggerers, read_logs

pytestmark = [pytest.mark.slow, pytest.mark.airflow]

CODE = Path(__file__).parents[1] / "faults"
TRIGGER = "airflow_provider_dtrain.triggers.trial.TrialTrigger"
REPEATS = range(int(os.environ.get("DTRAIN_TEST_REPEATS", "1")))
#: Trials at once, lines of each and lines per second.
TRIALS, LINES, RATE = 4, 1200, 200
DEADLINE_S = 180.0


class Hall:
    """A store, this machine as a host, and triggerers that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.jobs = folder, folder / "state", 0
        options = dataclasses.replace(
            settings(), sql_alchemy_conn=f"sqlite:///{folder}/dtrain.db", checkpoint_dir=folder / "checkpoints",
            kill_grace_s=2.0,
        )  # fmt: skip
        self.hook = DtrainHook(options)
        self._register()
        environment = {
            "HOME": str(folder), "AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"), "AIRFLOW__DTRAIN__KILL_GRACE_S": "2",
            "AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN": options.sql_alchemy_conn,
            "AIRFLOW__DTRAIN__CHECKPOINT_DIR": str(options.checkpoint_dir),
        }  # fmt: skip
        self.triggerers = Triggerers(folder, environment)

    def _register(self) -> None:
        address = HostAddress(
            name="local", remote_dir=".dtrain", state_dir=str(self.state), python=sys.executable,
            make_transport=lambda: LocalTransport("local"),
        )  # fmt: skip
        link = self.hook.links.get(address)
        record = host_record_from_facts(
            "local", pool="local", conn_id=None, facts=link.call("probe").result(30), hello=link.hello,
            slots=f"cpu:{TRIALS}", remote_dir=".dtrain", state_dir=str(self.state), python=sys.executable,
        )  # fmt: skip
        self.hook.store.add_host(record)

    def submit(self, count: int = TRIALS, lines: int = LINES, rate: float = RATE) -> list[int]:
        """Submit trials whose rank writes numbered lines."""
        document = {
            "name": "numbers", "entrypoint": f"python numbers.py {lines} {rate} 40", "model_dir": "code",
            "resources": {"slots_per_trial": 1, "pool": "local"}, "max_restarts": 0,
        }  # fmt: skip
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

    @staticmethod
    def triggers(trials: list[int]) -> list[dict[str, Any]]:
        kwargs = [{"trial_id": trial_id, "deadline": None} for trial_id in trials]
        return [{"id": one["trial_id"], "classpath": TRIGGER, "kwargs": one} for one in kwargs]

    def texts(self, trial_id: int) -> list[str]:
        """Return the records of a trial's task log, and the marks that the worker adds which resumes the task."""
        marks = [
            mark for event in self.events() if event["id"] == trial_id and "payload" in event
            for mark in event["payload"]["log_marks"]
        ]  # fmt: skip
        return marks + [text for name, text in read_logs(self.folder) if name.startswith(f"{trial_id}.log")]

    def events(self) -> list[dict[str, Any]]:
        """Return what triggers have sent."""
        path = self.folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def shown(self, trial_id: int) -> task_logs.Shown:
        return task_logs.read(self.texts(trial_id), trial_id)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return wait_until(condition, timeout_s=DEADLINE_S, what=what, poll_s=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.triggerers.out.read_text()[-4000:]}") from None

    def writing(self, trials: list[int], dice: random.Random, least: int = 20) -> None:
        """Return when the task log of each trial has some lines, at a moment by chance."""
        wanted = dice.randint(least, LINES // 2)
        for trial_id in trials:
            self.until(lambda one=trial_id: self.count(one) >= wanted, f"{wanted} lines of trial {trial_id}")

    def count(self, trial_id: int) -> int:
        return sum(len(counts) for counts in self.shown(trial_id).lines.values())

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
            view = self.hook.store.attempt(self.hook.store.trial(trial_id).attempt_id)
            assert view.run is not None
            assert logs[view.run].count(b"\n") == LINES, "the rank wrote all its lines"
            found += task_logs.lost(self.shown(trial_id), {view.number: (view.run, logs[view.run])})
        return found

    def close(self) -> None:
        self.triggerers.close()
        self.hook.links.close_all()


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hall")
        patch.setenv("HOME", str(folder))
        hall = Hall(folder)
        yield hall
        hall.close()


@pytest.fixture
def trials(hall: Hall) -> list[int]:
    return hall.submit()


@pytest.fixture(params=REPEATS)
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def test_a_log_without_a_fault_is_there_once_and_in_order(hall: Hall, trials: list[int]) -> None:
    hall.start(trials)
    hall.fired(trials)
    assert hall.lost(trials) == []
    for trial_id in trials:
        shown = hall.shown(trial_id)
        assert (shown.marks, shown.repeated) == ({}, 0)
        (numbers,) = shown.lines.values()
        assert list(numbers) == list(range(LINES))


@pytest.mark.parametrize("parent", [True, False], ids=["triggerer", "runner"])
def test_a_killed_triggerer_loses_no_line(hall: Hall, trials: list[int], dice: random.Random, parent: bool) -> None:
    first = hall.start(trials)
    hall.writing(trials, dice)
    first.signal(signal.SIGKILL, parent=parent)
    hall.start(trials)
    hall.fired(trials)
    assert hall.lost(trials) == []


def test_a_stopped_triggerer_that_wakes_up_beside_another_one_loses_no_line(
    hall: Hall, trials: list[int], dice: random.Random
) -> None:
    first = hall.start(trials)
    hall.writing(trials, dice)
    first.signal(signal.SIGSTOP)
    hall.start(trials)
    hall.writing(trials, dice, least=LINES // 4)
    first.signal(signal.SIGCONT)
    hall.fired(trials)
    first.signal(signal.SIGKILL)
    assert hall.lost(trials) == []


@pytest.mark.parametrize("is_over", [False, True], ids=["during the trial", "after its end"])
def test_what_a_stopped_parent_had_not_written_is_repeated_when_it_is_killed(
    hall: Hall, trials: list[int], dice: random.Random, is_over: bool
) -> None:
    first = hall.start(trials)
    hall.writing(trials, dice)
    first.signal(signal.SIGSTOP, child=False)
    store, before = hall.hook.store, max(hall.count(one) for one in trials)
    # The runner goes on without its parent, and so do the ranks.
    hall.until(lambda: all(logged(store, one) > before + 200 for one in trials), "more lines")
    if is_over:
        hall.until(lambda: all(store.trial(one).ended_at for one in trials), "the end of the trials")
    first.signal(signal.SIGKILL)
    hall.start(trials)
    hall.fired(trials)
    assert hall.lost(trials) == []


def logged(store: Store, trial_id: int) -> int:
    """Return the number of the last line that the store's end of the log has."""
    ranks = store.ranks(store.trial(trial_id).attempt_id)
    found = task_logs.NUMBERED.findall(ranks[0].log_tail.encode()) if ranks else []
    return int(found[-1][1]) if found else 0


def test_a_trigger_that_returns_to_the_same_triggerer_shows_again_what_airflow_has_emptied(
    hall: Hall, trials: list[int], dice: random.Random
) -> None:
    first = hall.start(trials)
    hall.writing(trials, dice)
    second = hall.start(trials)
    first.set([])
    hall.writing(trials, dice, least=LINES // 4)
    second.set([])
    first.set(hall.triggers(trials))
    hall.fired(trials)
    assert hall.lost(trials) == []


def test_what_recovery_ends_in_place_of_a_killed_triggerer_is_read_by_the_next_one(
    hall: Hall, trials: list[int], dice: random.Random
) -> None:
    first = hall.start(trials)
    hall.writing(trials, dice)
    first.signal(signal.SIGKILL)
    state, store = hall.state, hall.hook.store
    runs = [str(store.attempt(store.trial(one).attempt_id).run) for one in trials]
    hall.until(
        lambda: all(task_logs.host_logs(state)[run].count(b"\n") == LINES for run in runs), "the end of the ranks"
    )
    later = Store.open(hall.hook.settings.sql_alchemy_conn, clock=lambda: datetime.now(UTC) + timedelta(seconds=90))
    hook = DtrainHook(hall.hook.settings)
    known = {one: store.trial(one) for one in trials}
    assert {view.state for view in known.values()} == {"running"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(hook), "store", property(lambda _: later))
        hall.until(
            lambda: (asyncio.run(recover(hook)), all(store.trial(one).ended_at for one in trials))[1], "recovery"
        )
    later.close()
    counts = {one: hall.count(one) for one in trials}
    hall.start(trials)
    hall.fired(trials)
    assert hall.lost(trials) == []
    assert all(hall.count(one) > counts[one] for one in trials)
