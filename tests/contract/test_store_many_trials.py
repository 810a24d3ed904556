"""Work beside many finished trials: its cost does not grow with their number, or at most linearly.

Work is counted in steps of SQLite's machine, which do not depend on the load of this one.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from testbed.stored_trials import POOL, fill
from testbed.stores import new_sqlite

FEW, MANY = 100, 1000
#: Steps between two calls of the counter.
GRAIN = 50
WORK = {
    "attempts without a follower": lambda store: store.recovery.recoverable(),
    "trials without a follower": lambda store: store.recovery.unfollowed(),
    "running trials": lambda store: store.trials.list(state="running"),
    "gangs": lambda store: store.queue_view.tasks(),
    "pools": lambda store: store.cluster_page.pools(),
    "version of the queue": lambda store: store.queue_view.version(),
    "a pass": lambda store: store.queue.schedule(POOL),
    "progress of running trials": lambda store: store.experiment_table.get(1),
    "the newest trials": lambda store: store.trials.list(limit=10),
    "trials of a task": lambda store: store.lookup.trials("stored", "r", "trial", 1),
}


class Counted:
    """A store that counts the steps of its statements."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._calls = 0
        sa.event.listen(store.db.engine, "checkout", lambda driver, *_: driver.set_progress_handler(self._note, GRAIN))

    def _note(self) -> int:
        self._calls += 1
        return 0

    def steps(self, work) -> int:
        work(self.store)  # The first call finds more to do.
        return self.first_steps(work)

    def first_steps(self, work) -> int:
        self._calls = 0
        work(self.store)
        return self._calls * GRAIN


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    opened = {}
    for count in (FEW, MANY):
        store = Store.open(new_sqlite(tmp_path_factory.mktemp("many") / str(count) / "dtrain.db"))
        fill(store, count)
        _run(store)
        opened[count] = Counted(store)
    yield opened
    for one in opened.values():
        one.store.close()


def _run(store: Store) -> None:
    """Let one trial run, and leave one in the queue."""
    config = store.configs.put({}, origins={}).config_id
    for number, slots in enumerate((1, 10)):
        key = TrialKey(dag_id="now", run_id="r", task_id=f"t{number}")
        trial = TrialSubmission(key=key, experiment_name="now", config_id=config, pool=POOL, slots=slots)
        ticket = store.trials.submit(trial)
        watch = store.attempts.watch(ticket.attempt_id, watcher="me")
        store.queue.schedule(POOL)
        if number == 0:
            store.queue.take_up(ticket.attempt_id, watch)
            store.attempts.set_running(ticket.attempt_id, watch)


@pytest.mark.parametrize("name", WORK)
def test_finished_trials_cost_the_work_on_the_others_nothing(stores, name):
    few, many = (stores[count].steps(WORK[name]) for count in (FEW, MANY))
    assert many <= few * 1.2 + 200


def test_the_version_of_the_experiments_costs_little_per_finished_trial(stores):
    few, many = (stores[count].steps(lambda store: store.experiment_table.version()) for count in (FEW, MANY))
    assert (many - few) / (MANY - FEW) < 3


def test_the_archives_in_use_are_found_without_the_trials_that_used_them(stores):
    few, many = (stores[count].steps(lambda store: store.retention.needed_archives(store.db.now())) for count in stores)
    assert (many - few) / (MANY - FEW) < 3


def test_a_removal_costs_the_same_per_trial_whatever_their_number(stores):
    per_trial = []
    for count, counted in stores.items():
        cutoff, removed = counted.store.db.now() + timedelta(days=1), []
        steps = counted.first_steps(lambda store: removed.extend(store.retention.remove(cutoff)))  # noqa: B023
        assert sum(one.count for one in removed) >= 5 * count
        per_trial.append(steps / count)
    assert per_trial[1] < per_trial[0] * 1.5
