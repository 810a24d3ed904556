"""Records of a run, one line with a checksum each."""

from __future__ import annotations

import json
import os
import zlib

from ..fields import number, parse_object
from ..file_access import write_all
from ..names import Json


def encode_event(record: Json) -> bytes:
    """Return the line of an event: checksum, blank, JSON."""
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_event(line: bytes) -> Json | None:
    """Return the event of a line, None if the line is damaged."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    return parse_object(body) if checksum == b"%08x" % zlib.crc32(body) else None


class EventLog:
    """The only writer of a run's ``events.supervisor``. Its process must hold the run's lock."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        content = os.pread(self.fd, 64 << 20, 0)
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            # Partial lines are never sent, so this truncation does not affect any offset.
            os.ftruncate(self.fd, whole)
        records = [record for record in map(decode_event, content[:whole].splitlines()) if record]
        self.seq = max((number(record.get("seq")) for record in records), default=0)
        self.last = records[-1] if records else None
        exits = (one for one in records if one.get("kind") == "exit" and not one.get("sent_signal"))
        self.first_failure = next((one.get("rank") for one in exits if one.get("exit_code")), None)

    def write(self, record: Json) -> None:
        """Append one event, or leave the file unchanged. Ends of ranks and runs are durable when this returns."""
        size = os.fstat(self.fd).st_size
        try:
            write_all(self.fd, encode_event({"seq": self.seq + 1, **record}))
            if record["kind"] in ("exit", "ended"):
                os.fsync(self.fd)
        except OSError:
            os.ftruncate(self.fd, size)
            raise
        self.seq += 1
        self.last = record

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)
