"""Time of the API behind the pages with 10,000 trials and 1,000 hosts, in a real ``airflow api-server``.

Each route that a page requests is measured three times: a view (no answer is known to the client), a poll of an
unchanged store (``If-None-Match``), and a poll after a report of a trial, a release and a grant. A view of an unchanged
store may come from the server's cache, the poll after a change never does. CPU is that of all threads of the server.
Airflow's own routes on the same server are a baseline. The store is SQLite here, and PostgreSQL in
``bench_api_postgresql``. With ``--quick`` only some routes of a small store are measured, without changes.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlencode

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    metadata,
    streams,
    trials,
)
from airflow_provider_dtrain.store.store import Store, migrate
from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from bench.large_store import seeded
from testbed.api_server import ApiServer
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import Server, server_programs

AIRFLOW = ("/api/v2/monitor/health", "/api/v2/dags", "/api/v2/pools")
PAGES = "/dtrain/api/v1"


class Client:
    """Requests of a logged-in user over one connection, as a browser sends them."""

    def __init__(self, server: ApiServer, user: str = "admin") -> None:
        self.server = server
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.headers = {"Authorization": f"Bearer {server.token(user)}", "Accept-Encoding": "gzip"}

    def get(self, path: str, tag: str | None = None) -> tuple[str | None, float, float]:
        """Return the tag of an answer, and its milliseconds by the clock and of the server's CPU."""
        headers = self.headers if tag is None else {**self.headers, "If-None-Match": tag}
        cpu, wall = self.cpu_s(), time.perf_counter()
        self.connection.request("GET", path, headers=headers)
        answer = self.connection.getresponse()
        answer.read()
        assert answer.status in (200, 304), (path, answer.status)
        return answer.headers["ETag"], 1e3 * (time.perf_counter() - wall), 1e3 * (self.cpu_s() - cpu)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server's processes so far."""
        group = os.getpgid(self.server.pid)
        total = 0
        for task in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(task.name)) == group:
                    total += sum(int(one.read_text().split()[0]) for one in task.glob("task/*/schedstat"))
        return total / 1e9


class Changes:
    """Small changes of the store, as followers make them."""

    def __init__(self, url: str) -> None:
        self.store = Store.open(url)
        with self.store.db.engine.connect() as conn:
            of = sa.select(attempts.c.id, attempts.c.watch, allocation_slots.c.host, streams.c.position)
            of = of.join(allocation_slots, allocation_slots.c.allocation_id == attempts.c.allocation_id)
            of = of.join(streams, streams.c.attempt_id == attempts.c.id)
            running = of.where(attempts.c.state == "running", allocation_slots.c.released_at.is_(None)).distinct()
            self.running = [list(row) for row in conn.execute(running.order_by(attempts.c.id))]
            waiting = sa.select(attempts.c.id, attempts.c.watch).where(attempts.c.ended_at.is_(None))
            self.live = {row.id: row.watch for row in conn.execute(waiting)}
            self.trial = int(
                conn.scalar(sa.select(trials.c.id).join(attempts).where(attempts.c.id == self.running[0][0])) or 0
            )

    def renew(self) -> None:
        """Renew all leases: followers do it every few seconds."""
        self.store.attempts.renew(self.live)
        with self.store.db.engine.begin() as conn:
            is_live = allocations.c.state.in_(("waiting", "granted", "running"))
            conn.execute(allocations.update().where(is_live).values(renewed_at=self.store.db.now()))

    def one(self, number: int) -> None:
        """Report a metric and a rung of one trial, end another one, and grant its slots."""
        attempt, watch, host, position = self.running[0]
        body = {"at": time.time(), "step": 100_000 + number, "epoch": 300.0 + number}
        report = {**body, "seq": 10_000 + number, "kind": "validation", "metrics": {"accuracy": 0.5}}
        self.store.events.commit(attempt, watch, host, "rank0.events", position, position + 1, [report])
        self.running[0][3] += 1
        attempt, watch, host, _ = self.running.pop()
        self.store.queue.release(attempt, watch, host, proof="clear")
        self.store.attempts.end(attempt, watch, state="completed")
        self.store.queue.schedule("big")


def repeated(name: str, values: Iterable[object]) -> str:
    """Return a part of a query string."""
    return urlencode([(name, value) for value in values])


#: A filter and columns of the table of runs, which no index helps.
RUNS = urlencode({"where": 'metrics.accuracy > 0.3 and params.lr < 0.01 and tag != "x"', "column": "metrics.accuracy"})


def routes(trial: int) -> dict[str, str]:
    """Return the routes that pages request, by words."""
    experiment = "/experiments/1"
    return {
        "me": "/me",
        "cluster": "/cluster",
        "utilization of 40 hosts": "/cluster/utilization?" + repeated("host", [f"gpu-{n:04d}" for n in range(40)]),
        "heat map of 40 hosts": "/cluster/heat?metric=load&" + repeated("host", [f"gpu-{n:04d}" for n in range(40)]),
        "use by day": "/cluster/usage?by=dag&days=14",
        "day of 12 hosts": "/cluster/day?" + repeated("host", [f"gpu-{n:04d}" for n in range(12)]),
        "host": "/hosts/gpu-0000",
        "queue": "/queue?order=asc&sort=position&limit=100&offset=0",
        "queue, its end": "/queue?order=asc&sort=position&limit=100&offset=2000",
        "experiments": "/experiments?order=desc&sort=created_at&limit=100&offset=0",
        "experiment": experiment,
        "trials by number": "/trials?experiment_id=1&order=asc&sort=number&limit=100&offset=0",
        "trials by metric": "/trials?experiment_id=1&order=desc&sort=best_metric&limit=100&offset=5000",
        "trials by a hyperparameter": "/trials?experiment_id=1&order=asc&sort=hparams.lr&limit=100&offset=0",
        "trials by duration": "/trials?experiment_id=1&order=asc&sort=duration_s&limit=100&offset=0",
        "trials by text": "/trials?experiment_id=1&order=asc&sort=number&limit=100&offset=0&q=adam",
        "runs": "/runs?order=desc&sort=trial&limit=100&offset=0&column=experiment&column=state&column=best&column=tag",
        "runs by a filter": "/runs?" + RUNS + "&order=desc&sort=metrics.accuracy&limit=100&offset=0",
        "runs in groups": "/runs/groups?by=params.optimizer&order=desc&sort=mean%3Ametrics.accuracy&" + RUNS,
        "names of runs": "/runs/names",
        "views of runs": "/runs/views",
        "failures": experiment + "/failures",
        "timeline of an experiment": experiment + "/timeline",
        "comments of an experiment": experiment + "/comments",
        "fork": experiment + "/fork",
        "templates": "/templates",
        "curves of 100 trials": experiment + "/curves?group=validation&limit=100&max_points=500&select=best&x=epochs",
        "hyperparameters": experiment + "/hyperparameters",
        "rungs": experiment + "/rungs",
        "configuration": experiment + "/config",
        "trial": f"/trials/{trial}",
        "curves of a trial": f"/trials/{trial}/curves?max_points=2000",
        "telemetry of a trial": f"/trials/{trial}/telemetry?max_points=800",
        "timings of a trial": f"/trials/{trial}/timings",
        "step times of a trial": f"/trials/{trial}/step_times?buckets=200",
        "profile of a trial": f"/trials/{trial}/profile",
        "provenance": f"/trials/{trial}/provenance",
        "configuration of a trial": f"/trials/{trial}/config",
        "explanation": f"/trials/{trial}/explanation",
        "media": f"/trials/{trial}/media",
        "lines of a log": f"/trials/{trial}/log/lines?rank=0&first=-200&count=200",
        "timeline": f"/trials/{trial}/timeline",
        "ranks": f"/trials/{trial}/ranks",
        "checkpoints": f"/trials/{trial}/checkpoints",
        "outputs": f"/trials/{trial}/outputs",
        "compare 8 trials": "/compare?" + repeated("trial", range(1, 9)),
        "differences of 8 trials": "/differences/trials?" + repeated("trial", range(1, 9)),
        "curves of 8 trials": "/curves?metric=accuracy&x=batches&max_points=2000&" + repeated("trial", range(1, 9)),
    }  # fmt: skip


VIEW, UNCHANGED, CHANGED, AIRFLOWS = "view", "unchanged", "changed", "Airflow's route"
#: Routes of a quick run.
FEW = ("cluster", "queue", "trials by metric", "trial")


class Routes:
    """Requests of all routes to one server."""

    def __init__(self, run: Run, client: Client, changes: Changes, database: str) -> None:
        self.run, self.client, self.changes, self.database = run, client, changes, database

    def add(self, route: str, side: str, path: str, tag: str | None = None) -> str | None:
        """Request a path, and add its cost. Return its tag."""
        found, wall_ms, cpu_ms = self.client.get(path, tag)
        self.run.add(f"{route}, {self.database}", side, wall_ms)
        self.run.add(f"CPU, {self.database}", side, cpu_ms)
        return found

    def measure(self, route: str, path: str, rounds: int) -> None:
        """Add the cost of one route."""
        tag, _, _ = self.client.get(path)
        for _ in range(rounds):
            self.add(route, VIEW, path)
            if tag is not None:
                self.add(route, UNCHANGED, path, tag)
        # The small store of a quick run has few trials that could end.
        for number in range(0 if self.run.is_quick else rounds):
            self.changes.one(time.monotonic_ns() + number)
            self.add(route, CHANGED, path, tag)


def on_sqlite(run: Run) -> None:
    """Measure all routes on the seeded store."""
    on_store(run, seeded(run), SQLITE)


def on_postgresql(run: Run) -> None:
    """Measure all routes on a copy of the seeded store."""
    programs = server_programs()
    assert programs is not None
    database = Server(programs)
    try:
        database.start()
        url = database.new_database()
        migrate(url)
        copy(seeded(run), url)
        on_store(run, url, POSTGRESQL)
    finally:
        database.stop()


def on_store(run: Run, url: str, name: str) -> None:
    """Measure all routes on one store."""
    server = ApiServer(run.folder / name, url)
    migrate_metadata(server.environment)
    try:
        server.start()
        of_server(run, Client(server), Changes(url), name)
    finally:
        server.stop()


def of_server(run: Run, client: Client, changes: Changes, database: str) -> None:
    """Measure all routes on one server."""
    found = Routes(run, client, changes, database)
    for path in AIRFLOW:
        client.get(path)
        for _ in range(run.rounds):
            found.add(AIRFLOWS, path, path)
    for route, path in routes(changes.trial).items():
        if not run.is_quick or route in FEW:
            changes.renew()
            found.measure(route, PAGES + path, run.rounds)


def copy(source: str, target: str) -> None:
    """Copy the rows of a store into an empty one of PostgreSQL."""
    old, new = Store.open(source), sa.create_engine(target)
    with old.db.engine.connect() as reading, new.begin() as writing:
        # A row may refer to a later one of its table. The copy has them all.
        writing.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for table in reversed(metadata.sorted_tables):
            writing.execute(table.delete())
        for table in metadata.sorted_tables:
            for some in reading.execute(sa.select(table)).mappings().partitions(5000):
                writing.execute(table.insert(), [dict(row) for row in some])
            for column in table.primary_key:
                if column.autoincrement is True:
                    highest = sa.select(sa.func.coalesce(sa.func.max(column), 1)).scalar_subquery()
                    sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
                    writing.execute(sa.select(sa.func.setval(sequence, highest)))
    with new.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    old.close()
    new.dispose()


SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
STATES = {VIEW: OURS, UNCHANGED: OURS, CHANGED: OURS}
GOALS = tuple(Goal(side=side, at_most=100, quantile=0.95) for side in STATES)


def bench(database: str, measure: Callable[[Run], None], missing: Callable[[], str | None] = lambda: None) -> Bench:
    """Return the benchmark of one database."""
    rows = [
        Row(
            name=f"{AIRFLOWS}, {database}",
            what="Airflow's own routes",
            unit="ms",
            sides=dict.fromkeys(AIRFLOW, PEER),
        ),
        *(
            Row(name=f"{route}, {database}", what="One request", unit="ms", sides=STATES, goals=GOALS)
            for route in routes(0)
        ),
        Row(
            name=f"CPU, {database}",
            what="CPU of the server, all routes",
            unit="ms of CPU",
            sides={**STATES, **dict.fromkeys(AIRFLOW, PEER)},
        ),
    ]
    return Bench(
        what=f"Requests of the pages, with 10,000 trials and 1,000 hosts on {database}",
        rows=tuple(rows),
        measure=measure,
        rounds=(10, 5),
        missing=missing,
    )


BENCH = bench(SQLITE, on_sqlite)
