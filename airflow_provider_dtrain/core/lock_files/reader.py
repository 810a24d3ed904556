"""The lock file that a configuration names, in one of four forms, with all of its problems."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from airflow_provider_dtrain.core.lock_files.pins import LockFile, Pin
from airflow_provider_dtrain.core.lock_files.requirements import HOW_TO_LOCK, from_dependencies, read_requirements
from airflow_provider_dtrain.core.lock_files.script import read_metadata
from airflow_provider_dtrain.core.lock_files.uv_lock import read_uv_lock
from airflow_provider_dtrain.core.safe_repr import shown

LIMIT_BYTES: Final = 8 << 20
#: Number of problems that are named.
_SHOWN: Final = 20
_UV: Final = re.compile(r"^version = \d+$", re.MULTILINE)
#: Returns the content of a file of the code, None if there is none.
Files = Callable[[str], bytes | None]


@dataclass(frozen=True, kw_only=True)
class ReadLock:
    """A lock file, and the problems that keep it from being used."""

    #: Path of the file that has the pins.
    path: str
    lock: LockFile | None
    problems: tuple[str, ...]


def read_lock(path: str, files: Files, *, wheels: Collection[str] | None = None) -> ReadLock:
    """Return the lock file of a configuration.

    :param path: requirements, ``uv.lock``, ``pyproject.toml`` beside ``uv.lock``, or a script with inline metadata
    :param files: of the code
    :param wheels: names of the wheels that are sent with the code. Their packages need no hashes
    """
    place, text, problem = _source(path, files)
    if problem or text is None:
        return ReadLock(path=place, lock=None, problems=(problem or f"the code has no file {shown(place)}",))
    lock, problems = _parsed(place, text)
    if lock is not None and not problems:
        problems = [*_python_problems(lock), *_hash_problems(lock, place, wheels or ())]
    more = [f"and {len(problems) - _SHOWN} more problems"] if len(problems) > _SHOWN else []
    found = tuple(f"{shown(place)}: {one}" for one in [*problems[:_SHOWN], *more])
    return ReadLock(path=place, lock=lock, problems=found)


def _source(path: str, files: Files) -> tuple[str, str | None, str | None]:
    """Return path and text of the file that has the pins, and the problem of another one."""
    place = posixpath.normpath(path)
    if posixpath.basename(place) == "pyproject.toml":
        beside = posixpath.join(posixpath.dirname(place), "uv.lock")
        if files(beside) is None:
            return place, None, f"{shown(place)} pins no versions, and there is no {shown(beside)}. Write it: uv lock"
        place = beside
    elif place.endswith(".py") and files(f"{place}.lock") is not None:
        place = f"{place}.lock"
    content = files(place)
    if content is None:
        return place, None, None
    if len(content) > LIMIT_BYTES:
        return place, None, f"{shown(place)} has {len(content):,} bytes; at most {LIMIT_BYTES:,} are accepted"
    try:
        return place, content.decode("utf-8"), None
    except UnicodeDecodeError:
        return place, None, f"{shown(place)} is not a text in UTF-8"


def _parsed(path: str, text: str) -> tuple[LockFile | None, list[str]]:
    if path.endswith(".py"):
        metadata, problems = read_metadata(text)
        dependencies, python = metadata.get("dependencies", []), metadata.get("requires-python")
        is_list = isinstance(dependencies, list) and all(isinstance(one, str) for one in dependencies)
        if problems or not is_list or not isinstance(python, str | None):
            return None, problems or ["has inline metadata without a list of dependencies"]
        lock, problems = from_dependencies(dependencies, python)
        return lock, [f"{one.removesuffix(HOW_TO_LOCK).rstrip(' .')}. {_of_script(path)}" for one in problems]
    if path.endswith(".lock") and _UV.search(text):
        return read_uv_lock(text)
    return read_requirements(text)


def _of_script(path: str) -> str:
    return f"Lock it: uv lock --script {posixpath.basename(path)}"


def _python_problems(lock: LockFile) -> Iterator[str]:
    try:
        SpecifierSet(lock.python or "")
    except InvalidSpecifier:
        yield f"requires-python {shown(lock.python)} is not a specifier such as '>=3.10'"


def _hash_problems(lock: LockFile, path: str, wheels: Collection[str]) -> Iterator[str]:
    pins = lock.pins(None)
    bare = [pin for pin in pins if not pin.hashes and not any(is_file_of(pin, name) for name in wheels)]
    if bare:
        names = ", ".join(f"{pin.name}=={pin.version}" for pin in bare[:5])
        more = f" and {len(bare) - 5} more" if len(bare) > 5 else ""
        how = _of_script(path) if path.endswith(".py") else HOW_TO_LOCK
        yield f"no hashes for {names}{more}, and no wheel of that version in environment.wheels. {how}"
    if not pins:
        yield "pins no packages"


def is_file_of(pin: Pin, file_name: str) -> bool:
    """Return whether a wheel is one of a package, by its name."""
    name, _, rest = file_name.partition("-")
    is_name = re.sub(r"[-_.]+", "-", name).lower() == pin.name
    return file_name.endswith(".whl") and is_name and rest.partition("-")[0].lower() == pin.version.lower()
