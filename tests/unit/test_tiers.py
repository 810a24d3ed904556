"""Tiers of tests: markers, cases on PostgreSQL, and the numbers of random examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import budgets

ROOT = Path(__file__).parents[2]
CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.support.tiers import mark_tiers
def pytest_configure(config):
    for name in ("change", "nightly", "each_change"):
        config.addinivalue_line("markers", name)
def pytest_collection_modifyitems(config, items):
    mark_tiers(config, items)
"""
PLAIN = """
import pytest
databases = pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_plain(): pass
@pytest.mark.nightly
def test_nightly(): pass
@pytest.mark.nightly("b")
@pytest.mark.parametrize("case", ["a", "b"])
def test_cases(case): pass
@databases
def test_stored(database): pass
@pytest.mark.each_change
@databases
def test_dialect(database): pass
"""
SLOW = """
import pytest
pytestmark = pytest.mark.nightly
def test_plain(): pass
@pytest.mark.each_change
def test_chosen(): pass
@pytest.mark.each_change("a")
@pytest.mark.parametrize("case", ["a", "b"])
def test_cases(case): pass
@pytest.mark.each_change
@pytest.mark.parametrize("size", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_sizes(size): pass
"""
DIALECT = """
import pytest
pytestmark = pytest.mark.each_change
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_stored(database): pass
@pytest.mark.nightly
def test_nightly(): pass
"""


def collected(folder: Path, **modules: str) -> subprocess.CompletedProcess[str]:
    """Collect the tests of some modules that run for each change."""
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "change", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=WITHOUT_PLUGINS)


WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_the_nearest_marker_decides_whether_a_test_runs_for_each_change(tmp_path: Path) -> None:
    done = collected(tmp_path, plain=PLAIN, slow=SLOW, dialect=DIALECT)
    assert [line for line in done.stdout.splitlines() if "::" in line] == [
        "test_dialect.py::test_stored[sqlite]",
        "test_dialect.py::test_stored[postgresql]",
        "test_plain.py::test_plain",
        "test_plain.py::test_cases[a]",
        "test_plain.py::test_stored[sqlite]",
        "test_plain.py::test_dialect[sqlite]",
        "test_plain.py::test_dialect[postgresql]",
        "test_slow.py::test_chosen",
        "test_slow.py::test_cases[a]",
        "test_slow.py::test_sizes[1]",
    ], done.stderr


def test_a_marker_that_names_no_case_is_an_error(tmp_path: Path) -> None:
    done = collected(tmp_path, slow=SLOW.replace('each_change("a")', 'each_change("c")'))
    assert done.returncode != 0
    assert "cases that do not exist: test_slow.py::test_cases[c]" in done.stdout + done.stderr


def test_two_markers_of_one_module_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    done = collected(
        tmp_path, slow=SLOW.replace("= pytest.mark.nightly", "= [pytest.mark.nightly, pytest.mark.each_change]")
    )
    assert done.returncode != 0
    assert "contradict each other: test_slow.py::test_plain" in done.stdout + done.stderr


@pytest.mark.parametrize(("is_nightly", "examples", "expected"), [(False, 200, 25), (False, 40, 10), (True, 200, 800)])
def test_the_nightly_tier_has_more_random_examples(monkeypatch, is_nightly, examples, expected):
    monkeypatch.setattr(budgets, "is_nightly", lambda: is_nightly)
    assert budgets.budget(examples) == expected
