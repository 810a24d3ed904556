"""A channel asks an interpreter for its modules again only when something that decides the answer has changed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.checks import interpreters
from airflow_provider_dtrain.supervisor.checks.interpreters import Interpreters


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Interpreters that were started, in order."""
    found: list[str | None] = []
    ask = interpreters._ask

    def noted(python: str | None, *more: object) -> object:
        found.append(python)
        return ask(python, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(interpreters, "_ask", noted)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of modules that has not changed for a while."""
    made = tmp_path / "modules"
    install(made, "1.0")
    (made / "first.py").touch()
    (made / "more.pth").write_text(f"{tmp_path}\n")
    return settle(made)


def install(folder: Path, version: str) -> None:
    info = folder / f"first-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: first\nVersion: {version}\n")


def settle(folder: Path) -> Path:
    for path in (folder, *folder.iterdir()):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10 * 10**9))
    return folder


def versions(known: Interpreters, folder: Path, *modules: str) -> object:
    found, problems = known.find(sys.executable, list(modules), str(folder), {"PYTHONPATH": str(folder)})
    assert problems == []
    return found["modules"], found["packages"].get("first"), "folders" in found


def test_an_interpreter_is_started_once_for_the_same_modules_and_variables(folder: Path, asked: list[str]) -> None:
    known = Interpreters()
    first = versions(known, folder, "first")
    assert first == ({"first": "1.0"}, "1.0", False)
    assert versions(known, folder, "first") == first
    assert len(asked) == 1
    versions(known, folder, "first", "json")
    known.find(sys.executable, ["json"], str(folder), {})
    assert len(asked) == 3
    assert versions(Interpreters(), folder, "first") == first
    assert len(asked) == 4


def upgrade(folder: Path) -> None:
    shutil.rmtree(folder / "first-1.0.dist-info")
    install(folder, "2.0")


def point_elsewhere(folder: Path) -> None:
    (folder / "more.pth").write_text("/somewhere/else\n")


def replace_interpreter(folder: Path) -> None:
    link = folder.parent / "python"
    link.unlink()
    link.symlink_to("/bin/false")


@pytest.mark.parametrize("change", [upgrade, point_elsewhere], ids=lambda change: change.__name__)
def test_a_change_of_the_packages_is_seen_at_once(
    folder: Path, asked: list[str], change: Callable[[Path], None]
) -> None:
    known = Interpreters()
    versions(known, folder, "first")
    change(folder)
    modules, package, _ = versions(known, folder, "first")
    expected = "2.0" if change is upgrade else "1.0"
    assert (modules, package, len(asked)) == ({"first": expected}, expected, 2)


def test_an_interpreter_that_was_replaced_is_asked_again(folder: Path, asked: list[str]) -> None:
    known, link = Interpreters(), folder.parent / "python"
    link.symlink_to(sys.executable)
    for _ in range(2):
        assert known.find(str(link), ["first"], str(folder), {"PYTHONPATH": str(folder)})[1] == []
    assert len(asked) == 1
    replace_interpreter(folder)
    found, problems = known.find(str(link), ["first"], str(folder), {"PYTHONPATH": str(folder)})
    assert found["python"] is None
    assert "exited with status 1" in problems[0]


@pytest.mark.parametrize("answer", ['{"executable": 1}', '{"executable": "x", "modules": {}, "folders": [3]}', "[]"])
def test_what_is_no_answer_is_a_problem_of_the_interpreter(folder: Path, answer: str) -> None:
    program = folder.parent / "python"
    program.write_text(f"#!/bin/sh\necho 'DTRAIN {answer}'\n")
    program.chmod(0o755)
    found, problems = Interpreters().find(str(program), ["first"], str(folder), {})
    assert found["modules"] == {"first": None}
    assert "exited with status 0" in problems[0]


def test_a_missing_module_is_searched_at_each_request(folder: Path, asked: list[str]) -> None:
    known = Interpreters()
    assert versions(known, folder, "second")[0] == {"second": None}
    assert versions(known, folder, "second")[0] == {"second": None}
    assert len(asked) == 2


def test_folders_that_change_while_the_interpreter_answers_are_not_trusted(folder: Path, asked: list[str]) -> None:
    """A second change in the same tick of the file system's clock would be invisible."""
    known = Interpreters()
    (folder / "third.py").touch()
    versions(known, folder, "first")
    versions(known, folder, "first")
    assert len(asked) == 2
    settle(folder)
    versions(known, folder, "first")
    versions(known, folder, "first")
    assert len(asked) == 3


def test_versions_are_those_that_importlib_metadata_finds(tmp_path: Path) -> None:
    names = {one.name.replace("-", "_") for one in importlib.metadata.distributions() if one.name}
    names = {name for name in names if name.isidentifier() and importlib.util.find_spec(name) is not None}
    expected = {name: importlib.metadata.version(name) for name in names}
    assert len(expected) > 20
    found, problems = Interpreters().find(sys.executable, [*expected, "yaml", "absent"], str(tmp_path), {})
    assert problems == []
    assert found["modules"] == {**expected, "yaml": importlib.metadata.version("PyYAML"), "absent": None}
