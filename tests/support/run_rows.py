"""Trials of several experiments with hyperparameters, metrics, tags and states, for the table of runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.run_tables import latest_metrics
from airflow_provider_dtrain.store.database.tables import allocations, experiments, labels, tags, trials
from airflow_provider_dtrain.store.store import Store

#: Hyperparameters of any type at each place; some names need quotes, or are no ASCII.
PARAMS = ("lr", "opt", "weight decay", "größe", "nested")
VALUES: tuple[Any, ...] = (
    0, 1, -1, 0.1, 1e-4, 2.5, 10**25, 1e300, "adam", "Adam W", "ÄDAM", "0.1", "true", "", "a'b%_", "NaN", True, False,
    None, [1, 2], {},
)  # fmt: skip
METRICS = ("loss", "val/acc", "top 5")
NUMBERS: tuple[Any, ...] = (0.0, 0.5, 1, -3.25, 1e200, "NaN", "Infinity")
TAGS = ("paper", "Draft", "x_y")
STATES = ("completed", "errored", "killed", "stopped")
AT = datetime(2026, 11, 1, tzinfo=UTC)


def fill(store: Store, count: int, *, seed: int = 0, dags: tuple[str, ...] = ("d",)) -> list[Mapping[str, Any]]:
    """Store trials, ten per experiment, and return their values as filter expressions see them, by id."""
    chance = random.Random(seed)  # noqa: S311
    config = store.configs.put({"entrypoint": "python train.py"}, origins={}).config_id
    rows: list[Mapping[str, Any]] = []
    with store.db.engine.begin() as conn:
        for number in range(count):
            if number % 10 == 0:
                experiment = _experiment(conn, number // 10, dags[number // 10 % len(dags)], chance)
            rows.append(_trial(conn, number, experiment, config, chance))
    return rows


def _experiment(conn: sa.Connection, index: int, dag: str, chance: random.Random) -> dict[str, Any]:
    name = f"experiment {index}"
    place = {
        "owner": chance.choice(["", "ann", "Bób"]), "project": chance.choice(["Uncategorized", "vision"]),
        "archived": chance.random() < 0.3,
    }  # fmt: skip
    values = {"dag_id": dag, "run_id": f"r{index}", "name": name, "state": "completed", "weight": 1.0, "created_at": AT}
    key = conn.execute(experiments.insert().values({**values, **place})).inserted_primary_key
    own = [tag for tag in TAGS if chance.random() < 0.1]
    _label(conn, "experiment", key[0], own)
    return {"experiment_id": key[0], "dag": dag, "run": f"r{index}", "experiment": name, "tags": own, **place}


def _trial(
    conn: sa.Connection, number: int, experiment: Mapping[str, Any], config: int, chance: random.Random
) -> Mapping[str, Any]:
    params: dict[str, Any] = {name: chance.choice(VALUES) for name in PARAMS if chance.random() < 0.8}
    if chance.random() < 0.5:
        params["nested"] = {"lr": chance.choice(VALUES), "1": chance.choice(VALUES)}
    is_drawn = chance.random() < 0.9
    metrics = {name: chance.choice(NUMBERS) for name in METRICS if chance.random() < 0.8}
    created = AT + timedelta(hours=number)
    facts = {
        "number": number % 10,
        "state": chance.choice(STATES),
        "best": chance.choice([None, 0.25, 0.5, 4.0]),
        "restarts": chance.randrange(3),
        "seed": chance.randrange(2**40),
        "error": chance.choice([None, "ValueError", "OutOfMemoryError"]),
        "created": created,
        "ended": chance.choice([None, created + timedelta(minutes=30)]),
        "replaced": chance.random() < 0.1,
        "task": "trial",
    }
    stored = {
        "experiment_id": experiment["experiment_id"], "number": facts["number"], "dag_id": experiment["dag"],
        "run_id": experiment["run"], "task_id": "trial", "map_index": facts["number"], "config_id": config,
        "hparams": params, "is_drawn": is_drawn, "seed": facts["seed"], "state": facts["state"],
        "restarts": facts["restarts"], "best_metric": facts["best"], "created_at": created, "ended_at": facts["ended"],
        "cleared_at": created if facts["replaced"] else None,
        "failure": None if facts["error"] is None else {"error": facts["error"]},
    }  # fmt: skip
    (trial_id,) = conn.execute(trials.insert().values(stored)).inserted_primary_key
    # Of the requests that no host can serve, only those that wait count.
    request, is_unservable = chance.choice([None, "waiting", "released"]), chance.random() < 0.5
    facts["never_fits"] = request == "waiting" and is_unservable
    if request is not None:
        at = dict.fromkeys(("submitted_at", "requested_at", "renewed_at"), created)
        asked = {"trial_id": trial_id, "pool": "gpus", "slots": 1, "state": request, "never_fits": is_unservable}
        conn.execute(allocations.insert().values({**asked, **at}))
    name = chance.choice([None, "Best of all", "ünnamed"])
    own_tags = [tag for tag in TAGS if chance.random() < 0.2]
    _label(conn, "trial", trial_id, own_tags, name)
    if chance.random() < 0.9:
        # Whatever is validated is the value, even if the training reported it too.
        training = dict.fromkeys(metrics, -7.0)
        conn.execute(latest_metrics.insert().values(trial_id=trial_id, validation=metrics, training=training))
    else:
        metrics = {}
    return {
        **{key: value for key, value in experiment.items() if key != "tags"},
        **facts,
        "trial": trial_id,
        "name": name,
        "tag": sorted({*own_tags, *experiment["tags"]}),
        "params": params if is_drawn else {},
        "metrics": metrics,
    }


def _label(conn: sa.Connection, kind: str, object_id: int, names: list[str], display_name: str | None = None) -> None:
    own = {"kind": kind, "object_id": object_id}
    conn.execute(labels.insert().values(own | {"display_name": display_name, "description": ""}))
    if names:
        conn.execute(tags.insert(), [own | {"tag": name} for name in names])
