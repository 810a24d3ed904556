"""Programs for hosts: the supervisor, and scripts that take its place."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from airflow_provider_dtrain.hosts.payload import Payload, supervisor


@functools.cache
def unpacked_supervisor() -> Path:
    """Return a folder with the supervisor that any account can run, removed when this process ends."""
    root = Path(tempfile.mkdtemp(prefix="dtrain-supervisor-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    root.chmod(0o755)
    return unpack_supervisor(root)


def unpack_supervisor(parent: Path) -> Path:
    """Unpack the supervisor below a folder as an installation does, and return its own folder."""
    folder = parent / "supervisor" / supervisor().digest
    with tarfile.open(fileobj=io.BytesIO(supervisor().content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def program(main: bytes, **others: bytes) -> Payload:
    """Return the archive of a program that takes the place of the supervisor, with further modules in ``part/``."""
    files = {"__main__.py": main, **{f"part/{name}.py": content for name, content in others.items()}}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return Payload(digest=hashlib.sha256(plain.getvalue()).hexdigest(), content=plain.getvalue())
