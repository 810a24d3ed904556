"""Files of packed code, by the digests of their contents."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib

#: Most files that are listed. Of code with more, only the digest of all of it is known.
FILES_MOST = 5000
_CHUNK_BYTES = 1 << 20


def code_files(archive: bytes) -> dict[str, str] | None:
    """Return path -> SHA-256 of each file of a tar.gz, None if they are too many or the archive cannot be read.

    ``+x`` behind a digest marks a program, and a link has its target. The caller has limited the size of the archive.
    """
    found: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|gz") as tar:
            for member in tar:
                if member.isdir():
                    continue
                if len(found) == FILES_MOST:
                    return None
                found[path_of(member)] = f"-> {member.linkname}" if member.issym() else _digest(tar, member)
    except (tarfile.TarError, zlib.error, EOFError, OSError):
        return None
    return found


def path_of(member: tarfile.TarInfo) -> str:
    """Return the path of an entry of an archive."""
    return visible_path(member.name)


def visible_path(name: str) -> str:
    """Return a name in an archive. Bytes that are not UTF-8 become escapes, because JSON cannot hold them."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _digest(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    digest = hashlib.sha256()
    content = tar.extractfile(member)
    while content is not None and (chunk := content.read(_CHUNK_BYTES)):
        digest.update(chunk)
    return digest.hexdigest() + ("+x" if member.mode & 0o100 else "")
