"""Imports of tests and benchmarks: helpers are shared through ``tests/support`` and ``testbed`` only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = "tests.support"


def imported(source: str) -> Iterator[str]:
    """Yield the full names of all imports, those inside functions and in ``pytest_plugins`` too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytest_plugins":
            yield from ast.literal_eval(node.value)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def breaches(file: Path, source: str) -> list[str]:
    """Return the imports of a file, given by its path below the repository, that the rules forbid."""
    in_tests = file.parts[0] == "tests"
    own = ".".join(file.parts[:2])
    found = []
    for name in imported(source):
        if not is_within(name, "tests"):
            continue
        of_others = not is_within(name, SHARED) and (own == SHARED or not is_within(name, own))
        if not in_tests or of_others or any(part.startswith("test_") for part in name.split(".")):
            found.append(f"{file} imports {name}")
    return found


def test_tests_share_helpers_through_support_and_benchmarks_import_no_tests() -> None:
    files = [path for folder in ("tests", "bench", "testbed", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300, "the folders were found"
    assert [line for path in files for line in breaches(path.relative_to(ROOT), path.read_text())] == []


@pytest.mark.parametrize(
    ("file", "source", "is_forbidden"),
    [
        ("tests/unit/test_a.py", "from tests.unit.test_b import engine", True),
        ("tests/unit/test_a.py", "from tests.unit import test_b", True),
        ("tests/unit/test_a.py", "def f():\n    import tests.contract.worlds", True),
        ("tests/unit/test_a.py", 'pytest_plugins = ["tests.contract.plugin"]', True),
        ("tests/support/world.py", "from tests.faults.stage import Stage", True),
        ("bench/bench_a.py", "def f():\n    from tests.support.store_world import Clock", True),
        ("testbed/forking.py", "from tests.support.store_world import Clock", True),
        ("tests/unit/test_a.py", "from tests.support.engines import Engine", False),
        ("tests/faults/test_a.py", "from tests.faults import inject", False),
        ("bench/bench_a.py", "from testbed.stores import Server", False),
    ],
)
def test_the_check_tells_the_two_apart(file: str, source: str, is_forbidden: bool) -> None:
    assert bool(breaches(Path(file), source)) is is_forbidden
