"""``scripts/release`` in a clone, and its distributions in empty environments."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.nightly, pytest.mark.slow]
#: Version of the package in the clone.
VERSION = "7.8.9"
DATED = f"## [{VERSION}] - 2030-01-02\n\n- Something new.\n\n"
INSTALLED = ROOT / "scripts" / "tools" / "installed.py"
#: Python and Airflow: the oldest and the newest versions.
CHOICES = ast.literal_eval(re.findall(r"^SUPPORTED = (.*)$", INSTALLED.read_text(), re.MULTILINE)[0])

INSTALLED_S = 1800


def git(clone: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    command = ["git", "-C", str(clone), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def change(path: Path, former: str, new: str) -> None:
    text = path.read_text()
    assert former in text
    path.write_text(text.replace(former, new, 1))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with the files of this tree, a version of its own, and notes with a date."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    version = folder / "airflow_provider_dtrain" / "__init__.py"
    version.write_text(f'"""The package of a test."""\n\n__version__ = "{VERSION}"\n')
    change(folder / "CHANGELOG.md", "\n## [", f"\n{DATED}## [")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Release")
    return folder


@pytest.fixture
def fresh(clone: Path, tmp_path: Path) -> Path:
    """A copy of the clone that a test may change."""
    subprocess.run(["git", "clone", "-q", str(clone), str(tmp_path / "fresh")], check=True)
    return tmp_path / "fresh"


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "scripts" / "tools" / "release.py"), *arguments]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=600)


def commit(clone: Path) -> None:
    git(clone, "commit", "-qam", "Change")


def _dirty(clone: Path) -> None:
    change(clone / "README.md", "a", "b")


def _untracked(clone: Path) -> None:
    (clone / "airflow_provider_dtrain" / "junk.py").write_text("")


def _no_notes(clone: Path) -> None:
    change(clone / "CHANGELOG.md", DATED, "")
    commit(clone)


def _empty_notes(clone: Path) -> None:
    change(clone / "CHANGELOG.md", "- Something new.\n", "")
    commit(clone)


def _no_date(clone: Path) -> None:
    change(clone / "CHANGELOG.md", "2030-01-02", "unreleased")
    commit(clone)


def _tagged(clone: Path) -> None:
    git(clone, "tag", f"v{VERSION}")
    change(clone / "CHANGELOG.md", "Something new", "Something else")
    commit(clone)


def _no_repository(clone: Path) -> None:
    shutil.rmtree(clone / ".git")


def _not_empty(clone: Path) -> None:
    (clone / "dist").mkdir()
    (clone / "dist" / "old.whl").write_text("")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_dirty, "The working tree has changes"),
        (_untracked, "The working tree has changes"),
        (_no_notes, f"no section with text for version {VERSION}"),
        (_empty_notes, f"no section with text for version {VERSION}"),
        (_no_date, f"must have the date of version {VERSION}"),
        (_tagged, f"Version {VERSION} was released: tag v{VERSION} is on another commit"),
        (_no_repository, "a release is that of a commit"),
        (_not_empty, "must be an empty folder"),
    ],
)
def test_a_release_that_would_be_wrong_is_refused(fresh: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(fresh)
    done = release(fresh)
    assert (done.returncode, message in done.stderr) == (1, True), done.stdout + done.stderr
    assert not list(fresh.glob("dist/*7.8.9*"))


def test_another_version_than_that_of_the_package_is_refused(fresh: Path) -> None:
    done = release(fresh, "--version", "7.9.0")
    assert (done.returncode, f"has version {VERSION}, not 7.9.0" in done.stderr) == (1, True)


def test_a_candidate_has_the_notes_of_its_final_version_and_needs_no_date(fresh: Path) -> None:
    _no_date(fresh)
    change(fresh / "airflow_provider_dtrain" / "__init__.py", VERSION, f"{VERSION}rc1")
    commit(fresh)
    done = release(fresh)
    assert done.returncode == 0, done.stderr
    notes = (fresh / "dist" / "NOTES.md").read_text()
    assert notes == f"# airflow-provider-dtrain {VERSION}rc1\n\n- Something new.\n"


@pytest.fixture(scope="module")
def dist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of the clone, which has caches that git ignores."""
    (clone / "airflow_provider_dtrain" / "core" / ".coverage").write_text("x")
    (clone / "airflow_provider_dtrain" / "core" / "__pycache__").mkdir()
    (clone / "airflow_provider_dtrain" / "core" / "__pycache__" / "old.pyc").write_text("x")
    folder = tmp_path_factory.mktemp("dist")
    done = release(clone, "--to", str(folder), "--version", VERSION)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_release_is_whole_and_of_the_commit_alone(clone: Path, dist: Path) -> None:
    assert sorted(path.name for path in dist.iterdir()) == [
        "NOTES.md",
        "SHA256SUMS",
        f"airflow_provider_dtrain-{VERSION}-py3-none-any.whl",
        f"airflow_provider_dtrain-{VERSION}.tar.gz",
        f"dtrain_client-{VERSION}-py3-none-any.whl",
        "sbom.cdx.json",
    ]
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=dist, capture_output=True, text=True, check=True)
    assert checked.stdout.count(": OK") == 5
    committed = set(git(clone, "ls-files", "airflow_provider_dtrain").splitlines())
    with zipfile.ZipFile(next(dist.glob("airflow_*.whl"))) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == committed
    with zipfile.ZipFile(next(dist.glob("dtrain_client*.whl"))) as archive:
        own = {name.removeprefix("dtrain_client/") for name in archive.namelist() if ".dist-info/" not in name}
    assert own - committed == {"dtrain_client.pth", "airflow_provider_dtrain/LICENSE"}


def test_the_bill_of_materials_has_what_users_install(dist: Path, tmp_path: Path) -> None:
    text = (dist / "sbom.cdx.json").read_text()
    materials = json.loads(text)
    assert materials["metadata"]["component"]["version"] == VERSION
    scopes = {one["name"]: one["scope"] for one in materials["components"]}
    assert scopes.items() >= {"apache-airflow": "required", "starlette": "required", "sympy": "optional"}.items()
    assert not scopes.keys() & {"pytest", "ruff", "sphinx"}
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(tmp_path)]
    subprocess.run([*pip, "cyclonedx-python-lib[json-validation]"], check=True, timeout=300)
    check = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.check_output([sys.executable, "-c", check], env=env, input=text, text=True)
    assert said == "None\n"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_another_clone_makes_the_same_bytes(fresh: Path, dist: Path, tmp_path: Path) -> None:
    of_a_killed_release = tmp_path / "again.part"
    of_a_killed_release.mkdir()
    (of_a_killed_release / "old.whl").write_text("half")
    done = release(fresh, "--to", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "again") == digests(dist)
    assert not of_a_killed_release.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a small disk")
def test_a_full_disk_leaves_no_part_of_a_release(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    command = f"{sys.executable} {fresh}/scripts/tools/release.py --to disk/dist || code=$?; ls -A disk; exit $code"
    disk = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=256k tmpfs disk; {command}"]
    done = subprocess.run(disk, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The release was not built, and disk/dist is unchanged: [Errno 28] No space left")


def test_the_source_distribution_builds_the_same_wheels(clone: Path, dist: Path, tmp_path: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    env = {**os.environ, "SOURCE_DATE_EPOCH": git(clone, "log", "-1", "--format=%ct")}
    for place in (source, source / "client"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")]
        subprocess.run(command, cwd=place, env=env, check=True, capture_output=True)
    assert digests(tmp_path / "wheels").items() <= digests(dist).items()


def interpreter(version: str) -> str | None:
    """Return an interpreter of a minor version on this machine."""
    known = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), Path(f"/usr/bin/python{version}")]
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    return next((str(path) for path in known if path.exists()), None)


@pytest.mark.parametrize(("python", "airflow"), CHOICES, ids=[f"{python}-{airflow}" for python, airflow in CHOICES])
def test_the_wheels_work_in_an_empty_environment(dist: Path, python: str, airflow: str) -> None:
    base = interpreter(python)
    if base is None:
        pytest.skip(f"needs Python {python}")
    command = [sys.executable, str(INSTALLED), "--dist", str(dist)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, "--python", base, "--airflow", airflow],
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALLED_S,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
