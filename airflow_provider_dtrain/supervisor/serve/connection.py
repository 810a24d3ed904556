"""One TLS connection with frames, on the event loop of a node."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import Callable, Protocol

from .frames import Decoder, Frame, FrameError
from .tls import TlsSession

_READ_BYTES = 256 << 10
#: Bytes queued for a connection above which commands of this node are not read, and below which they are read again.
HIGH_WATER, LOW_WATER = 2 << 20, 512 << 10


class Owner(Protocol):
    """Receiver of the events of connections."""

    def ready(self, connection: Connection) -> None:
        """Handle the end of the handshake: the other side has the key of the job."""

    def frame(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame.

        :raises FrameError: the connection is closed
        """

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle the end of the connection."""


class Connection:
    """Socket, TLS session and queue of one connection.

    :param sock: connected socket, which this object closes
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, tls: TlsSession, owner: Owner) -> None:
        sock.setblocking(False)
        self._loop, self._sock, self._tls, self._owner = loop, sock, tls, owner
        self._decoder = Decoder()
        self._queue: deque[memoryview] = deque()
        self._drained: list[Callable[[], None]] = []
        self._is_writing = False
        self.queued_bytes = 0
        self.is_closed = False
        #: Time of the loop at which the connection began, and at which bytes arrived last.
        self.began_s = self.received_s = loop.time()
        loop.add_reader(sock, self._readable)
        # A client sends the first bytes.
        self._take(b"")

    def send(self, frame: Frame) -> None:
        """Queue a frame."""
        if not self.is_closed:
            self._tls.write(frame.encode())
            self._push()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once when the queue is short again, or the connection is closed."""
        self._drained.append(callback)

    def close(self, reason: str) -> None:
        """Close the connection. Repeatable."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._queue.clear()
        self.queued_bytes = 0
        self._owner.closed(self, reason)
        self._notify_drained()

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(str(error))
            return
        self.received_s = self._loop.time()
        if data:
            self._take(data)
        else:
            self.close("the other side closed the connection")

    def _take(self, data: bytes) -> None:
        was_ready = self._tls.is_ready
        try:
            content = self._tls.feed(data)
            self._push()
            if self._tls.is_ready and not was_ready:
                self._owner.ready(self)
            for frame in self._decoder.frames(content):
                if self.is_closed:
                    return
                self._owner.frame(self, frame)
        except (ssl.SSLError, FrameError) as error:
            # The alert tells the other side about its certificate.
            self._push()
            self.close(str(error))
            return
        if self._tls.is_ended:
            self.close("the other side ended the session")

    def _push(self) -> None:
        """Move the bytes of the session to the queue, and send what the socket takes."""
        if (data := self._tls.output()) and not self.is_closed:
            self._queue.append(memoryview(data))
            self.queued_bytes += len(data)
            if not self._is_writing:
                self._writable()

    def _writable(self) -> None:
        try:
            while self._queue:
                sent = self._sock.send(self._queue[0])
                self.queued_bytes -= sent
                if sent == len(self._queue[0]):
                    self._queue.popleft()
                else:
                    self._queue[0] = self._queue[0][sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # The caller may be in the middle of its work with this connection.
            self._loop.call_soon(self.close, str(error))
            return
        if bool(self._queue) != self._is_writing:
            self._is_writing = bool(self._queue)
            if self._is_writing:
                self._loop.add_writer(self._sock, self._writable)
            else:
                self._loop.remove_writer(self._sock)
        if self.queued_bytes <= LOW_WATER:
            self._notify_drained()

    def _notify_drained(self) -> None:
        callbacks, self._drained = self._drained, []
        for callback in callbacks:
            self._loop.call_soon(callback)
