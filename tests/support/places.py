"""A place for files, as a folder and as a prefix of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_dtrain.train.files.bucket import BucketPlace
from airflow_provider_dtrain.train.files.local import LocalPlace


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace | BucketPlace:
    """An empty place of either kind."""
    if request.param == "folder":
        return LocalPlace(tmp_path / "out")
    fs = pytest.importorskip("fsspec").filesystem("memory")
    return BucketPlace(f"memory://place{tmp_path}", fs)
