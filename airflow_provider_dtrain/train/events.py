"""The events file of one rank: what the control side learns from it."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: An unfinished or last line longer than this is not looked at when a file is taken up again.
TAIL_BYTES = 1 << 20

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_event(seq: int, at: float, kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return one line: checksum of the JSON text, a blank, the JSON text.

    :param seq: number of the line in its file, from 1
    :param at: unix time, seconds
    """
    body = _encode({"seq": seq, "at": round(at, 6), "kind": kind, **fields}).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


class EventWriter:
    """The one writer of an events file; without a file it drops everything.

    :param path: ``DTRAIN_EVENTS``; None off-cluster
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seq = 0
        self._fd = -1
        if path is not None:
            self._open(path)

    def write(self, kind: str, fields: Mapping[str, Any], *, sync: bool = False) -> None:
        """Append one event.

        :param sync: return only when it is on the disk
        """
        self.write_all([(time.time(), kind, fields)], sync=sync)

    def write_all(self, events: Iterable[tuple[float, str, Mapping[str, Any]]], *, sync: bool = False) -> None:
        """Append events (unix time, kind, fields) with one system call."""
        if self._fd < 0:
            return
        with self._lock:
            lines = []
            for at, kind, fields in events:
                self._seq += 1
                lines.append(encode_event(self._seq, at, kind, fields))
            _write(self._fd, b"".join(lines))
            if sync:
                os.fsync(self._fd)

    def close(self) -> None:
        """Let the file go; later events are dropped."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        if size:
            tail = os.pread(self._fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
            self._seq = _last_seq(tail)
            if not tail.endswith(b"\n"):
                # A dead writer's torn line ends here, so that it does not spoil the next one.
                _write(self._fd, b"\n")


def _last_seq(tail: bytes) -> int:
    for line in reversed(tail.splitlines()):
        checksum, _, body = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(body):
            return int(json.loads(body)["seq"])
    return 0


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
