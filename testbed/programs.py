"""The programs that hosts run: the supervisor and the training library, unpacked once per process, with bytecode."""

from __future__ import annotations

import atexit
import compileall
import functools
import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from airflow_provider_dtrain.hosts.payload import Payload, library, supervisor


def unpack(archive: Payload, parent: Path) -> Path:
    """Unpack an archive below a folder as a host does, and return its own folder."""
    folder = parent / archive.digest
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        tar.extractall(folder)
    return folder


@functools.cache
def unpacked_supervisor() -> Path:
    """Return a folder with the supervisor that any account can run, removed when this process ends."""
    return unpack(supervisor(), _new_folder() / "supervisor")


def install_programs(home: Path) -> None:
    """Install supervisor and library with their bytecode below a home folder, unless they are there.

    All homes share their files: a test that damages a program unpacks one of its own.

    The first start on a new host installs and compiles them, which costs more CPU than the rest of a short run.
    """
    for folder in _compiled():
        target = home / ".dtrain" / folder.parent.name / folder.name
        if not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Hundreds of tests install some 400 files each. A link costs a fifth of a copy.
            shutil.copytree(folder, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it to another file system with its time stamp, for which its bytecode is valid."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@functools.cache
def _compiled() -> tuple[Path, Path]:
    root = _new_folder()
    folders = unpack(supervisor(), root / "supervisor"), unpack(library(), root / "libraries")
    for folder in folders:
        compileall.compile_dir(folder, quiet=1)
    return folders


def _new_folder() -> Path:
    root = Path(tempfile.mkdtemp(prefix="dtrain-programs-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    root.chmod(0o755)
    return root
