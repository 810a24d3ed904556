"""Links the PyTorch of another interpreter into a virtual environment, without copying it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Runs in the other interpreter: prints its version, and the top-level files of torch and of its dependencies.
LOOK = r"""
import json, re, sys
from importlib import metadata
found, todo = {}, ["torch"]
while todo:
    name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
    try:
        one = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    if name in found:
        continue
    tops = {item.parts[0] for item in one.files or () if item.parts[0] not in ("..", "__pycache__")}
    found[name] = sorted(str(one.locate_file(top)) for top in tops)
    wanted = [line for line in one.requires or () if "extra ==" not in line]
    todo += [re.match(r"[A-Za-z0-9._-]+", line).group() for line in wanted]
version = metadata.version("torch") if "torch" in found else None
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({"python": sys.version_info[:2], "base": base, "torch": version,
                  "paths": [path for paths in found.values() for path in paths]}))
"""


class BorrowError(Exception):
    """The other interpreter's PyTorch cannot be used. The message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """A PyTorch in another interpreter's packages."""

    version: str
    #: The interpreter below the other environment: compiled modules fit only the same version.
    base_python: str
    #: Folders and files that make up torch and its dependencies.
    paths: tuple[str, ...]


def look(interpreter: Path) -> Torch:
    """Return the PyTorch of an interpreter.

    :param interpreter: path of a Python program, or of a virtual environment
    :raises BorrowError: the interpreter has no PyTorch, or its Python version is not supported
    """
    program = interpreter / "bin" / "python" if interpreter.is_dir() else interpreter
    try:
        done = subprocess.run([program, "-I", "-c", LOOK], capture_output=True, text=True, timeout=120, check=False)
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BorrowError(f"--torch-from must name a Python that starts, got {interpreter} ({error}).") from error
    if facts["torch"] is None:
        raise BorrowError(
            f"--torch-from {interpreter}: this interpreter has no torch. Omit the option to install torch."
        )
    version = tuple(facts["python"])
    if not (3, 11) <= version <= (3, 13):
        raise BorrowError(
            f"--torch-from must name Python 3.11, 3.12 or 3.13, got {interpreter} ({version[0]}.{version[1]}), "
            "because the demo's environment must have the same version."
        )
    return Torch(version=facts["torch"], base_python=facts["base"], paths=tuple(facts["paths"]))


def link(torch: Torch, python: Path) -> None:
    """Make the other interpreter's torch importable by ``python``. Packages installed there take precedence.

    :raises BorrowError: ``python`` cannot import the linked torch
    """
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    folder = python.parent.parent / "borrowed"
    folder.mkdir()
    for path in map(Path, torch.paths):
        if path.exists() and not (site / path.name).exists() and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    (site / "borrowed.pth").write_text(f"{folder}\n")
    done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise BorrowError(f"torch {torch.version} of --torch-from cannot be imported: {last[0]}. Omit --torch-from.")
