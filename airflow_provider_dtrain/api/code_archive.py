"""Code that a client sends: an archive that is checked before the store keeps it."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from pathlib import PurePosixPath

from airflow_provider_dtrain.api.admission import BodyLimit
from airflow_provider_dtrain.errors import PayloadError
from airflow_provider_dtrain.hosts.payload import LIMIT_BYTES

#: Most bytes of an archive. Files that cannot be compressed need a little more than their size.
ARCHIVE_MOST = LIMIT_BYTES + (4 << 20)
ARCHIVE = BodyLimit(
    most_bytes=ARCHIVE_MOST,
    subject="The archive",
    hint="Name data and checkpoints in .dtrainignore, and read them from storage.",
)
#: Archives that a process receives at one time, and of these those of one user. Each needs up to twice the limit of
#: memory.
UPLOADS_MOST, UPLOADS_OF_USER = 4, 1
#: Most files, folders and links of an archive.
MEMBERS_MOST = 20_000
PIECE_BYTES = 64 << 10


def digest_of(content: bytes) -> str:
    """Return the digest of an archive that hosts would unpack.

    :raises PayloadError: it is no tar.gz, is larger than the limit when it is unpacked, or leads out of its folder
    """
    try:
        _check(content)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise PayloadError(f"The archive is not a tar.gz that dtrain has packed: {error}") from error
    return hashlib.sha256(content).hexdigest()


def _check(content: bytes) -> None:
    # A small archive may expand to any size, so the limit holds for what is read.
    plain = _Unpacked(content)
    total = 0
    with tarfile.open(fileobj=plain, mode="r|") as tar:
        for number, member in enumerate(tar):
            total += member.size
            if number >= MEMBERS_MOST or total > LIMIT_BYTES:
                raise PayloadError(
                    f"The archive has more than {MEMBERS_MOST} entries or {LIMIT_BYTES >> 20} MiB, the most that hosts "
                    "get. Name data and checkpoints in .dtrainignore."
                )
            _check_member(member)
    while plain.read(PIECE_BYTES):
        pass
    if not plain.is_whole:
        raise PayloadError("The archive is not complete, or something follows its end.")


class _Unpacked(io.RawIOBase):
    """The tar in a gzip archive, unpacked while it is read, so that its content is never in memory as a whole."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = memoryview(content), 0
        self._gzip = zlib.decompressobj(31)
        self._left = LIMIT_BYTES + MEMBERS_MOST * 2 * tarfile.BLOCKSIZE

    def read(self, size: int = -1) -> bytes:
        """Return up to a number of bytes, fewer only at the end.

        :raises PayloadError: the archive holds more than hosts get
        """
        found = bytearray()
        while len(found) < size and not self._gzip.eof:
            packed = self._gzip.unconsumed_tail or self._next()
            piece = self._gzip.decompress(packed, size - len(found))
            if not packed and not piece:
                break
            found += piece
        self._left -= len(found)
        if self._left < 0:
            raise PayloadError(
                f"The archive holds more than {LIMIT_BYTES >> 20} MiB. Name data and checkpoints in .dtrainignore."
            )
        return bytes(found)

    def _next(self) -> bytes:
        found = bytes(self._content[self._at : self._at + PIECE_BYTES])
        self._at += len(found)
        return found

    @property
    def is_whole(self) -> bool:
        """True if the archive has been read up to its end, and nothing follows."""
        return self._gzip.eof and not self._gzip.unused_data and self._at == len(self._content)


def _check_member(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir() or member.issym()):
        raise PayloadError(f"The archive has an entry that is sent to no host: {member.name[:200]!r}.")
    if member.issym() and _leaves(path.parent, PurePosixPath(member.linkname)):
        raise PayloadError(f"The archive has a link out of its folder: {member.name[:200]!r}.")


def _leaves(folder: PurePosixPath, target: PurePosixPath) -> bool:
    depth = len(folder.parts)
    for part in target.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return target.is_absolute()
