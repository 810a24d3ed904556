"""Oldest Python and PyTorch of a host, and the sentence that names what a host lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

OLDEST_PYTHON: Final = (3, 9)
OLDEST_TORCH: Final = (2, 4)
#: Module -> distribution of another name.
_DISTRIBUTIONS: Final = {"PIL": "pillow"}


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as text, e.g. ``3.9``."""
    return ".".join(map(str, version))


def is_older(version: str | None, oldest: tuple[int, ...]) -> bool:
    """Return whether a version is known and is older than another one."""
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return numbers is not None and tuple(map(int, numbers.groups())) < oldest


def start_problem(facts: Mapping[str, Any]) -> str | None:
    """Return why no run can start on a host that answered a probe, or None.

    :param facts: its answer
    """
    problems = facts.get("problems")
    return f"It answers, but no run can start there: {problems[0]}" if problems else None


def shortcoming(
    executable: str, python: str, modules: Mapping[str, str | None], lock_file: str | None = None
) -> str | None:
    """Return what an interpreter lacks and the command that installs it, None if it lacks nothing.

    :param executable: path of the interpreter on its host
    :param python: its version
    :param modules: needed module -> version there; None: it is missing
    :param lock_file: of the environment that it belongs to, None without one
    """
    if is_older(python, OLDEST_PYTHON):
        return (
            f"{executable} is Python {python}, but ranks need {dotted(OLDEST_PYTHON)} or newer. Set environment.python "
            "to a newer interpreter that exists on every host."
        )
    missing = [name for name, version in modules.items() if version is None]
    is_old = is_older(modules.get("torch"), OLDEST_TORCH)
    if not missing and not is_old:
        return None
    if "determined" in missing:
        return (
            f"The code imports determined, which {executable} lacks. Change 'import determined as det' to 'from "
            "airflow_provider_dtrain.train import determined as det', see docs/training/core-api.md."
        )
    facts = [f"lacks {', '.join(missing)}"] if missing else []
    facts += [f"has torch {modules['torch']}, but {dotted(OLDEST_TORCH)} or newer is needed"] if is_old else []
    names = [_DISTRIBUTIONS.get(name, name) for name in missing]
    names += [f"'torch>={dotted(OLDEST_TORCH)}'"] if is_old else []
    if lock_file is not None:
        fix = f"Add {' '.join(names)} to {lock_file}, or set environment.system_site_packages"
        return f"the environment of {lock_file} {' and '.join(facts)}. {fix}."
    return (
        f"{executable} (Python {python}) {' and '.join(facts)}. Install with: {executable} -m pip install "
        f"{' '.join(names)}"
    )
