"""Metadata of a checkpoint from a host is bounded before the control side parses it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_dtrain.engine.copies.checkpoints import verify_copy
from airflow_provider_dtrain.engine.copies.mirror import DamagedCopyError
from airflow_provider_dtrain.store.records.trials import CheckpointView
from airflow_provider_dtrain.train.checkpoint.description import METADATA, metadata_text

VIEW = cast("CheckpointView", SimpleNamespace(sha256=None, step=1))


def write(folder: Path, facts: dict[str, Any], names: list[str]) -> None:
    description = {"size_bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    for name in names:
        (folder / name).touch()
    (folder / METADATA).write_bytes(metadata_text(1, facts, dict.fromkeys(names, description)))


def test_metadata_of_many_values_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"metrics": [{}] * 300_001}, [])
    with pytest.raises(DamagedCopyError, match="at most 300,000 are accepted"):
        verify_copy(tmp_path, VIEW)


def test_metadata_that_nests_deeply_is_refused(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    write(tmp_path, {"metrics": nested}, [])
    with pytest.raises(DamagedCopyError, match="levels deep"):
        verify_copy(tmp_path, VIEW)


def test_metadata_of_ten_thousand_files_and_of_numbers_that_are_not_finite_is_accepted(tmp_path: Path) -> None:
    metrics = {f"metric {number}": float("nan") for number in range(1000)}
    write(tmp_path, {"metrics": metrics}, [f"file-{number}" for number in range(9999)])
    verify_copy(tmp_path, VIEW)
