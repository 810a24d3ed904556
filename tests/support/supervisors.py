"""Programs that take the place of the supervisor."""

from __future__ import annotations

import hashlib
import io
import tarfile

from airflow_provider_dtrain.hosts.payload import Payload


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
