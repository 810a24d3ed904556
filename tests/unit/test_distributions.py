"""The provider's wheel and source distribution, and the client's wheel."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

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


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT / "client", check=True, capture_output=True)
    (wheel,) = folder.glob("dtrain_client-*.whl")
    return wheel


def content(wheel: Path) -> dict[str, bytes]:
    """Return name -> bytes of the files of a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: archive.read(name) for name in names}


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "airflow_provider_dtrain"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    expected = {name: (ROOT / name).read_bytes() for name in listed if name and (ROOT / name).exists()}
    (wheel,) = built.glob("*.whl")
    assert content(wheel) == expected
    assert {f"{WWW}/main.js", "airflow_provider_dtrain/py.typed"} <= expected.keys()
    with zipfile.ZipFile(wheel) as archive:
        (license_text,) = (archive.read(name) for name in archive.namelist() if name.endswith("licenses/LICENSE"))
    assert license_text == (ROOT / "LICENSE").read_bytes()


def test_the_client_overwrites_no_file_of_the_provider_and_has_the_same_modules(
    built: Path, client_wheel: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    provider, client = content(wheel), content(client_wheel)
    assert provider.keys() & client.keys() == set()
    assert client.pop("dtrain_client.pth") == b"dtrain_client\n"
    assert client.pop("dtrain_client/airflow_provider_dtrain/LICENSE")
    own = {name.removeprefix("dtrain_client/"): data for name, data in client.items()}
    assert own.items() <= provider.items()


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


def test_the_client_alone_needs_nothing_but_python(client_wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(client_wheel) as archive:
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


def test_supported_versions_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "tools"))
    supported = runpy.run_path(str(ROOT / "scripts" / "tools" / "installed.py"))["SUPPORTED"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "distributions.yml").read_text())
    matrix = workflow["jobs"]["install"]["strategy"]["matrix"]["include"]
    assert [(one["python"], one["airflow"]) for one in matrix] == list(supported)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert pythons == [python for python, _ in supported]
    assert project["requires-python"] == f">={pythons[0]}"
    oldest = ".".join(supported[0][1].split(".")[:2])
    assert f"apache-airflow>={oldest}" in project["dependencies"]
    newest = f"apache-airflow=={supported[-1][1]}"
    assert newest in (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
