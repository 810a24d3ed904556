"""Builds a release: `scripts/release [--version VERSION] [--to FOLDER]`. It publishes nothing.

The folder has the wheel and the source distribution of the provider, the wheel of the client, SHA256SUMS, a bill of
materials (CycloneDX) of the tested dependencies, and the notes of the version from CHANGELOG.md. Two builds of one
commit have equal bytes: times in archives are those of the commit.
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
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"


class ReleaseError(Exception):
    """No release can be built. Its text is for the user."""


def version() -> str:
    """Return the version in the package."""
    text = (ROOT / "airflow_provider_dtrain" / "__init__.py").read_text()
    return str(re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)[0])


def notes(of: str) -> str:
    """Return the section of a version in the changelog. A candidate has that of its final version.

    :raises ReleaseError: there is none, or it is empty
    """
    final = re.sub(r"(a|b|rc)\d+$", "", of)
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(final)}\].*?\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md has no section with text for version {final}.")
    return f"# airflow-provider-dtrain {of}\n\n{found[1].strip()}\n"


def bill_of_materials(of: str) -> dict[str, Any]:
    """Return the dependencies with which the tests passed, as a document of CycloneDX 1.6."""
    pinned = [line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line and line[0] != "#"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": "airflow-provider-dtrain",
                "version": of,
                "purl": f"pkg:pypi/airflow-provider-dtrain@{of}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            {"type": "library", "name": name, "version": pin, "purl": f"pkg:pypi/{name}@{pin}", "scope": "optional"}
            for name, pin in pinned
        ],
    }


def build(folder: Path, epoch: str) -> None:
    """Build the distributions into a folder."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    for place, targets in ((ROOT, ("sdist", "wheel")), (ROOT / "client", ("wheel",))):
        for target in targets:
            command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
            done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ReleaseError(f"The {target} of {place.name} could not be built:\n{done.stdout}{done.stderr}")


def git(*arguments: str) -> str:
    """Return the output of git."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseError(f"git {' '.join(arguments)} failed, and a release is that of a commit: {error}") from None


def release(to: Path, wanted: str | None, *, allow_changes: bool) -> list[Path]:
    """Build everything into an empty folder, and return its files.

    :raises ReleaseError: the tree has changes, the version is another one, or two builds differ
    """
    found = version()
    if wanted and wanted != found:
        raise ReleaseError(
            f"The package has version {found}, not {wanted}. Change it in airflow_provider_dtrain/__init__.py."
        )
    if not allow_changes and git("status", "--porcelain"):
        raise ReleaseError("The working tree has changes. Commit them: a release is that of a commit.")
    if to.exists() and any(to.iterdir()):
        raise ReleaseError(f"{to} is not empty.")
    text, epoch = notes(found), git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        build(Path(first), epoch)
        build(Path(second), epoch)
        names = sorted(path.name for path in Path(first).iterdir())
        _, different, missing = filecmp.cmpfiles(first, second, names, shallow=False)
        if different or missing:
            raise ReleaseError(f"Two builds differ: {', '.join(different + missing)}")
        to.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(Path(first, name), to / name)
    (to / "sbom.cdx.json").write_text(json.dumps(bill_of_materials(found), indent=1) + "\n")
    (to / "NOTES.md").write_text(text)
    files = sorted(to.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (to / "SHA256SUMS").write_text(sums)
    return sorted(to.iterdir())


def main() -> int:
    """Build a release, or print why there is none."""
    parser = argparse.ArgumentParser(prog="scripts/release", description="Builds a release. It publishes nothing.")
    parser.add_argument("--version", help="fail if the package has another version")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="empty folder for the files (default: dist)")
    parser.add_argument("--allow-changes", action="store_true", help="build although the working tree has changes")
    args = parser.parse_args()
    try:
        files = release(args.to, args.version, allow_changes=args.allow_changes)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    for path in files:
        print(f"{path.stat().st_size:>10,}  {path}")
    print(f"Next: sha256sum -c SHA256SUMS, git tag -s v{version()}, and publish the files.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
