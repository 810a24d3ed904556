"""Work on a store beside many finished trials, and its costs."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from airflow_provider_dtrain.store.queries.experiments import experiment_detail, experiment_page
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.trials import trial_detail, trial_page
from airflow_provider_dtrain.store.records.pages import ExperimentQuery, QueueQuery, TrialQuery
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from testbed.stored_trials import POOL, fill
from testbed.stores import Server, new_sqlite, server_programs

#: CPU seconds of a measurement, and its most repetitions.
LEAST_S, MOST = 0.3, 60
#: How each piece of work is named, and what does it.
Work = Mapping[str, Callable[[Store, int], object]]


class Costs:
    """CPU time of work on a store: of this process, and of its backends on a server of this machine."""

    def __init__(self, store: Store) -> None:
        self._engine = store.db.engine
        self._numbers = itertools.count()

    def of(self, work: Callable[[int], object]) -> float:
        """Return the CPU milliseconds of one call, the mean of several."""
        work(next(self._numbers))
        before = self._backends_s()
        began, calls = time.process_time(), 0
        while calls < MOST and (calls < 3 or time.process_time() - began < LEAST_S):
            work(next(self._numbers))
            calls += 1
        cpu_s = time.process_time() - began
        return (cpu_s + self._backends_s() - before) / calls * 1000

    def once(self, work: Callable[[int], object]) -> float:
        """Return CPU seconds of a single call, which changes the store."""
        before, began = self._backends_s(), time.process_time()
        work(next(self._numbers))
        return time.process_time() - began + self._backends_s() - before

    def _backends_s(self) -> float:
        if self._engine.dialect.name != "postgresql":
            return 0.0
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        with self._engine.connect() as connection:
            return sum(map(_cpu_s, connection.exec_driver_sql(query).scalars().all()))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def stores(database: str, folder: Path, counts: list[int]) -> Iterator[Iterator[tuple[int, Store]]]:
    """Yield a generator of (number of finished trials, store with them).

    :param database: ``sqlite`` or ``postgresql``
    """
    server = None
    if database == "postgresql":
        programs = server_programs()
        assert programs is not None
        server = Server(programs)
        server.start()

    def opened() -> Iterator[tuple[int, Store]]:
        for count in counts:
            url = new_sqlite(folder / str(count) / "dtrain.db") if server is None else server.add_database(f"s{count}")
            migrate(url)
            store = Store.open(url)
            try:
                fill(store, count)
                yield count, store
            finally:
                store.close()

    try:
        yield opened()
    finally:
        if server is not None:
            server.stop()


def remove_all(store: Store) -> None:
    """Remove the data of all trials, as ``airflow dtrain gc`` does after some months."""
    for _ in store.retention.remove(store.db.now() + timedelta(days=1)):
        pass


def _life(store: Store, number: int) -> None:
    config = store.configs.put({}, origins={}).config_id
    key = TrialKey(dag_id="new", run_id=str(number), task_id="train")
    trial = TrialSubmission(key=key, experiment_name="new", config_id=config, pool=POOL, slots=1)
    ticket = store.trials.submit(trial)
    watch = store.attempts.watch(ticket.attempt_id, watcher="bench")
    store.queue.schedule(POOL)
    store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {}})
    store.attempts.set_running(ticket.attempt_id, watch)
    event = {"kind": "report", "seq": 1, "step": 1, "at": time.time(), "metrics": {"loss": 1.0}}
    store.events.commit(ticket.attempt_id, watch, "stored", "rank0.events", 0, 1, [event])
    store.attempts.renew({ticket.attempt_id: watch})
    store.attempts.get(ticket.attempt_id)
    store.control.pending(ticket.attempt_id)
    store.queue.release(ticket.attempt_id, watch, "stored", proof="clear")
    store.attempts.end(ticket.attempt_id, watch, state="completed", result={})


def _recovery(store: Store, _: int) -> None:
    store.recovery.recoverable()
    store.recovery.hosts_to_probe()
    store.hosts.with_blocked_slots()


_ALL = AllRights()
#: What is independent of the number of finished trials, given a store and a number that no earlier call had.
CONSTANT: Work = {
    "life of a trial, without hosts": _life,
    "round of recovery": _recovery,
    "trials without a follower": lambda store, _: store.recovery.unfollowed(),
    "gangs of the queue": lambda store, _: store.queue_view.tasks(),
    "slots of the pools": lambda store, _: store.cluster_page.pools(),
    "trials list --state running": lambda store, _: trial_page(store, _ALL, TrialQuery(states=["running"])),
    "trials show": lambda store, _: trial_detail(store, _ALL, 1),
    "experiments show": lambda store, _: experiment_detail(store, _ALL, 1),
    "page of the queue": lambda store, _: (store.queue_view.version(), store.queue_view.page(QueueQuery())),
    "trials of a task": lambda store, _: store.lookup.trials("stored", "r", "trial", 1),
    "timeline of a trial": lambda store, _: store.timeline.of_trial(1),
}
#: What counts trials or experiments, and so grows at most linearly.
LINEAR: Work = {
    "trials list": lambda store, _: trial_page(store, _ALL, TrialQuery(sort="created_at", descending=True)),
    "experiments list": lambda store, _: experiment_page(store, _ALL, ExperimentQuery()),
    "page of experiments: version": lambda store, _: store.experiment_table.version(),
    "gc: archives in use": lambda store, _: store.retention.needed_archives(store.db.now()),
    "gc: nothing to remove": lambda store, _: list(store.retention.remove(store.db.now() - timedelta(days=1))),
}
