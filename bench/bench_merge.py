"""Time to merge, load and assemble a large configuration. Goal: a merge of 200 keys below 1 ms.

Run: python bench/bench_merge.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import yaml

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.merge import merge_config, merge_layers
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml

GOAL_MS = 1.0


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
        "environment": {"variables": {f"NAME_{index}": str(offset) for index in range(groups * 5)}},
        "data": {f"part{group}": {f"key{index}": index for index in range(8)} for group in range(groups)},
    }


def median_ms(work: Callable[[], object], *, repeat: int = 50) -> float:
    """Return the median time of one call, milliseconds."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    print(f"{'keys':>6} {'work':<22} {'median ms':>10}  goal")
    for keys in (20, 200, 2000):
        template, config = document(keys, 0), document(keys, 3)
        text = yaml.safe_dump(config)
        rows: list[tuple[str, Callable[[], object]]] = [
            ("merge_config", partial(merge_config, template, config)),
            ("merge_layers", partial(merge_layers, [("template", template), ("config", config)])),
            ("load_yaml", partial(load_yaml, text)),
            ("yaml.CSafeLoader", partial(yaml.load, text, Loader=yaml.CSafeLoader)),
            ("assemble", partial(assemble, template, config)),
        ]
        for name, work in rows:
            took = median_ms(work, repeat=50 if keys <= 200 else 10)
            has_goal = keys == 200 and name == "merge_config"
            verdict = f"< {GOAL_MS:g} ms: {'met' if took < GOAL_MS else 'missed'}" if has_goal else ""
            print(f"{keys:>6} {name:<22} {took:>10.3f}  {verdict}")


if __name__ == "__main__":
    main()
