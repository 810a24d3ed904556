"""Files of the code that the section ``environment`` names: sent, read, and turned into what a host installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble
from airflow_provider_dtrain.core.config.environment_source import EnvironmentSource, is_satisfied
from airflow_provider_dtrain.core.lock_files.pins import Pin
from airflow_provider_dtrain.decorators._function import FunctionSource
from airflow_provider_dtrain.decorators._payload import code_with
from airflow_provider_dtrain.engine.submission.entry import environment_in, problems_of_archive
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.hosts.payload import pack

A, B = (f"sha256:{digit * 64}" for digit in "ab")
FACTS = {
    "python": "3.12.1", "machine": "x86_64", "libc": "glibc 2.36", "is_free_threaded": False, "platform_release": "6",
    "platform_version": "#1", "distributions": {"Torch": "2.13.0+cu126", "six": "1.15.0"},
}  # fmt: skip


def config(**environment: Any) -> ExperimentConfig:
    document = {"entrypoint": "python train.py", "environment": {"requirements": "r.lock", **environment}}
    return assemble(None, {**document, "searcher": {"name": "single"}}).config


def source(folder: Path, lock: str, **environment: Any) -> EnvironmentSource:
    (folder / "r.lock").write_text(lock)
    found, problems = environment_in(config(**environment), folder)
    assert problems == []
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environment", "files"),
    [
        ({}, ["r.lock"]),
        ({"requirements": "app/pyproject.toml"}, ["app/pyproject.toml", "app/uv.lock"]),
        ({"requirements": "train.py"}, ["train.py", "train.py.lock"]),
        ({"wheels": "wheels", "setup": "setup.sh"}, ["r.lock", "setup.sh", "wheels"]),
        ({"wheels": "/site/wheels"}, ["r.lock"]),
    ],
)
def test_the_section_names_the_files_that_are_sent(environment: dict[str, Any], files: list[str]) -> None:
    assert list(config(**environment).environment.files()) == files


def test_a_function_is_sent_with_the_files_of_its_environment(tmp_path: Path) -> None:
    (tmp_path / "r.lock").write_text("x")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").write_text("y")
    function = FunctionSource("f", "f.py", "def f(): pass\n")
    with code_with(function, {}, tmp_path, None, files=["r.lock", "wheels", "missing"]) as root:
        assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()) == [
            "dtrain_function/call.json", "dtrain_function/f.py", "r.lock", "wheels/a.whl",
        ]  # fmt: skip


def test_another_lock_file_or_wheel_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "six-1.0-py3-none-any.whl"
    wheel.write_text("one")
    first = source(tmp_path, "six==1.0\n", wheels="wheels").digest
    assert source(tmp_path, "six==1.0\n", wheels="wheels").digest == first
    wheel.write_text("two")
    assert source(tmp_path, "six==1.0\n", wheels="wheels").digest != first
    wheel.write_text("one")
    assert source(tmp_path, "six==1.0 # same\n", wheels="wheels").digest != first


def test_packages_that_the_interpreter_has_in_their_version_are_not_installed_again(tmp_path: Path) -> None:
    lock = f"torch==2.13.0 --hash={A}\nsix==1.16.0 --hash={B}\nwin==1 ; sys_platform == 'win32' --hash={A}\n"
    packages, tags = source(tmp_path, lock, system_site_packages=True).packages(FACTS)
    assert packages == [{"name": "six", "version": "1.16.0", "hashes": [B]}]
    assert tags[0] == "cp312-cp312-linux_x86_64"
    packages, _ = source(tmp_path, lock).packages(FACTS)
    assert [one["name"] for one in packages] == ["torch", "six"]


@pytest.mark.parametrize(
    ("pinned", "installed", "is_same"),
    [
        ("2.13.0", "2.13.0", True),
        ("2.13.0", "2.13.0+cu126", True),
        ("2.13.0+cpu", "2.13.0+cu126", False),
        ("2.13.0+cpu", "2.13.0", False),
        ("2.13.0", "2.13.1", False),
        ("2.13.0", None, False),
    ],
)
def test_a_build_for_a_kind_of_gpu_satisfies_the_plain_version(
    pinned: str, installed: str | None, is_same: bool
) -> None:
    known = {} if installed is None else {"torch": installed}
    assert is_satisfied(Pin(name="torch", version=pinned), known) is is_same


def test_code_that_a_client_has_sent_is_checked_as_a_folder_is(tmp_path: Path) -> None:
    (tmp_path / "r.lock").write_text("six\n")
    (tmp_path / "setup.sh").write_text("module load cuda\n")
    for problems in (
        problems_of_archive(config(setup="other.sh"), pack(tmp_path).content),
        environment_in(config(setup="other.sh"), tmp_path)[1],
    ):
        assert [problem.path for problem in problems] == ["environment.setup", "environment.requirements"]
    (tmp_path / "r.lock").write_text(f"six==1.0 --hash={A}\n")
    assert problems_of_archive(config(setup="setup.sh"), pack(tmp_path).content) == []


def test_a_file_outside_of_the_code_or_with_credentials_is_not_read(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (tmp_path / "secret").write_text("PASSWORD=s3cret\n")
    (code / "r.lock").symlink_to(tmp_path / "secret")
    (code / ".env").write_text("PASSWORD=s3cret\n")
    for name in ("r.lock", ".env"):
        ((problem),) = environment_in(config(requirements=name), code)[1]
        assert problem.message == f"the code has no file '{name}'"


@pytest.mark.parametrize("value", [0, -1, 86_401, "soon", float("inf"), float("nan")])
def test_the_time_of_a_build_has_bounds(value: object) -> None:
    assert config(build_timeout=86_400).environment.build_timeout == 86_400
    with pytest.raises(ConfigError) as refused:
        config(build_timeout=value)
    assert [problem.path for problem in refused.value.problems] == ["environment.build_timeout"]
