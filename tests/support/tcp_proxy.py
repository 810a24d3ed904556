"""A proxy in front of a server on this machine, whose kinds treat connections badly in some way."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class TcpProxy:
    """A TCP proxy on a free port.

    :param port: of the server on this machine
    """

    def __init__(self, port: int) -> None:
        self.server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def serve(self, client: socket.socket) -> None:
        """Serve one connection, in a thread of its own."""
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._listener)
        self._listener.close()
        self._thread.join(timeout=10)


def received(source: socket.socket, most: int = 4096) -> bytes:
    """Return the next bytes of a connection, none at its end."""
    try:
        return source.recv(most)
    except OSError:
        return b""


def copy(source: socket.socket, target: socket.socket) -> None:
    """Send what a connection receives over another one, until either ends."""
    while data := received(source):
        try:
            target.sendall(data)
        except OSError:
            return


def end(one: socket.socket) -> None:
    """End both directions of a connection."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
