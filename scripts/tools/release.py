"""Builds a release: `scripts/release [--version VERSION] [--to FOLDER]`. It publishes nothing.

The folder has the wheel and the source distribution of the provider, the wheel of the client, SHA256SUMS, a bill of
materials (CycloneDX) with the tested versions of its dependencies, and the notes of the version from CHANGELOG.md.
All of it is made from the files of the commit, not from those of the working folder. Two builds of one commit have
equal bytes, in whatever folder, time zone and umask: times in archives are those of the commit. The folder appears
whole or not at all.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
#: Extra with the tools of the tests.
TOOLS = "dev"


class ReleaseError(Exception):
    """No release can be built. Its text is for the user."""


def version() -> str:
    """Return the version in the package."""
    text = (ROOT / "airflow_provider_dtrain" / "__init__.py").read_text()
    return str(re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)[0])


def notes(of: str, *, needs_date: bool = True) -> str:
    """Return the section of a version in the changelog. A candidate has that of its final version.

    :param needs_date: that of a final version must have its date
    :raises ReleaseError: there is none, it is empty, or the date is missing
    """
    final = re.sub(r"(a|b|rc)\d+$", "", of)
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(final)}\](.*?)\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[2].strip():
        raise ReleaseError(f"CHANGELOG.md has no section with text for version {final}.")
    if needs_date and of == final and re.fullmatch(r" - \d{4}-\d\d-\d\d", found[1].rstrip()) is None:
        raise ReleaseError(f"CHANGELOG.md must have the date of version {final}: ## [{final}] - 2026-12-31")
    return f"# airflow-provider-dtrain {of}\n\n{found[2].strip()}\n"


def bill_of_materials(of: str) -> dict[str, Any]:
    """Return the packages that an installation brings, in the versions of the tests, as a document of CycloneDX 1.6.

    Those that only an extra brings have the scope ``optional``. The tools of the tests are left out.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for name, lines in project["optional-dependencies"].items() if name != TOOLS for one in lines]
    required, packages = needed(project["dependencies"]), needed([*project["dependencies"], *extras])
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line and line[0] != "#")
    pinned |= dict([environment.TORCH.split("==")])
    own = f"pkg:pypi/{project['name']}@{of}"
    refs = {name: f"pkg:pypi/{name}" + (f"@{pinned[name]}" if name in pinned else "") for name in packages}
    direct = {canonicalize_name(Requirement(one).name) for one in (*project["dependencies"], *extras)}
    needs = [(own, direct), *((refs[name], packages[name]) for name in sorted(packages))]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": project["name"],
                "version": of,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": refs[name],
                "name": name,
                **({"version": pinned[name]} if name in pinned else {}),
                "purl": refs[name],
                "scope": "required" if name in required else "optional",
            }
            for name in sorted(packages)
        ],
        "dependencies": [{"ref": ref, "dependsOn": sorted(refs[one] for one in below)} for ref, below in needs],
    }


def needed(requirements: Iterable[str]) -> dict[str, set[str]]:
    """Return name -> names of its dependencies, for some requirements and all that they require.

    A package that this environment lacks has none.
    """
    found: dict[str, set[str]] = {}
    todo, seen = [Requirement(one) for one in requirements], set[tuple[str, frozenset[str]]]()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        below = [Requirement(line) for line in requires(name)]
        below = [
            other
            for other in below
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in one.extras or ("",))
        ]
        found.setdefault(name, set()).update(canonicalize_name(other.name) for other in below)
        todo += below
    return found


def requires(name: str) -> list[str]:
    """Return the requirements of an installed distribution, none if it is not installed."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def build(source: Path, folder: Path, epoch: str, *, time_zone: str, umask: int) -> None:
    """Build the distributions from a folder of sources into another folder."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": time_zone}
    for place, targets in ((source, ("sdist", "wheel")), (source / "client", ("wheel",))):
        for target in targets:
            command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
            done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False, umask=umask)
            if done.returncode:
                raise ReleaseError(f"The {target} of {place.name} could not be built:\n{done.stdout}{done.stderr}")


def sources(folder: Path, *, allow_changes: bool) -> Path:
    """Return a folder with the files of the commit, or of the working folder if that may have changes.

    Files that git ignores, such as caches, are not in it.
    """
    if allow_changes:
        names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        return folder
    archive = folder / "commit.tar"
    git("archive", "--format=tar", "-o", str(archive), "HEAD")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()
    return folder


def git(*arguments: str) -> str:
    """Return the output of git."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise ReleaseError(f"git {' '.join(arguments)} failed, and a release is that of a commit: {reason}") from None


def release(to: Path, wanted: str | None, *, allow_changes: bool) -> list[Path]:
    """Build everything into an empty folder, and return its files.

    :raises ReleaseError: the tree has changes, the version is another one or has a tag, or two builds differ
    """
    found = version()
    if wanted and wanted != found:
        raise ReleaseError(
            f"The package has version {found}, not {wanted}. Change it in airflow_provider_dtrain/__init__.py."
        )
    if not allow_changes and git("status", "--porcelain"):
        raise ReleaseError("The working tree has changes. Commit them: a release is that of a commit.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ReleaseError(f"{to} must be an empty folder, or absent. Move it away.")
    if (tagged := git("tag", "--list", f"v{found}")) and git("rev-list", "-n1", tagged) != git("rev-parse", "HEAD"):
        raise ReleaseError(
            f"Version {found} was released: tag {tagged} is on another commit. Change the version in "
            "airflow_provider_dtrain/__init__.py."
        )
    text, epoch = notes(found, needs_date=not allow_changes), git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as name:
        built = [Path(name, "first"), Path(name, "second")]
        for folder, time_zone, umask in zip(built, ("UTC", "Asia/Tokyo"), (0o022, 0o077), strict=True):
            source = sources(Path(tempfile.mkdtemp(dir=name)), allow_changes=allow_changes)
            build(source, folder, epoch, time_zone=time_zone, umask=umask)
        names = sorted(path.name for path in built[0].iterdir())
        _, different, missing = filecmp.cmpfiles(*built, names, shallow=False)
        if different or missing:
            raise ReleaseError(f"Two builds differ: {', '.join(different + missing)}")
        folder = built[0]
        (folder / "sbom.cdx.json").write_text(json.dumps(bill_of_materials(found), indent=1) + "\n")
        (folder / "NOTES.md").write_text(text)
        files = sorted(folder.iterdir())
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
        (folder / "SHA256SUMS").write_text(sums)
        move_whole(folder, to)
    return sorted(to.iterdir())


def move_whole(folder: Path, to: Path) -> None:
    """Copy a folder beside its destination, which may be on another disk, and rename the copy."""
    part = to.with_name(f"{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        for path in folder.iterdir():
            shutil.copy(path, part)
        part.replace(to)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise


def main() -> int:
    """Build a release, or print why there is none."""
    parser = argparse.ArgumentParser(prog="scripts/release", description="Builds a release. It publishes nothing.")
    parser.add_argument("--version", help="fail if the package has another version")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="empty folder for the files (default: dist)")
    parser.add_argument(
        "--allow-changes", action="store_true", help="rehearse: build although the tree has changes, and without a date"
    )
    args = parser.parse_args()
    try:
        files = release(args.to.resolve(), args.version, allow_changes=args.allow_changes)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The release was not built, and {args.to} is unchanged: {error}", file=sys.stderr)
        return 1
    for path in files:
        print(f"{path.stat().st_size:>10,}  {path}")
    print(f"Next: sha256sum -c SHA256SUMS, git tag -s v{version()}, and publish the files.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
