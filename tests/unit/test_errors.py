"""The tree of errors at the top of ``errors.py``."""

from __future__ import annotations

import inspect
import re

from airflow_provider_dtrain import errors


def drawn() -> dict[str, str]:
    """Return the parent of every class that the docstring draws."""
    found: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ]   )*)([├└]── )?(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4 + bool(match[2])
            path[depth:] = [match[3]]
            found[match[3]] = path[depth - 1] if depth else "Exception"
    return found


def test_the_tree_is_that_of_the_module() -> None:
    classes = {
        name: thing.__base__.__name__
        for name, thing in inspect.getmembers(errors, inspect.isclass)
        if issubclass(thing, Exception) and thing.__module__ == errors.__name__
    }
    assert drawn() == classes
