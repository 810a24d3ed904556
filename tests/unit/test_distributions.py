"""The wheel and the source distribution contain the built pages, and only the latter their sources."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WWW = "airflow_provider_dtrain/www"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def test_an_installed_wheel_registers_the_pages(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        assert archive.read(f"{WWW}/main.js") == (ROOT / WWW / "main.js").read_bytes()
        assert [name for name in archive.namelist() if name.startswith(("ui/", "tests/", "testbed/"))] == []
    code = "from airflow_provider_dtrain.plugins.pages import WWW, react_apps; print(WWW, len(react_apps()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    folder, apps = done.stdout.split()
    assert (folder, int(apps) > 0) == (str(tmp_path / WWW), True)


def test_the_source_distribution_has_pages_and_their_sources(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {f"{WWW}/main.js", "ui/src/main.tsx", "ui/package-lock.json", "tests/unit/test_distributions.py"} <= names
    assert [name for name in names if "node_modules" in name] == []
