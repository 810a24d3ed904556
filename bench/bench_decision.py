"""Cost of a decision at a rung in the store, after 1,000 trials have reported there.

Run: ``python bench/bench_decision.py`` (``--only sqlite`` skips PostgreSQL). For each database it prints the cost of a
commit of one plain event, of one rung event, and the difference: medians over many trials of wall-clock time, CPU time
of this process, and number of statements. It exits with 1 when the median of a commit with a rung event misses its
goal.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1]))

from airflow_provider_dtrain.store.database.tables import allocations, attempts, rung_entries, trials
from airflow_provider_dtrain.store.records.searches import SearchSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store, migrate
from testbed.stores import Server, host, server_programs

GOALS_MS = {"sqlite": 2.0, "postgresql": 5.0}
DIVISOR = 4
RUNGS = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Sample:
    wall_ms: float
    cpu_ms: float
    statements: int


def fill(store: Store, reported: int, asking: int) -> list[int]:
    """Return the attempts of running trials, in a search in which ``reported`` trials have reported."""
    store.hosts.add(host("a", 8))
    config = store.configs.put({"entrypoint": "python train.py"}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id="plan")
    search = store.searches.create(
        SearchSubmission(
            key=key, experiment_name="e", config_id=config, method="async_halving", metric="loss", divisor=DIVISOR,
            rungs={0: RUNGS}, max_trials=reported + asking,
        )
    )  # fmt: skip
    now, draw = store.db.clock(), random.Random(5)
    numbers = range(1, reported + asking + 1)
    at = dict.fromkeys(("submitted_at", "requested_at", "renewed_at", "granted_at"), now)
    of = {"pool": "gpus", "slots": 0, "state": "running", **at}
    with store.db.engine.begin() as conn:
        conn.execute(trials.insert(), [
            {"id": n, "experiment_id": search.experiment_id, "number": n, "dag_id": "d", "run_id": "r",
             "task_id": "trial", "map_index": n, "config_id": config, "hparams": {"lr": n}, "seed": n,
             "state": "running", "search_id": search.search_id, "created_at": now} for n in numbers
        ])  # fmt: skip
        conn.execute(allocations.insert(), [{"id": n, "trial_id": n, "token": n, "sequence": n, **of} for n in numbers])
        conn.execute(attempts.insert(), [
            {"id": n, "trial_id": n, "allocation_id": n, "state": "running", "watch": 1, "created_at": now}
            for n in numbers
        ])  # fmt: skip
        conn.execute(rung_entries.insert(), [
            {"search_id": search.search_id, "rung": rung, "trial_id": n, "attempt_id": n, "metric": value,
             "rank_value": value, "units": RUNGS[rung], "decision": "continue", "at": now}
            for n in range(1, reported + 1) for rung in range(len(RUNGS)) if n % DIVISOR**rung == 0
            for value in [draw.random()]
        ])  # fmt: skip
    if store.db.engine.dialect.name == "postgresql":
        with store.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(sa.text("ANALYZE"))
    return list(range(reported + 1, reported + asking + 1))


def measure(store: Store, asking: list[int], event: dict[str, Any], old: int) -> list[Sample]:
    """Return the cost of each trial's commit of an event."""
    counted = [0]
    sa.event.listen(store.db.engine, "before_cursor_execute", lambda *_: counted.__setitem__(0, counted[0] + 1))
    draw, found = random.Random(7), []
    for attempt in asking:
        batch = [{**event, "seq": old, "at": 1.0, "metric": draw.random()}]
        counted[0], wall, cpu = 0, time.perf_counter(), time.process_time()
        store.events.commit(attempt, 1, "a", "rank0.events", old, old + 1, batch)
        took = time.perf_counter() - wall
        found.append(Sample(took * 1e3, (time.process_time() - cpu) * 1e3, counted[0]))
    return found


def report(name: str, plain: list[Sample], asked: list[Sample]) -> bool:
    """Print one row per kind of commit, and return whether the goal is met."""
    middle: dict[str, tuple[float, ...]] = {}
    for words, samples in (("event", plain), ("question", asked)):
        walls = sorted(sample.wall_ms for sample in samples)
        middle[words] = (
            statistics.median(walls),
            walls[len(walls) // 10],
            statistics.median(sample.cpu_ms for sample in samples),
            statistics.median(sample.statements for sample in samples),
        )
    middle["decision"] = tuple(b - a for a, b in zip(middle["event"], middle["question"], strict=True))
    for words, (wall, tenth, cpu, statements) in middle.items():
        numbers = f"{wall:8.3f} {tenth:10.3f} {cpu:8.3f} {statements:11.0f}"
        print(f"{name:11} {words:9} {numbers}")
    return middle["question"][0] < GOALS_MS[name]


@contextmanager
def databases(only: str | None) -> Iterator[dict[str, str]]:
    """Yield the URL of an empty store per database."""
    with tempfile.TemporaryDirectory() as folder:
        found = {} if only == "postgresql" else {"sqlite": f"sqlite:///{folder}/s.db"}
        programs = None if only == "sqlite" else server_programs()
        if programs is None:
            yield found
            return
        server = Server(programs)
        server.start(fsync=True)
        try:
            yield {**found, "postgresql": server.new_database()}
        finally:
            server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(GOALS_MS))
    parser.add_argument("--reported", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    print("database    commit of   wall ms 10 % below   cpu ms  statements")
    is_met = True
    with databases(arguments.only) as urls:
        for name, url in urls.items():
            migrate(url)
            store = Store.open(url)
            asking = fill(store, arguments.reported, arguments.rounds)
            plain = measure(store, asking, {"kind": "note"}, 0)
            asked = measure(store, asking, {"kind": "rung", "rung": 0, "units": 1, "step": 1}, 1)
            is_met &= report(name, plain, asked)
            store.close()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
