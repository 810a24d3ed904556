"""Facts on which the results of a batch inference depend: each of them is compared before a run continues."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.inference import fingerprint

SETTINGS: dict[str, Any] = {
    "processor": "m:P",
    "inputs": {"path": ["/in"]},
    "outputs": {"path": "/out", "format": "parquet", "columns": ["id"], "overwrite": False},
    "compile": False,
    "on_bad_shard": "fail",
    "collect": False,
    "batch_size": 64,
}
WEIGHTS = {"step": 5, "sha256": "ab"}


def facts(
    *, weights: Any = WEIGHTS, identity: Any = None, hparams: Any = None, config: Any = None, **changes: Any
) -> dict[str, Any]:
    env = Environment(hparams=hparams or {"hidden": 8}, seed=0, config=config or {})
    settings = {**SETTINGS, **changes, "outputs": {**SETTINGS["outputs"], **changes.get("outputs", {})}}
    return fingerprint.facts(env, settings, identity or {"rows": 20}, weights)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("weights", {"weights": {"step": 5, "sha256": "cd"}}),
        ("weights", {"weights": None}),
        ("inputs", {"identity": {"rows": 21}}),
        ("settings", {"processor": "m:Q"}),
        ("settings", {"compile": True}),
        ("settings", {"hparams": {"hidden": 16}}),
        ("settings", {"config": {"optimizations": {"mixed_precision": "bf16"}}}),
        ("settings", {"outputs": {"format": "jsonl"}}),
        ("settings", {"outputs": {"row_id": "row"}}),
    ],
)
def test_what_changes_a_row_changes_one_part_of_the_facts(part, change):
    before, now = facts(), facts(**change)

    assert [name for name in before if before[name] != now[name]] == [part]


@pytest.mark.parametrize(
    "change",
    [
        {"on_bad_shard": "skip"},
        {"collect": True},
        {"batch_size": "auto"},
        {"outputs": {"path": "/x", "overwrite": True}},
    ],
)
def test_what_changes_no_row_does_not_change_the_facts(change):
    assert facts(**change) == facts()
