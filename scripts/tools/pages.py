"""Check the sources of the pages in `ui/`, and that the bundle in the package is built from them.

The checks take two minutes of CPU time, and most changes do not touch the pages. So `ui/checked.sha256` has the hash of
sources and bundle with which all checks passed, and a run with the same hash skips them. `--all` skips nothing.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UI = ROOT / "ui"
#: Folder of the bundle, in the package.
WWW = ROOT / "airflow_provider_dtrain" / "www"
#: Types of the API's answers, generated.
SCHEMA = UI / "src" / "api" / "schema.ts"
#: Oldest Node.js with which the tools in ui/package.json run.
NODE = (20, 19)
#: Hash of the lock file from which node_modules was installed.
STAMP = UI / "node_modules" / ".installed-from"
#: Hash of sources and bundle with which all checks passed.
CHECKED = UI / "checked.sha256"
#: Has the version that is part of the bundle.
VERSION = ROOT / "airflow_provider_dtrain" / "__init__.py"


def missing_node() -> str | None:
    """Return the reason why the check cannot run on this machine, or None."""
    if not (shutil.which("node") and shutil.which("npm")):
        return "node or npm is missing"
    text = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    found = re.match(r"v(\d+)\.(\d+)", text)
    if found and (int(found[1]), int(found[2])) >= NODE:
        return None
    return f"node must be {NODE[0]}.{NODE[1]} or newer, got {text or 'no answer'}"


def install() -> int:
    """Install the packages of the lock file, unless they are installed, and return npm's exit code."""
    lock = hashlib.sha256((UI / "package-lock.json").read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == lock:
        return 0
    # The second try is for a package index that did not answer in time.
    for _ in range(2):
        code = step("npm", "ci", "--no-fund", "--no-audit", "--ignore-scripts")
        if code == 0:
            STAMP.write_text(lock)
            return 0
    return code


def step(*command: str, **env: str) -> int:
    """Run a command in `ui/` and return its exit code."""
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(
        command, cwd=UI, env={**os.environ, "CI": "true", "NO_COLOR": "1", **env}, check=False
    ).returncode


def drift(built: Path, committed: Path) -> list[str]:
    """Return the files that differ between two folders, as paths below them."""
    names = {path.relative_to(folder) for folder in (built, committed) for path in folder.rglob("*") if path.is_file()}
    return sorted(str(name) for name in names if not _same(built / name, committed / name))


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def build() -> int:
    """Build into a temporary folder, compare with the package's bundle, and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="dtrain-pages-") as folder:
        built = Path(folder, "www")
        code = step("npx", "vite", "build", DTRAIN_UI_OUT=str(built))
        if code:
            return code
        different = drift(built, WWW)
    if not different:
        return 0
    print(
        f"The bundle in {WWW.relative_to(ROOT)} is not built from the sources in ui/: {', '.join(different)} differ. "
        "Build it with 'npm --prefix ui run build' and commit it.",
        flush=True,
    )
    return 1


def types() -> int:
    """Check that the types of the API's answers are generated from ui/openapi.json, and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="dtrain-pages-") as folder:
        generated = Path(folder, "schema.ts")
        code = step("npx", "openapi-typescript", "openapi.json", "-o", str(generated))
        if code or _same(generated, SCHEMA):
            return code
    print(
        f"{SCHEMA.relative_to(ROOT)} is not generated from ui/openapi.json. "
        "Generate it with 'npm --prefix ui run api' and commit it.",
        flush=True,
    )
    return 1


def digest() -> str:
    """Return the hash of everything that the checks read: names and contents of sources, bundle and version."""
    found = [path for folder in (UI, WWW) for path in _files(folder) if path != CHECKED]
    whole = hashlib.sha256()
    for path in sorted([*found, VERSION]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{content} {path.relative_to(ROOT).as_posix()}\n".encode())
    return whole.hexdigest()


def _files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if one != "node_modules"]
        # Editors keep hidden files, and no check reads documentation.
        found += [Path(parent, name) for name in names if not name.startswith(".") and not name.endswith(".md")]
    return found


def check() -> int:
    """Run all checks of the pages, even after a failure, and return the first failed exit code."""
    if code := install():
        print("npm ci failed: the pages in ui/ are not checked.", flush=True)
        return code
    codes = [types(), build()]
    codes += [step("npx", *command) for command in (("eslint", "."), ("tsc", "--noEmit"), ("vitest", "run"))]
    return next((code for code in codes if code), 0)


def main(*arguments: str) -> int:
    """Check the pages if they have changed since all checks passed, or with `--all`, and return an exit code."""
    parser = argparse.ArgumentParser(prog="pages.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="run all checks, even if neither sources nor bundle changed")
    everything = parser.parse_args(arguments).all
    now = digest()
    is_recorded = CHECKED.exists() and CHECKED.read_text().strip() == now
    if is_recorded and not everything:
        print(f"All checks passed with these pages, see {CHECKED.relative_to(ROOT)}. '--all' repeats them.", flush=True)
        return 0
    if reason := missing_node():
        print(f"Skipped: lint, types, tests and bundle of the pages in ui/, because {reason}.", flush=True)
        return 0
    if code := check():
        return code
    if is_recorded:
        return 0
    CHECKED.write_text(f"{now}\n")
    print(f"All checks of the pages passed. Commit {CHECKED.relative_to(ROOT)}, which records it.", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
