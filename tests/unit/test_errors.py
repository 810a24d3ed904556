"""The tree of errors at the top of ``errors.py``."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_dtrain import errors, train
from airflow_provider_dtrain.train import errors as train_errors


def drawn(module: ModuleType) -> dict[str, str]:
    """Return the parent of every class that the docstring draws."""
    found: dict[str, str] = {}
    path: list[str] = []
    for line in (module.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ]   )*)([├└]── )?(\w+Error|InvalidHP)\b", line)
        if match:
            depth = len(match[1]) // 4 + bool(match[2])
            path[depth:] = [match[3]]
            found[match[3]] = path[depth - 1] if depth else "Exception"
    return found


@pytest.mark.parametrize("module", [errors, train_errors], ids=lambda module: module.__name__)
def test_the_tree_is_that_of_the_module(module: ModuleType) -> None:
    classes = {
        name: thing.__bases__[0].__name__
        for name, thing in inspect.getmembers(module, inspect.isclass)
        if issubclass(thing, Exception) and thing.__module__ == module.__name__
    }
    assert drawn(module) == classes


def test_the_training_library_exports_its_errors_and_has_no_others() -> None:
    assert set(drawn(train_errors)) <= set(train.__all__)
    folder = Path(train.__file__).parent
    trees = [ast.parse(file.read_text()) for file in folder.rglob("*.py") if file.name != "errors.py"]
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Exception"))
    }
    assert all(set(of) & set(drawn(train_errors)) for of in bases.values()), bases
