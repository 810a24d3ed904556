"""Ownership of an output folder: one run at a time writes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import FolderInUseError, OutputFolderError
from airflow_provider_dtrain.train.files.lease import Lease, describe
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.inference.output_folder import OWN

OWNER = f"{OWN}/owner.json"


def owner_of(folder: Place, *, run: str, key: str) -> Lease:
    """Return the lease of an output folder, which its owner must acquire.

    :param run: name of this run
    :param key: name that all attempts of one task share
    """

    def in_use(holder: Mapping[str, Any], is_taken: bool) -> FolderInUseError:
        rule = "Two runs must not write to one folder."
        if is_taken:
            return FolderInUseError(
                f"The output folder {folder.location} has been taken over by {describe(holder)}. {rule}"
            )
        return FolderInUseError(
            f"The output folder {folder.location} is in use by {describe(holder)}. {rule} Wait for its end, or use "
            "another folder."
        )

    def unsure(silent_s: float) -> OutputFolderError:
        return OutputFolderError(
            f"This run has not reached the output folder {folder.location} for {silent_s:.0f} s, so another run may "
            "own it. The next attempt continues from the shards that are done."
        )

    return Lease(folder, OWNER, run=run, key=key, in_use=in_use, unsure=unsure)
