"""Files of the code of an experiment that its configuration names: the start of a rank, and its environment."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.config.entry_files import entry_file
from airflow_provider_dtrain.core.config.environment_source import EnvironmentSource, source_of_environment
from airflow_provider_dtrain.core.credential_files import HEAD_BYTES, is_credential
from airflow_provider_dtrain.core.regular_files import read_regular
from airflow_provider_dtrain.engine.attempt.required_modules import regular_files
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Folders that a message names in which a missing script was found.
_NAMED_MOST: Final = 3


@dataclass(frozen=True, kw_only=True)
class EntryProblems:
    """Problems with the files that a configuration names."""

    #: No rank could start: the script is missing, or the lock file cannot be used.
    errors: tuple[Problem, ...] = ()
    #: The module is missing. The hosts may have installed it.
    warnings: tuple[Problem, ...] = ()


def entry_problems(config: ExperimentConfig, folder: str | os.PathLike[str]) -> EntryProblems:
    """Return the problems with the file that the entrypoint starts, and with those of the environment.

    :param folder: with the code
    """
    of_environment = tuple(environment_problems(config, Path(folder)))
    entry = None if config.entrypoint is None else entry_file(config.entrypoint)
    if entry is None or any(os.path.isfile(os.path.join(folder, path)) for path in entry.paths):
        return EntryProblems(errors=of_environment)
    message = f"the code in {os.fspath(folder)} has no file '{entry.paths[0]}'"
    if entry.is_required:
        message += ". Put it there, or correct model_dir or entrypoint"
        if config.model_dir is None and (found := _folders_with(entry.paths[0], folder)):
            message += f" (there is one in {' and '.join(found)}: model_dir: {found[0]})"
        return EntryProblems(errors=(Problem(path="entrypoint", message=message), *of_environment))
    message += ", so the hosts must have installed this module"
    return EntryProblems(errors=of_environment, warnings=(Problem(path="entrypoint", message=message),))


def environment_problems(config: ExperimentConfig, folder: Path) -> list[Problem]:
    """Return the problems with the files of the code that ``environment`` names.

    :param folder: with the code
    """
    return environment_in(config, folder)[1]


def problems_of_archive(config: ExperimentConfig, archive: bytes) -> list[Problem]:
    """Return the problems with the files that ``environment`` names, in packed code."""
    files = regular_files(archive) if any(config.environment.files()) else {}
    return source_of_environment(config.environment, files.get, files)[1]


def environment_in(config: ExperimentConfig, folder: Path) -> tuple[EnvironmentSource | None, list[Problem]]:
    """Return the environment that the code in a folder asks for, None without a lock file, and its problems."""
    section = config.environment
    sent = section.wheels if section.wheels is not None and not section.wheels.startswith("/") else None
    wheels = sorted((folder / sent).glob("*.whl")) if sent is not None else []

    def content(path: str) -> bytes | None:
        """Return a file that is sent to the hosts. Lines of other files must not be part of a message."""
        with contextlib.suppress(OSError):
            found = read_regular(folder / path)
            is_inside = (folder / path).resolve().is_relative_to(folder.resolve())
            return found if is_inside and not is_credential(Path(path).name, found[:HEAD_BYTES]) else None
        return None

    return source_of_environment(section, content, [path.relative_to(folder).as_posix() for path in wheels])


def code_folder(config: ExperimentConfig, folder: Path) -> Path:
    """Return the folder of the code that a task sends to the hosts.

    :param folder: where a relative ``model_dir`` starts
    :raises ConfigError: it does not exist, or the script of the entrypoint is not in it
    """
    found = folder / config.model_dir if config.model_dir else folder
    if config.model_dir and not found.is_dir():
        raise ConfigError([Problem(path="model_dir", message=f"folder {found} does not exist")])
    problems = entry_problems(config, found)
    if problems.errors:
        raise ConfigError(problems.errors)
    return found


def _folders_with(path: str, folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of some folders directly below a folder that have a file."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    return [name for name in names if os.path.isfile(os.path.join(folder, name, path))][:_NAMED_MOST]
