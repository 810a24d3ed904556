"""Actions at the end of the first import of a module."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.process import import_hooks
from airflow_provider_dtrain.train.process.import_hooks import after_import, run_actions

NAME = "imported_late"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the file of a module that can be imported and is not."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(import_hooks, "_actions", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_an_action_runs_once_at_the_end_of_the_import(module: Path) -> None:
    seen = []
    after_import(NAME, "see", lambda: seen.append(sys.modules[NAME].value))
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [1]
    del sys.modules[NAME]
    importlib.import_module(NAME)
    assert seen == [1]


def test_an_action_runs_at_once_for_a_module_that_is_imported(module: Path) -> None:
    seen: list[str] = []
    importlib.import_module(NAME)
    after_import(NAME, "see", lambda: seen.append("first"))
    after_import(NAME, "see", lambda: seen.append("second"))
    assert seen == ["first", "second"]


def test_a_later_action_of_the_same_name_takes_the_place_of_the_former(module: Path) -> None:
    seen: list[str] = []
    for name, text in (("seed", "1"), ("report", "2"), ("seed", "3")):
        after_import(NAME, name, lambda text=text: seen.append(text))
    importlib.import_module(NAME)
    assert seen == ["3", "2"]


def test_the_loader_and_a_search_without_an_import_stay_as_they_are(module: Path) -> None:
    seen: list[str] = []
    after_import(NAME, "see", lambda: seen.append("ran"))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert seen == []
    imported = importlib.import_module(NAME)
    assert "exec_module" not in vars(imported.__loader__)
    assert imported.__loader__.get_source(NAME) == "value = 1\n"


def test_the_action_waits_for_an_import_that_succeeds(module: Path) -> None:
    seen: list[int] = []
    after_import(NAME, "see", lambda: seen.append(1))
    module.write_text("raise ImportError('not yet')\n")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    assert seen == []
    module.write_text("value = 'a longer text'\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == [1]


def test_an_error_of_an_action_ends_the_import(module: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no such device")

    after_import(NAME, "device", fail)
    with pytest.raises(RuntimeError, match="no such device"):
        importlib.import_module(NAME)
    assert NAME not in sys.modules


def test_another_thread_gets_the_module_after_the_actions(module: Path) -> None:
    began, goes_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def act() -> None:
        began.set()
        assert goes_on.wait(10)
        seen.append("acted")

    def use() -> None:
        importlib.import_module(NAME)
        seen.append("used")

    after_import(NAME, "act", act)
    first = threading.Thread(target=use)
    first.start()
    assert began.wait(10)
    second = threading.Thread(target=use)
    second.start()
    goes_on.set()
    first.join(10)
    second.join(10)
    assert seen == ["acted", "used", "used"]


def test_an_import_that_another_thread_has_begun_before_is_waited_for(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.write_text("import threading\nthreading.began.set()\nassert threading.goes_on.wait(10)\nvalue = 1\n")
    began, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "began", began, raising=False)
    monkeypatch.setattr(threading, "goes_on", goes_on, raising=False)
    importing = threading.Thread(target=importlib.import_module, args=(NAME,))
    importing.start()
    assert began.wait(10)
    threading.Timer(0.1, goes_on.set).start()
    seen = []
    after_import(NAME, "see", lambda: seen.append(sys.modules[NAME].value))
    assert seen == [1]
    importing.join(10)


@pytest.mark.parametrize("ask", [lambda: run_actions(NAME), lambda: after_import(NAME, "other", lambda: None)])
def test_actions_that_a_foreign_finder_has_passed_by_run_with_the_next_use(
    module: Path, ask: Callable[[], None]
) -> None:
    class Past:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            return PathFinder.find_spec(name) if name == NAME else None

    seen: list[int] = []
    after_import(NAME, "see", lambda: seen.append(1))
    sys.meta_path.insert(0, Past())  # type: ignore[arg-type]
    importlib.import_module(NAME)
    assert seen == []
    ask()
    ask()
    assert seen == [1]
