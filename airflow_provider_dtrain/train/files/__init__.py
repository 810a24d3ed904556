"""Files that runs share: one place with files, on disk or in a bucket, and one writer per place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.files.bucket import BucketPlace
from airflow_provider_dtrain.train.files.file_systems import file_system, is_url
from airflow_provider_dtrain.train.files.local import LocalPlace
from airflow_provider_dtrain.train.files.place import Place


def open_place(where: Path | str, config: Mapping[str, Any]) -> Place:
    """Return the place at a path or URL.

    :param config: ``checkpoint_storage`` of the configuration, for credentials
    :raises SetupError: fsspec, or the module for this kind of storage, is not installed
    """
    return BucketPlace(str(where), file_system(str(where), config)) if is_url(where) else LocalPlace(where)
