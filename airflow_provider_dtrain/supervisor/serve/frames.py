"""Frames between followers and the nodes of a job. Both sides use this module."""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

PROTOCOL = 1
#: Most bytes of one stream that its receiver has not consumed. 20 MB/s need it at a round trip of 50 ms.
WINDOW = 1 << 20
#: Most bytes of a frame with data: a small frame of another stream waits for at most that.
DATA_BYTES = 64 << 10
#: Most bytes of any frame. The arguments of a command are below it.
FRAME_BYTES = 1 << 20
#: Most warnings that later followers get.
WARNINGS_LIMIT = 1000
#: Period of a node's pings, and silence after which a connection counts as dead.
PING_S, DEAD_S = 10.0, 45.0


class Kind(enum.IntEnum):
    """Kind of a frame."""

    #: First frame of a follower, and of the supervisor of another node.
    FOLLOW = 1
    JOIN = 2
    #: Answer of the first node to both.
    HELLO = 3
    #: Start of a command, and the answers.
    OPEN = 4
    OPENED = 5
    FAILED = 6
    #: Bytes of a command, and the ends of its input and output.
    STDIN = 7
    STDIN_EOF = 8
    STDOUT = 9
    STDOUT_EOF = 10
    STDERR = 11
    #: Bytes that the receiver of a stream has consumed.
    CREDIT = 12
    EXIT = 13
    #: The follower reads and writes nothing further.
    CLOSE = 14
    #: The follower with this number has gone.
    GONE = 15
    #: Lifetime of the job.
    POLICY = 16
    END = 17
    #: Events of nodes.
    WARNING = 18
    JOINED = 19
    LOST = 20
    PING = 21
    PONG = 22


#: Frames of a command to its node, and from it.
TO_COMMAND = frozenset({Kind.OPEN, Kind.STDIN, Kind.STDIN_EOF, Kind.CREDIT, Kind.CLOSE})
FROM_COMMAND = frozenset({Kind.OPENED, Kind.FAILED, Kind.STDOUT, Kind.STDOUT_EOF, Kind.STDERR, Kind.CREDIT, Kind.EXIT})
_HEADER = struct.Struct(">BHIII")
_CREDIT = struct.Struct(">BI")
_EXIT = struct.Struct(">i")


class FrameError(ValueError):
    """The other side sent something that the protocol does not define."""


class Frame(NamedTuple):
    """One frame.

    :param node: number of the node at which the command runs
    :param peer: number that the first node gave to a follower; 0 between the follower and the first node
    :param stream: number that the follower gave to the command
    """

    kind: Kind
    node: int = 0
    peer: int = 0
    stream: int = 0
    body: bytes = b""

    def encode(self) -> bytes:
        """Return the frame as bytes."""
        return _HEADER.pack(self.kind, self.node, self.peer, self.stream, len(self.body)) + self.body

    def document(self) -> dict[str, Any]:
        """Return the JSON object of the body.

        :raises FrameError: it has none
        """
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"the frame {self.kind.name} has no JSON: {error}") from error
        if not isinstance(found, dict):
            raise FrameError(f"the frame {self.kind.name} must have a JSON object")
        return found

    def credit(self) -> tuple[int, int]:
        """Return the kind of the consumed stream and the number of bytes."""
        return self._unpacked(_CREDIT)  # type: ignore[return-value]

    def exit_code(self) -> int:
        """Return the exit status of a command, negative for a signal."""
        return int(self._unpacked(_EXIT)[0])

    def _unpacked(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            return form.unpack(self.body)
        except struct.error as error:
            raise FrameError(f"the frame {self.kind.name} has a wrong length: {len(self.body)} bytes") from error


def with_document(kind: Kind, document: dict[str, Any], *, node: int = 0, peer: int = 0, stream: int = 0) -> Frame:
    """Return a frame with a JSON object."""
    return Frame(kind, node, peer, stream, json.dumps(document).encode())


def credit_body(kind: Kind, count: int) -> bytes:
    """Return the body of a CREDIT frame."""
    return _CREDIT.pack(kind, count)


def exit_body(code: int) -> bytes:
    """Return the body of an EXIT frame."""
    return _EXIT.pack(code)


class Decoder:
    """Frames from the bytes of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes.

        :raises FrameError: the frame is too long, or of an unknown kind
        """
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= _HEADER.size:
                number, node, peer, stream, length = _HEADER.unpack_from(self._buffer, position)
                if length > FRAME_BYTES:
                    raise FrameError(f"a frame has {length:,} bytes, the most are {FRAME_BYTES:,}")
                start = position + _HEADER.size
                if len(self._buffer) < start + length:
                    return
                position = start + length
                try:
                    kind = Kind(number)
                except ValueError:
                    raise FrameError(f"a frame has the unknown kind {number}") from None
                yield Frame(kind, node, peer, stream, bytes(self._buffer[start:position]))
        finally:
            del self._buffer[:position]
