"""Time to merge, load and assemble a large configuration. Goal: a merge of 200 keys below 1 ms."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import yaml

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.merge import merge_config, merge_layers
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row

KEYS = (20, 200, 2000)
MERGE, LAYERS, READ, ASSEMBLE, YAML = "merge_config", "merge_layers", "load_yaml", "assemble", "yaml.CSafeLoader"


def document(keys: int, offset: int) -> dict[str, Any]:
    """Return a document with about this number of keys: nested hyperparameters, variables, data."""
    groups = keys // 20
    return {
        "entrypoint": "python train.py",
        "labels": [f"label{index + offset}" for index in range(5)],
        "hyperparameters": {
            f"group{group}": {
                "lr": {"type": "const", "val": 1e-3},
                "depth": group + offset,
                "sizes": [1, 2, 3],
                "name": "adam",
            }
            for group in range(groups)
        },
        "environment": {
            "variables": {f"NAME_{index}": str(offset) for index in range(groups * 5)},
            "public_variables": [f"NAME_{index}" for index in range(groups * 5)],
        },
        "data": {f"part{group}": {f"key{index}": index for index in range(8)} for group in range(groups)},
    }


def ms(work: Callable[[], object], times: int) -> float:
    """Return the milliseconds of one call."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) * 1e3 / times


def measure(run: Run) -> None:
    for keys in KEYS:
        template, config = document(keys, 0), document(keys, 3)
        text = yaml.safe_dump(config)
        works: dict[str, Callable[[], object]] = {
            MERGE: partial(merge_config, template, config),
            LAYERS: partial(merge_layers, [("template", template), ("config", config)]),
            READ: partial(load_yaml, text),
            YAML: partial(yaml.load, text, Loader=yaml.CSafeLoader),
            ASSEMBLE: partial(assemble, template, config),
        }
        times = 10 if keys <= 200 else 1
        run.turns({name: partial(ms, work, times) for name, work in works.items()}, f"{keys} keys", warm_up=1)


BENCH = Bench(
    what="A large configuration until it is effective",
    rows=tuple(
        Row(
            name=f"{keys} keys",
            what="One call, CPU of this process",
            unit="ms",
            sides={MERGE: OURS, LAYERS: OURS, READ: OURS, ASSEMBLE: OURS, YAML: LIMIT},
            base=YAML,
            goals=(Goal(side=MERGE, at_most=1),) if keys == 200 else (),
        )
        for keys in KEYS
    ),
    measure=measure,
    rounds=(30, 5),
)
