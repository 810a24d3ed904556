"""Files of the user's code that an entrypoint starts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.config.commands import split_command
from airflow_provider_dtrain.core.config.types import is_trial_class
from airflow_provider_dtrain.core.launchers.launcher import launcher_of

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?\Z")
#: Options of Python whose value is a word of its own.
_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
#: Options of Python after which the command names no script.
_NO_SCRIPT: Final = ("-c", "-m")
_SCRIPT_ENDS: Final = (".py", ".sh")


@dataclass(frozen=True, kw_only=True)
class EntryFile:
    """The file of the code with which a rank begins."""

    #: Paths relative to the code, of which one must exist.
    paths: tuple[str, ...]
    #: True: without it no rank can start. False: it may also be a module that the hosts have installed.
    is_required: bool


def entry_file(entrypoint: str | list[str]) -> EntryFile | None:
    """Return the file of the code that an entrypoint starts, None when the entrypoint does not tell.

    :param entrypoint: a valid command, or ``module:TrialClass``
    """
    if isinstance(entrypoint, str) and is_trial_class(entrypoint):
        module = entrypoint.partition(":")[0].replace(".", "/")
        return EntryFile(paths=(f"{module}.py", f"{module}/__init__.py"), is_required=False)
    script = _script(split_command(entrypoint))
    if script is None or script.startswith("/") or not script.endswith(_SCRIPT_ENDS):
        return None
    return EntryFile(paths=(posixpath.normpath(script),), is_required=True)


def _script(parts: Sequence[str]) -> str | None:
    """Return the script of a command: the word after ``python`` and its options, else a program with a path."""
    if not parts:
        return None
    if (launcher := launcher_of(parts)) is not None:
        if launcher.program.takes_command:
            return _script(launcher.command)
        return None if launcher.options.get("module") else launcher.script
    if not _PYTHON.match(posixpath.basename(parts[0])):
        return parts[0] if "/" in parts[0] else None
    rest = iter(parts[1:])
    for word in rest:
        if word.startswith(_NO_SCRIPT):
            return None
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None
