"""Each mutant of the table matches the current code, names an existing test, and is listed in README.md."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.faults.mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@functools.cache
def functions(path: str) -> frozenset[str]:
    """Return the names of the functions in a file."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_breaks_one_place_of_the_code_and_names_a_test(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    assert text.count(mutant.old) == 1
    ast.parse(text.replace(mutant.old, mutant.new))
    path, _, name = mutant.test.partition("::")
    assert name.partition("[")[0] in functions(path)


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_readme_lists_every_mutant_with_its_test() -> None:
    lines = (Path(__file__).parent / "README.md").read_text().splitlines()
    listed = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines}
    assert {(mutant.name, f"`{mutant.test.partition('[')[0]}`") for mutant in MUTANTS} <= listed
