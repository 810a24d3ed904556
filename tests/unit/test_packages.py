"""Packages of an interpreter as a host lists them: from names of folders, without an import."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.checks import packages
from airflow_provider_dtrain.supervisor.checks.packages import packages_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def made(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).mkdir(parents=True)
    return str(folder)


def test_the_list_is_that_of_pythons_own_library() -> None:
    found = packages_in(sys.path)["packages"]
    own = {
        one.metadata["Name"].lower().replace("_", "-").replace(".", "-") for one in importlib.metadata.distributions()
    }
    assert found.keys() == own
    assert found["sqlalchemy"] == importlib.metadata.version("sqlalchemy")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia_nccl_cu12-2.27.3.dist-info", {"nvidia-nccl-cu12": "2.27.3"}),
        ("torch-2.13.0+cpu.dist-info", {"torch": "2.13.0+cpu"}),
        ("Ruamel.Yaml-0.17.dist-info", {"ruamel-yaml": "0.17"}),
        ("PyYAML-5.3.1-py3.9.egg-info", {"pyyaml": "5.3.1"}),
        ("mine.egg-info", {"mine": None}),
        # Remains of a package that pip cannot remove, our own hook, and names without an end.
        ("~orch-2.0.dist-info", {}),
        ("dtrain_rendezvous-1.dist-info", {}),
        ("torch", {}),
        (f"{'a' * 129}-1.dist-info", {}),
        (f"a-{'1' * 129}.dist-info", {}),
    ],
)
def test_name_and_version_are_read_from_the_name_of_a_folder(
    folder: Path, name: str, expected: dict[str, str | None]
) -> None:
    assert packages_in([made(folder, name)])["packages"] == expected


def test_the_first_of_two_packages_of_one_name_counts(folder: Path) -> None:
    first, second = made(folder / "1", "numpy-2.0.dist-info"), made(folder / "2", "numpy-1.0.dist-info")
    assert packages_in([first, second, str(folder / "absent")])["packages"] == {"numpy": "2.0"}


def test_the_number_of_packages_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_PACKAGES_MOST", 3)
    assert len(packages_in([made(folder, *(f"p{n}-1.dist-info" for n in range(9)))])["packages"]) == 3


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'\n", "12.8"),
        ('from typing import Optional\ncuda = "11.8"\nhip = None\n', "11.8"),
        ("cuda: Optional[str] = None\n", "none"),
        ("__version__ = '2.0'\n", None),
        ("cuda = __import__('os').system('true')\n", None),
    ],
)
def test_the_cuda_of_pytorch_is_read_from_its_file_and_nothing_runs(folder: Path, text: str, cuda: str | None) -> None:
    made(folder, "torch")
    (folder / "torch" / "version.py").write_text(text)
    assert packages_in([str(folder)])["cuda"] == cuda
