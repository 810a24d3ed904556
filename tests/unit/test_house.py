"""The measures of scripts/tools/house.py, on a small package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "scripts" / "tools" / "house.py"

FILES = {
    "__init__.py": "",
    "errors.py": '"""Errors."""\n\n\nclass Base: ...\n\n\nclass Other: ...\n\n\nclass Both(Base, Other): ...\n',
    "store/__init__.py": "",
    "store/polling.py": '''\
"""Polls; and more."""

from typing import TYPE_CHECKING

from house.errors import Base
from house.store.rows import table

if TYPE_CHECKING:
    from house.store.queue.orders import Order


# The order of both matters.
def poll(first: int, *, second, **more: int) -> "Order":
    """How a poll works."""
    from house import errors

    a, b = first, second
    return a  # fmt: skip


def wait():
    one = two = 1
    return one
''',
    "store/rows.py": "import house.store.queue.orders\n\ntable = None\n",
    "store/queue/__init__.py": "",
    "store/records.py": '''\
"""Records. See ``no_such_name``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    look: dict[str, Any]
''',
    "store/queue/orders.py": f"import house.store.rows\n\nLONG = '{'x' * 100}'\n\n\nclass Order:\n"
    + "    def take(self): ...\n    def give(self, count: int) -> int: ...\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


@pytest.fixture
def rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    import house

    return house.measures(folder)


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("files / lines", "8 / 52"),
        ("files over 400", "none"),
        ("function median / p90 / max", "3 / 6 / 6"),
        ("functions over 40 lines", "0 of 4 (0.0%)"),
        ("longest classes, methods", "house.store.queue.orders.Order 2"),
        ("classes with several bases of the package", "1"),
        ("return annotations", "2 of 4 (50.0%)"),
        ("parameter annotations", "3 of 4 (75.0%)"),
        ("parameters median / p90 / max", "1 / 3 / 3"),
        ("longest parameter lists", "house.store.polling:13 3, house.store.queue.orders:8 1"),
        ("public functions with docstring", "1 of 4 (25.0%)"),
        ("first docstring line, words median / p90 / max", "3 / 4 / 4"),
        ("first docstring lines with a semicolon", "1 of 4 (25.0%)"),
        ("docstrings that open with What, Who, How ...", "1 of 4 (25.0%)"),
        ("banned words", "0"),
        ("internal fan-out median / p90 / max", "0 / 3 / 3"),
        ("highest fan-in", "house.store.queue.orders 2, house.store.rows 2, house.errors 1"),
        ("imports inside functions", "1"),
        ("imports under TYPE_CHECKING", "1"),
        ("cycles at load", "2 modules with house.store.queue.orders"),
        ("arrows between folders of a layer", "store 2"),
        ("# fmt: skip", "1"),
        ("a, b = x, y of all assignments", "1 of 4 (25.0%)"),
        ("lines over 100 characters", "1 of 52 (1.9%)"),
        ("gerund module names", "house.store.polling"),
        ("dialect words per 1,000 identifiers", "45.5"),
        ("dialect words, most frequent", "look 1"),
        ("class names in several files", "1 of 4: Order 2"),
        ("names in docstrings that do not exist", "no_such_name"),
        ("record classes", "1 of 5 (20.0%)"),
        ("dict[str, Any]", "1"),
    ],
)
def test_a_small_package_has_known_measures(rows: dict[str, str], label: str, value: str) -> None:
    assert rows[label] == value


def test_the_program_lists_the_class_names_of_several_modules(folder: Path) -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--classes", str(folder)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Order  house.store.queue.orders, house.store.records\n", "")


def test_the_program_prints_a_row_per_measure_and_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = subprocess.run([sys.executable, str(TOOL), str(tmp_path / "empty")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["files", "/", "lines", "0", "/", "0"]
