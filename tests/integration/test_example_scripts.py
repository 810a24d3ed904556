"""The examples' scripts as ranks of a trial and off-cluster, and their configurations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.overrides import with_overrides
from airflow_provider_dtrain.core.config.unsupported import unsupported
from tests.support.ranks import ROOT, run_ranks

pytestmark = pytest.mark.nightly

DAGS = ROOT / "dags"


def config_of(folder: str, name: str, **overrides: Any) -> Any:
    """Return the effective configuration of an example. ``__`` in the name of an override stands for a dot."""
    read = [yaml.safe_load((DAGS / folder / file).read_text()) for file in ("template.yaml", name)]
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    return assemble(read[0], with_overrides(read[1], changes)).config


@pytest.mark.each_change
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("pytorch_trial", "experiment.yaml"),
        ("large_batch", "small.yaml"),
        ("large_batch", "large.yaml"),
        ("digits", "digits.yaml"),
        ("digits", "asha.yaml"),
        ("digits", "grid.yaml"),
    ],
)
def test_the_configurations_use_nothing_that_is_not_built(folder, name):
    assert unsupported(config_of(folder, name)) == []


def run_alone(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_the_trial_class_runs_off_cluster(tmp_path):
    said = run_alone(DAGS / "pytorch_trial" / "model_def.py", tmp_path)
    assert float(re.search(r"'accuracy': ([\d.]+)", said)[1]) > 0.95


@pytest.mark.torch
def test_the_large_batch_runs_off_cluster(tmp_path):
    pytest.importorskip("pytorch_optimizer")
    said = run_alone(DAGS / "large_batch" / "train.py", tmp_path)
    assert float(re.findall(r"accuracy ([\d.]+)", said)[-1]) > 0.95


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", ["lamb", "radam"])
def test_a_batch_eight_times_as_large_learns_as_well_on_two_ranks(tmp_path, optimizer):
    if optimizer == "lamb":
        pytest.importorskip("pytorch_optimizer")
    config = config_of(
        "large_batch",
        "large.yaml",
        hyperparameters__optimizer=optimizer,
        hyperparameters__lr={"lamb": 0.003, "radam": 0.002}[optimizer],
    ).model_dump(mode="json")
    context = {"hparams": config["hyperparameters"], "seed": 17, "config": config}
    ranks = run_ranks(DAGS / "large_batch" / "train.py", tmp_path / "run", 2, context=context)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
    events = ranks[0].events
    assert [event for event in events if event["kind"] == "validation"][-1]["metrics"]["accuracy"] > 0.95
    # 12 batches, 6 steps per epoch: the rate is full after 4 epochs, and falls afterwards.
    rates = [event["metrics"]["lr"] for event in events if event["kind"] == "report"]
    assert max(rates) == pytest.approx(8 * config["hyperparameters"]["lr"])
    assert rates.index(max(rates)) == 4 * 12 - 1
    assert rates[-1] < rates[0]
