"""The checkpoint that ``inference.weights`` names is found on and off the cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.inference.program import _source


def source(weights: Any, known: str | None = None) -> Any:
    ctx: Any = SimpleNamespace(_env=SimpleNamespace(source_checkpoint=known))
    return _source(ctx, {"weights": weights})


@pytest.fixture(autouse=True)
def _off_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTRAIN_RUN", raising=False)


def test_off_cluster_a_folder_or_url_is_used_as_it_stands() -> None:
    assert source("/checkpoints/7") == Path("/checkpoints/7")
    assert source("s3://bucket/7") == "s3://bucket/7"
    assert source(None) is None


@pytest.mark.parametrize("weights", ["trial:7:best", {"experiment": "digits"}])
def test_off_cluster_a_checkpoint_that_only_the_store_knows_is_refused_with_the_remedy(weights: Any) -> None:
    with pytest.raises(SetupError, match="give the folder or URL of a checkpoint"):
        source(weights)


def test_in_a_trial_the_control_side_has_found_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_RUN", "t1.1.1")
    assert source("trial:7:best", known="/copies/7") == "/copies/7"
