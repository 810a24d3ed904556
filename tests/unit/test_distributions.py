"""The provider's wheel and source distribution, the client's wheel, and the release that has them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WWW = "airflow_provider_dtrain/www"
#: Imports all modules of the folders that it is given.
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(f"airflow_provider_dtrain.{name}")
    for _, module, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module)
"""


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


def test_the_client_alone_needs_nothing_but_python(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT / "client",
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("dtrain_client-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    required = [line for line in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE) if "extra ==" not in line]
    assert required == []

    def run(*arguments: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.run(
            [str(python), *arguments], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
        ).stdout

    run("-c", IMPORT_ALL, "client", "terminal", "resources")
    script = (
        "import sys; from airflow_provider_dtrain.client.main import script; sys.argv[0] = 'dtrain'; sys.exit(script())"
    )
    assert "trials" in run("-c", script, "--help")


@pytest.mark.nightly
def test_a_release_is_whole_and_the_same_when_it_is_built_again(tmp_path: Path) -> None:
    tool = runpy.run_path(str(ROOT / "scripts" / "tools" / "release.py"))
    files = tool["release"](tmp_path / "dist", None, allow_changes=True)
    version = tool["version"]()
    assert [path.name for path in files] == [
        "NOTES.md",
        "SHA256SUMS",
        f"airflow_provider_dtrain-{version}-py3-none-any.whl",
        f"airflow_provider_dtrain-{version}.tar.gz",
        f"dtrain_client-{version}-py3-none-any.whl",
        "sbom.cdx.json",
    ]
    sums = dict(line.split("  ")[::-1] for line in (tmp_path / "dist" / "SHA256SUMS").read_text().splitlines())
    shown = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.name != "SHA256SUMS"}
    assert sums == shown
    materials = json.loads((tmp_path / "dist" / "sbom.cdx.json").read_text())
    assert {"apache-airflow", "paramiko"} <= {one["name"] for one in materials["components"]}
    with pytest.raises(tool["ReleaseError"], match="is not empty"):
        tool["release"](tmp_path / "dist", None, allow_changes=True)
    with pytest.raises(tool["ReleaseError"], match="has no section"):
        tool["notes"]("99.0")
    assert tool["notes"](f"{version}rc1").startswith(f"# airflow-provider-dtrain {version}rc1\n")
