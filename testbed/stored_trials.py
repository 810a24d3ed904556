"""Stores with many finished trials, made by statements that copy the rows of one experiment."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import metadata
from airflow_provider_dtrain.store.records.searches import SearchSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host

#: Trials of each experiment, and validations of each trial.
TRIALS, REPORTS = 10, 3
#: Ids of a copy are those of the first experiment and a multiple of this number.
STRIDE = 10_000
POOL = "stored"
#: Tables of which each experiment has rows of its own.
_COPIED = (
    "payloads",
    "payload_senders",
    "experiments",
    "searches",
    "trials",
    "allocations",
    "allocation_slots",
    "attempts",
    "streams",
    "events",
    "ranks",
    "metrics",
    "latest_metrics",
    "checkpoints",
    "rung_entries",
    "timeline",
)
_MOVED = ("id", "experiment_id", "search_id", "trial_id", "allocation_id", "attempt_id", "token", "sequence")


def fill(store: Store, count: int) -> None:
    """Add finished trials to an empty store: experiments of 10 trials, each with its reports.

    :param count: number of trials, a multiple of 10
    """
    _first_experiment(store)
    with store.db.engine.begin() as connection:
        for statement in _copies(count // TRIALS):
            connection.exec_driver_sql(statement)
    if store.db.engine.dialect.name == "postgresql":
        with store.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")


def _first_experiment(store: Store) -> None:
    store.hosts.add(host("stored", slots=TRIALS, pool=POOL))
    config = store.configs.put(
        {
            "name": "stored",
            "searcher": {"name": "random", "metric": "loss", "max_length": {"batches": REPORTS}},
            "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}},
        },
        origins={},
    ).config_id
    payload = "e" * 64
    store.payloads.put(payload, b"code")
    search = store.searches.create(
        SearchSubmission(
            key=TrialKey(dag_id="stored", run_id="r", task_id="plan"),
            experiment_name="stored",
            config_id=config,
            method="random",
            metric="loss",
            seed=1,
            rungs={},
            max_trials=TRIALS,
        )
    )
    tickets = [
        store.trials.submit(
            TrialSubmission(
                key=TrialKey(dag_id="stored", run_id="r", task_id="trial", map_index=number),
                experiment_name="stored",
                config_id=config,
                payload=payload,
                pool=POOL,
                slots=1,
                number=number,
                search_id=search.search_id,
                hparams={"lr": 1e-4 * (number + 1)},
            )
        )
        for number in range(TRIALS)
    ]
    store.queue.schedule(POOL)
    at = store.db.now().timestamp()
    for ticket in tickets:
        watch = store.attempts.watch(ticket.attempt_id, watcher="triggerer")
        store.queue.take_up(ticket.attempt_id, watch)
        store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"stored": {"ranks": [{"rank": 0}]}}})
        store.attempts.set_running(ticket.attempt_id, watch)
        reports = [
            {"kind": "validation", "seq": step, "step": step, "at": at, "metrics": {"loss": 1.0 / step}}
            for step in range(1, REPORTS + 1)
        ]
        store.events.commit(ticket.attempt_id, watch, "stored", "rank0.events", 0, len(reports), reports)
        store.queue.release(ticket.attempt_id, watch, "stored", proof="clear")
        store.attempts.end(ticket.attempt_id, watch, state="completed", result={"steps": REPORTS, "metric": 0.1})
    store.searches.end(search.search_id)


def _copies(experiments: int) -> Iterator[str]:
    """Yield the statements that add the second to the last experiment."""
    if experiments < 2:
        return
    for name in _COPIED:
        table = metadata.tables[name]
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        values = ", ".join(_value(column) for column in table.columns)
        numbers = (
            f"WITH RECURSIVE numbers(k) AS (VALUES(1) UNION ALL SELECT k + 1 FROM numbers WHERE k + 1 < {experiments})"
        )
        # Every row that the table has now is of the first experiment.
        yield f"INSERT INTO {name} ({names}) {numbers} SELECT {values} FROM {name} AS first, numbers"  # noqa: S608


def _value(column: sa.Column[object]) -> str:
    own = f'first."{column.name}"'
    if column.name in _MOVED:
        return f"{own} + k * {STRIDE}"
    if column.name in ("payload", "digest"):
        return f"substr({own}, 1, 54) || (1000000000 + k)"
    return f"{own} || '-' || k" if column.name in ("run_id", "run") else own
