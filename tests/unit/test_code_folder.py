"""The user's code on the path of a rank: behind the modules of Python itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from airflow_provider_dtrain.supervisor.run.plan import check_context
from airflow_provider_dtrain.supervisor.run.rank_environment import rank_environment
from airflow_provider_dtrain.supervisor.run.ranks import RUN_MODULE
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.process.code_folder import add_code_folder, check_is_own
from tests.support.supervisor_host import make_plan

ROOT = Path(__file__).parents[2]
SHADOWS = ("numbers", "types", "json", "logging", "dataclasses")
PROGRAM = """
import os, subprocess, sys
import numbers, json
from airflow_provider_dtrain.train.process.code_folder import add_code_folder
add_code_folder()
import own
assert json.loads("1") == 1 and issubclass(int, numbers.Number)
child = "import sys, own, numbers; print(own.NAME, hasattr(numbers, 'Number'))"
print(own.NAME, flush=True)
subprocess.run([sys.executable, "-c", child], check=True)
"""


def environment(argv: list[str], work: str = "/run/t1/work") -> dict[str, str]:
    folder = SimpleNamespace(
        file=lambda name: work if name == "work" else f"/run/t1/{name}",
        layout=SimpleNamespace(library=lambda digest: f"/lib/{digest}"),
        name="t1",
        path="/run/t1",
    )
    plan = {**make_plan("t1.1.7", *argv), "env": {"PYTHONPATH": "/mine"}, "library": "abc"}
    go = {"master_addr": "a", "master_port": 1}
    return rank_environment(plan, check_context({}), plan["ranks"][0], folder, go, {})  # type: ignore[arg-type]


def test_a_script_has_the_code_in_front_and_a_program_of_the_library_has_not() -> None:
    script = environment(["python", "train.py"])
    assert script["PYTHONPATH"] == "/run/t1/work:/lib/abc:/mine"
    module = environment(["python", "-m", "package.train"])
    assert module["PYTHONPATH"] == "/run/t1/work:/lib/abc:/mine"
    library = environment(["python", "-m", "airflow_provider_dtrain.train.harness", "model_def:Trial"])
    assert library["PYTHONPATH"] == "/lib/abc:/mine"


def test_files_named_like_modules_of_python_replace_none_and_the_other_files_are_found(tmp_path: Path) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user was imported')")
    (tmp_path / "own.py").write_text("NAME = 'mine'")
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "started.py").write_text(PROGRAM)
    env = {
        **environment(["python", "-m", "airflow_provider_dtrain.train.inference"], str(tmp_path)),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tmp_path / 'program'}:{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN_MODULE, "started"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    # The child has the environment that a script of the user has, where its own files are in front.
    assert done.stdout == "mine\n"
    assert "a file of the user was imported" in done.stderr


def test_the_folder_is_behind_pythons_own_modules_and_before_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site = next(path for path in sys.path if path.endswith("site-packages"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    add_code_folder()
    place = sys.path.index(str(tmp_path))
    assert sys.path.index(os.path.dirname(os.__file__)) < place < sys.path.index(site)
    assert sys.path.count(str(tmp_path)) == 1


def test_a_module_that_python_has_itself_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers.py").write_text("")
    (tmp_path / "time").mkdir()
    (tmp_path / "time" / "__init__.py").write_text("")
    import numbers
    import time

    with pytest.raises(SetupError, match=r"numbers\.py has the name of a module that Python imports instead: /"):
        check_is_own(numbers, "numbers")
    with pytest.raises(SetupError, match=r"time/__init__\.py has the name .*: a built-in module"):
        check_is_own(time, "time.models")
    check_is_own(pytest, "pytest")
    own = ModuleType("own")
    own.__file__ = str(tmp_path / "own.py")
    (tmp_path / "own.py").write_text("")
    check_is_own(own, "own")
