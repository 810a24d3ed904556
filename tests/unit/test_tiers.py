"""The tiers of tests: the tables of slow tests, and the numbers of random examples."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import budgets
from tests.support.tiers import EACH_CHANGE, NIGHTLY

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("table", "module"), [(table, module) for table in (EACH_CHANGE, NIGHTLY) for module in table])
def test_every_test_of_the_tables_exists(table, module):
    tree = ast.parse((ROOT / module).read_text())
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert {name.partition("[")[0] for name in table[module]} <= there


def test_no_module_is_in_both_tables():
    assert EACH_CHANGE.keys().isdisjoint(NIGHTLY)


@pytest.mark.parametrize(("is_nightly", "examples", "expected"), [(False, 200, 50), (False, 40, 20), (True, 200, 800)])
def test_the_nightly_tier_has_more_random_examples(monkeypatch, is_nightly, examples, expected):
    monkeypatch.setattr(budgets, "is_nightly", lambda: is_nightly)
    assert budgets.budget(examples) == expected
