"""Cost of a decision at a rung in the store, after 1,000 trials have reported there, beside that of a plain event."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import allocations, attempts, rung_entries, trials
from airflow_provider_dtrain.store.records.searches import SearchSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store, migrate
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row
from testbed.stores import Server, host, server_programs

GOALS_MS = {"SQLite": 2.0, "PostgreSQL": 5.0}
PLAIN, RUNG = "plain event", "event at a rung"
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


def commits(store: Store, asking: list[int], event: dict[str, Any], old: int) -> list[Sample]:
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


@contextmanager
def databases(run: Run) -> Iterator[dict[str, str]]:
    """Yield the URL of an empty store per database."""
    found = {"SQLite": f"sqlite:///{run.folder}/s.db"}
    programs = server_programs()
    if programs is None:
        run.note("PostgreSQL is not measured, because its server programs (initdb, pg_ctl) are not installed.")
        yield found
        return
    server = Server(programs)
    server.start(fsync=True)
    try:
        yield {**found, "PostgreSQL": server.new_database()}
    finally:
        server.stop()


def measure(run: Run) -> None:
    with databases(run) as urls:
        for name, url in urls.items():
            migrate(url)
            store = Store.open(url)
            asking = fill(store, run.size(1000, 200), run.size(300, 40))
            events = {PLAIN: {"kind": "note"}, RUNG: {"kind": "rung", "rung": 0, "units": 1, "step": 1}}
            for old, (side, event) in enumerate(events.items()):
                for sample in commits(store, asking, event, old):
                    run.add(f"commit, {name}", side, sample.wall_ms)
                    run.add(f"CPU, {name}", side, sample.cpu_ms)
                    run.add(f"statements, {name}", side, sample.statements)
            store.close()


SIDES = {RUNG: OURS, PLAIN: LIMIT}
BENCH = Bench(
    what="Commit of an event of a trial, with the decision of its search",
    rows=tuple(
        row
        for name, goal_ms in GOALS_MS.items()
        for row in (
            Row(
                name=f"commit, {name}",
                what="Wall clock",
                unit="ms",
                sides=SIDES,
                base=PLAIN,
                goals=(Goal(side=RUNG, at_most=goal_ms),),
            ),
            Row(name=f"CPU, {name}", what="CPU of this process", unit="ms of CPU", sides=SIDES, base=PLAIN),
            Row(name=f"statements, {name}", what="Statements", unit="statements", sides=SIDES, base=PLAIN),
        )
    ),
    measure=measure,
    rounds=(1, 1),
)
