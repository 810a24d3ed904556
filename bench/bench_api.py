"""Time of the API behind the pages with 10,000 trials and 1,000 hosts, in a real ``airflow api-server``.

    python -m bench.bench_api [--postgresql] [--store URL] [--rounds 20] [--only cluster,queue]

Each route that a page requests is measured three times: a view (no answer is known to the client), a poll of an
unchanged store (``If-None-Match``), and a poll after a report of a trial, a release and a grant. A view of an unchanged
store may come from the server's cache, the poll after a change never does. CPU is that of all threads of the server.
The first lines are Airflow's own routes on the same server, as a baseline. Seeding takes minutes: ``--store`` uses a
store that ``python -m testbed.seed --scene large`` has filled, and changes it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from testbed.api_server import ApiServer
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import Server, server_programs

GOAL_MS = 100
AIRFLOW = ("/api/v2/monitor/health", "/api/v2/dags", "/api/v2/pools")
PAGES = "/dtrain/api/v1"


@dataclass
class Cost:
    """Figures of the requests of one kind."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def words(self) -> str:
        """Return p50 and p95 of wall and CPU."""
        if not self.wall_ms:
            return "- | -"
        return " | ".join(f"{statistics.median(of):.0f} / {high(of):.0f}" for of in (self.wall_ms, self.cpu_ms))


def high(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


class Client:
    """Requests of a logged-in user over one connection, as a browser sends them."""

    def __init__(self, server: ApiServer, user: str = "admin") -> None:
        self.server = server
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.headers = {"Authorization": f"Bearer {server.token(user)}", "Accept-Encoding": "gzip"}

    def get(self, path: str, tag: str | None = None, cost: Cost | None = None) -> tuple[int, str | None, int]:
        """Return status, tag and size of an answer, and add its cost."""
        headers = self.headers if tag is None else {**self.headers, "If-None-Match": tag}
        cpu, wall = self.cpu_s(), time.perf_counter()
        self.connection.request("GET", path, headers=headers)
        answer = self.connection.getresponse()
        body = answer.read()
        if cost is not None:
            cost.wall_ms.append(1e3 * (time.perf_counter() - wall))
            cost.cpu_ms.append(1e3 * (self.cpu_s() - cpu))
        return answer.status, answer.headers["ETag"], len(body)

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


def routes(trial: int) -> dict[str, str]:
    """Return the routes that pages request, by words."""
    experiment = "/experiments/1"
    return {
        "me": "/me",
        "cluster": "/cluster",
        "utilization of 40 hosts": "/cluster/utilization?" + repeated("host", [f"gpu-{n:04d}" for n in range(40)]),
        "queue": "/queue?order=asc&sort=position&limit=100&offset=0",
        "queue, its end": "/queue?order=asc&sort=position&limit=100&offset=2000",
        "experiments": "/experiments?order=desc&sort=created_at&limit=100&offset=0",
        "experiment": experiment,
        "trials by number": "/trials?experiment_id=1&order=asc&sort=number&limit=100&offset=0",
        "trials by metric": "/trials?experiment_id=1&order=desc&sort=best_metric&limit=100&offset=5000",
        "trials by a hyperparameter": "/trials?experiment_id=1&order=asc&sort=hparams.lr&limit=100&offset=0",
        "trials by duration": "/trials?experiment_id=1&order=asc&sort=duration_s&limit=100&offset=0",
        "trials by text": "/trials?experiment_id=1&order=asc&sort=number&limit=100&offset=0&q=adam",
        "curves of 100 trials": experiment + "/curves?group=validation&limit=100&max_points=500&select=best&x=epochs",
        "hyperparameters": experiment + "/hyperparameters",
        "rungs": experiment + "/rungs",
        "configuration": experiment + "/config",
        "trial": f"/trials/{trial}",
        "curves of a trial": f"/trials/{trial}/curves?max_points=2000",
        "telemetry of a trial": f"/trials/{trial}/telemetry?max_points=800",
        "timings of a trial": f"/trials/{trial}/timings",
        "step times of a trial": f"/trials/{trial}/step_times?buckets=200",
        "timeline": f"/trials/{trial}/timeline",
        "ranks": f"/trials/{trial}/ranks",
        "checkpoints": f"/trials/{trial}/checkpoints",
        "outputs": f"/trials/{trial}/outputs",
        "compare 8 trials": "/compare?" + repeated("trial", range(1, 9)),
        "curves of 8 trials": "/curves?metric=accuracy&x=batches&max_points=2000&" + repeated("trial", range(1, 9)),
    }  # fmt: skip


def measure(client: Client, path: str, rounds: int, changes: Changes | None) -> None:
    """Print one line."""
    views, polls, after = Cost(), Cost(), Cost()
    status, tag, size = client.get(path)
    assert status == 200, (path, status)
    for _ in range(rounds):
        client.get(path, cost=views)
        if tag is not None:
            client.get(path, tag, polls)
    for number in range(rounds if changes is not None else 0):
        assert changes is not None
        changes.one(time.monotonic_ns() + number)
        client.get(path, tag, after)
    words = path.removeprefix(PAGES)
    name = next((name for name, one in routes(changes.trial).items() if one == words), words) if changes else words
    slow = " **slow**" if max(map(high, filter(None, (views.wall_ms, polls.wall_ms, after.wall_ms)))) > GOAL_MS else ""
    print(f"| {name}{slow} | {size / 1e3:.1f} | {views.words()} | {polls.words()} | {after.words()} |", flush=True)


@contextlib.contextmanager
def store_url(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Yield the URL of a seeded store."""
    url = options.store or f"sqlite:///{folder / 'large.db'}"
    if not options.store:
        command = [sys.executable, "-m", "testbed.seed", "--store", url, "--scene", "large"]
        subprocess.run(command, check=True)
    if not options.postgresql:
        yield url
        return
    server = Server(server_programs() or sys.exit("PostgreSQL's programs are not installed"))
    try:
        server.start()
        target = server.new_database()
        migrate(target)
        copy(url, target)
        yield target
    finally:
        server.stop()


def copy(source: str, target: str) -> None:
    """Copy the rows of a store into an empty one of PostgreSQL."""
    old, new = Store.open(source), sa.create_engine(target)
    with old.db.engine.connect() as reading, new.begin() as writing:
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="words that a route's name contains, separated by commas")
    parser.add_argument("--postgresql", action="store_true", help="copy the store into a server of PostgreSQL")
    parser.add_argument("--store", help="URL of a SQLite store with the scene 'large'")
    options = parser.parse_args()
    wanted = [word for word in options.only.split(",") if word]
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as home, store_url(options, Path(home)) as url:
        server = ApiServer(Path(home), url)
        migrate_metadata(server.environment)
        server.start()
        try:
            client, changes = Client(server), Changes(url)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, {url.split(':')[0]}; ms as p50 / p95")
            print("| route | kB sent | view: wall | CPU | unchanged: wall | CPU | changed: wall | CPU |")
            print("|---|---|---|---|---|---|---|---|")
            for path in AIRFLOW:
                measure(client, path, options.rounds, None)
            for name, path in routes(changes.trial).items():
                if not wanted or any(word in name for word in wanted):
                    changes.renew()
                    measure(client, PAGES + path, options.rounds, changes)
            print(f"load {os.getloadavg()[0]:.1f} at the end")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
