"""Writes scripts/constraints.txt: the versions of all dependencies in the active environment.

Run it with the interpreter of an environment in which the tests pass::

    python scripts/tools/lock.py

PyTorch and the dependencies of PyTorch alone are left out: the setup scripts install PyTorch in a separate step, so
that a build for another accelerator, or another interpreter's copy, can be used instead.
"""

from __future__ import annotations

import argparse
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "scripts" / "constraints.txt"
EXTRAS = ("dev", "examples", "postgres", "large-batch")
LEFT_OUT = {"torch", "airflow-provider-dtrain"}


def roots() -> list[Requirement]:
    """Return the requirements in pyproject.toml, including the extras that the scripts install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def closure(requirements: list[Requirement]) -> dict[str, str]:
    """Return name -> installed version of the requirements and their transitive dependencies."""
    found: dict[str, str] = {}
    todo = [(canonicalize_name(item.name), frozenset(item.extras)) for item in requirements]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen or name in LEFT_OUT:
            continue
        seen.add((name, extras))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        todo += below(distribution, extras)
    return found


def below(distribution: metadata.Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """Return the direct dependencies of a distribution on this machine, with the given extras."""
    needed = []
    for line in distribution.requires or ():
        item = Requirement(line)
        if item.marker is None or any(item.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needed.append((canonicalize_name(item.name), frozenset(item.extras)))
    return needed


def main() -> None:
    """Write the file."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    versions = closure(roots())
    head = (
        "# Versions with which the tests passed. Written by scripts/tools/lock.py; PyTorch is installed separately.\n"
    )
    TARGET.write_text(head + "".join(sorted(f"{name}=={version}\n" for name, version in versions.items())))
    print(f"{TARGET.relative_to(ROOT)}: {len(versions)} packages")


if __name__ == "__main__":
    main()
