"""Output folder of a batch inference: a folder that all ranks see, or a place in an object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train import files
from airflow_provider_dtrain.train.errors import OutputFolderError, UnusableFolderError
from airflow_provider_dtrain.train.files.bucket import BucketPlace
from airflow_provider_dtrain.train.files.file_systems import file_system, is_url
from airflow_provider_dtrain.train.files.local import LocalPlace
from airflow_provider_dtrain.train.files.place import Place

#: Folder of the ledger, and of everything that is not published yet.
OWN = "_dtrain"
#: Folder below it for files that are not complete.
TEMPORARY = f"{OWN}/incomplete"


def open_folder(path: str, storage: Mapping[str, Any], run: str) -> Place:
    """Return the output folder at a path or URL.

    :param storage: ``checkpoint_storage`` of the configuration, for credentials
    :param run: name of the run, which begins the names of its incomplete files
    """
    if is_url(path):
        return BucketPlace(path, file_system(path, storage), explain=_explain)
    return LocalPlace(os.path.abspath(path), incomplete=(TEMPORARY, f"{run}."), explain=_explain)


def explained(location: str) -> contextlib.AbstractContextManager[None]:
    """Turn an error of the file system into one that names the folder."""
    return files.place.explained(location, _explain)


def _explain(location: str, error: OSError) -> OutputFolderError:
    kind = UnusableFolderError if isinstance(error, (PermissionError, NotADirectoryError)) else OutputFolderError
    return kind(f"The output folder {location} cannot be used: {error}.")
