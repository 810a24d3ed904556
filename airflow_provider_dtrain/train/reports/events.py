"""Events file of one rank, which the control side reads."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import LimitError

log = logging.getLogger(__name__)

#: Longest line, with its newline, because hosts send at most this much of it.
LINE_LIMIT_BYTES = 1 << 20
#: Deepest nesting of an event, the event itself included.
MAX_DEPTH = 16
#: Size of an events file above which measurements are dropped. Events that a trial's end needs are always written.
FILE_LIMIT_BYTES = 256 << 20
_LEFT_OUT = frozenset({"report", "builtin", "timings", "step_weights"})
#: An unfinished or last line longer than this is ignored when a file is reopened.
TAIL_BYTES = 1 << 20

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_event(seq: int, at: float, kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return one line: checksum of the JSON text, a space, the JSON text.

    :param seq: number of the line in its file, from 1
    :param at: unix time, seconds
    :raises LimitError: the line is longer or deeper than the control side accepts
    """
    body = _encode({"seq": seq, "at": round(at, 6), "kind": kind, **fields}).encode()
    line = b"%08x %s\n" % (zlib.crc32(body), body)
    if len(line) > LINE_LIMIT_BYTES:
        raise LimitError(
            f"An event '{kind}' must have at most {LINE_LIMIT_BYTES:,} bytes as JSON, got {len(line):,}. Write "
            "large values to a file and report its path."
        )
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and depth_of(fields) > MAX_DEPTH:
        raise LimitError(f"An event '{kind}' must be nested at most {MAX_DEPTH - 1} levels deep.")
    return line


def depth_of(value: Any) -> int:
    """Return the number of lists and dicts around the deepest value."""
    depth = 0
    level = [value]
    while level := [one for one in level if isinstance(one, (Mapping, list, tuple))]:
        depth += 1
        level = [item for one in level for item in (one.values() if isinstance(one, Mapping) else one)]
    return depth


class EventWriter:
    """The only writer of an events file. Without a file, it drops all events.

    :param path: ``DTRAIN_EVENTS``; None off-cluster
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seq = 0
        self._fd = -1
        self._size = 0
        self._has_reported_full = False
        if path is not None:
            self._open(path)

    def write(self, kind: str, fields: Mapping[str, Any], *, sync: bool = False) -> None:
        """Append one event.

        :param sync: return only when the event is on disk
        """
        self.write_all([(time.time(), kind, fields)], sync=sync)

    def write_all(self, events: Iterable[tuple[float, str, Mapping[str, Any]]], *, sync: bool = False) -> None:
        """Append events (unix time, kind, fields) with one system call.

        :raises LimitError: an event is too long or too deep; then no event is written
        """
        if self._fd < 0:
            return
        with self._lock:
            lines: list[bytes] = []
            for at, kind, fields in events:
                if kind not in _LEFT_OUT or self._has_room():
                    lines.append(encode_event(self._seq + len(lines) + 1, at, kind, fields))
            data = b"".join(lines)
            _write(self._fd, data)
            self._seq += len(lines)
            self._size += len(data)
            if sync:
                os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. Later events are dropped."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _has_room(self) -> bool:
        if self._size < FILE_LIMIT_BYTES:
            return True
        if not self._has_reported_full:
            self._has_reported_full = True
            log.warning(
                "The events file of this rank has %d bytes, and the limit is %d: later training metrics and timings "
                "are dropped. Report less often.",
                self._size,
                FILE_LIMIT_BYTES,
            )
        return False

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = self._size = os.fstat(self._fd).st_size
        if size:
            tail = os.pread(self._fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
            self._seq = _last_seq(tail)
            if not tail.endswith(b"\n"):
                # End a dead writer's torn line here, so that it does not spoil the next one.
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
