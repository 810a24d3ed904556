"""Programs that can be forked, and the record of what they import, which ranks may have forged."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.run.plan import check_plan
from airflow_provider_dtrain.supervisor.run.warm_key import Cold, PythonProgram, check_secrets_late, python_program
from airflow_provider_dtrain.supervisor.run.warm_record import MODULES_FILE, WarmRecord, checked_names, is_installed
from tests.support.supervisor_host import make_plan


def record(folder: Path, **changes: object) -> WarmRecord:
    return WarmRecord(str(folder), check_plan(make_plan("t1.1.1", "python", "train.py", **changes)))


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["python", "train.py", "-O"], ("", "train.py", ["-O"])),
        (["python", "-u", "-u", "a/b.py"], ("", "a/b.py", [])),
        (["python3", "-m", "pkg.mod", "x"], ("-m", "pkg.mod", ["x"])),
        (["python", "-c", "pass", "-m"], ("-c", "pass", ["-m"])),
    ],
)
def test_the_program_of_a_command_line(argv: list[str], program: tuple[str, str, list[str]]) -> None:
    assert python_program(argv) == PythonProgram(*program)


@pytest.mark.parametrize(
    "argv",
    [["python"], ["python", "-"], ["python", "folder"], ["python", "-mpkg"], ["python", "-c"], ["python", "-I", "a.py"]]
    + [["python", "-W", "error", "a.py"], ["python", "a.pyz"], ["python", "-"], ["python", "-x.py"]],
)
def test_a_command_line_with_other_options_is_executed(argv: list[str]) -> None:
    with pytest.raises(Cold):
        python_program(argv)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "OMP_NUM_THREADS", "CUDA_HOME", "TORCH_LOGS", "LC_ALL"])
def test_a_secret_that_a_program_reads_when_it_starts_cannot_be_given_later(name: str) -> None:
    check_secrets_late({"TOKEN": "x", "MY_LD_PRELOAD": "x", "LDAP": "x"})
    with pytest.raises(Cold, match=name):
        check_secrets_late({"TOKEN": "x", name: "x"})


def test_names_are_those_of_modules() -> None:
    names = [
        "torch",
        "torch.nn",
        "a b",
        "",
        "..",
        "a;b",
        1,
        None,
        ["torch"],
        "torch.__main__",
        "é",
        "x" * 200,
        "a/b",
        "a\n",
    ]
    assert checked_names(names) == ["torch", "torch.nn"]


def test_the_first_launch_of_code_is_recorded(tmp_path: Path) -> None:
    assert record(tmp_path).why_executed("a") == "the first launch of this code on this host"
    assert record(tmp_path).why_executed("a") is None
    assert record(tmp_path).why_executed("b") == "the first launch of this code on this host"
    assert record(tmp_path).why_executed("a") is None
    assert record(tmp_path, environment="0" * 64).why_executed("a") is not None
    for number in range(200):
        record(tmp_path).why_executed(str(number))
    assert len(json.loads(Path(record(tmp_path).path).read_text())["launched"]) <= 51


def test_code_that_cannot_be_forked_is_remembered(tmp_path: Path) -> None:
    record(tmp_path).why_executed("a")
    record(tmp_path).note_refusal("a", "queue.py hides a module")
    assert record(tmp_path).why_executed("a") == "queue.py hides a module"


def test_only_installed_packages_around_pytorch_are_recorded(tmp_path: Path) -> None:
    own = record(tmp_path)
    names = ["own_module", "pytest", "numpy", "numpy.linalg", "airflow_provider_dtrain.train", "torch.__main__"]
    (tmp_path / MODULES_FILE).write_text(json.dumps({"modules": names}))
    own.note_modules(str(tmp_path))
    found = record(tmp_path).modules()
    assert "own_module" not in found
    assert "pytest" not in found
    assert "airflow_provider_dtrain.train" in found


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"modules": 3}', '{"modules": {"a": 1}}', "\0" * 50, "[" * 100_000]
)
def test_a_damaged_report_or_record_is_no_record(tmp_path: Path, content: str) -> None:
    own = record(tmp_path)
    (tmp_path / MODULES_FILE).write_text(content)
    own.note_modules(str(tmp_path))
    Path(own.path).write_text(content)
    assert record(tmp_path).modules() == []
    assert record(tmp_path).is_bad is False


def test_a_report_that_is_no_file_is_not_followed(tmp_path: Path) -> None:
    own = record(tmp_path)
    os.mkfifo(tmp_path / MODULES_FILE)
    own.note_modules(str(tmp_path))
    assert own.modules() == []


def test_a_failed_parent_is_remembered_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path).note_bad()
    assert record(tmp_path).is_bad
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    assert not record(tmp_path).is_bad
    # A clock that was set back does not keep it for longer.
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    assert not record(tmp_path).is_bad


def test_a_module_is_installed_if_its_file_is_among_the_packages_or_the_libraries(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    assert is_installed(pytest.__file__, str(libraries))
    assert is_installed(str(libraries / "0" / "dtrain_rendezvous.py"), str(libraries))
    assert not is_installed(str(tmp_path / "libraries_of_mine" / "torch.py"), str(libraries))
    assert not is_installed(str(libraries / ".." / "work" / "torch.py"), str(libraries))
    assert not is_installed(None, str(libraries))
    link = libraries / "1"
    libraries.mkdir()
    link.symlink_to(tmp_path / "work")
    assert not is_installed(str(link / "torch.py"), str(libraries))
