"""Frames that wait for the control side."""

from __future__ import annotations

import json
import os
from collections import deque

from ..names import Json


class Outbox:
    """Queue of bytes to be written to the control side."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting: deque[memoryview] = deque()
        self.size = 0
        self.broken = False
        os.set_blocking(fd, False)

    def frame(self, document: Json, data: bytes = b"") -> None:
        """Queue a line and the raw bytes that belong to it."""
        if self.broken:
            return
        for piece in (json.dumps(document, separators=(",", ":")).encode() + b"\n", data):
            if piece:
                self.waiting.append(memoryview(piece))
                self.size += len(piece)

    def flush(self) -> None:
        """Write as much as the other side accepts now."""
        while self.waiting and not self.broken:
            try:
                done = (
                    os.writev(self.fd, list(self.waiting)[:64])
                    if len(self.waiting) > 1
                    else os.write(self.fd, self.waiting[0])
                )
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self.waiting.clear()
                self.size = 0
                return
            self.size -= done
            while done:
                first = self.waiting.popleft()
                if done < len(first):
                    self.waiting.appendleft(first[done:])
                    break
                done -= len(first)


class ProtocolError(Exception):
    """Input that violates the protocol. It ends the channel."""
