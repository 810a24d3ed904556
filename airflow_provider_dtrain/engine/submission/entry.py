"""The file with which a rank begins, looked up in the code of an experiment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.config.entry_files import entry_file
from airflow_provider_dtrain.errors import Problem


@dataclass(frozen=True, kw_only=True)
class EntryProblems:
    """Problems with the file of an entrypoint."""

    #: The script is missing, so no rank could start.
    errors: tuple[Problem, ...] = ()
    #: The module is missing. The hosts may have installed it.
    warnings: tuple[Problem, ...] = ()


def entry_problems(config: ExperimentConfig, folder: str | os.PathLike[str]) -> EntryProblems:
    """Return the problems with the file that the entrypoint starts.

    :param folder: with the code
    """
    entry = None if config.entrypoint is None else entry_file(config.entrypoint)
    if entry is None or any(os.path.isfile(os.path.join(folder, path)) for path in entry.paths):
        return EntryProblems()
    message = f"the code in {os.fspath(folder)} has no file '{entry.paths[0]}'"
    if entry.is_required:
        message += ". Put it there, or correct model_dir or entrypoint"
        return EntryProblems(errors=(Problem(path="entrypoint", message=message),))
    message += ", so the hosts must have installed this module"
    return EntryProblems(warnings=(Problem(path="entrypoint", message=message),))
