"""A proxy in front of a server that counts bytes, and sends answers slowly on request."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType


class SlowProxy:
    """A TCP proxy on a free port.

    :param port: of the server on this machine
    :param bytes_per_s: rate of answers; None = as fast as they come
    :param delay_s: time by which each part of a request is delayed
    """

    def __init__(self, port: int, *, bytes_per_s: float | None = None, delay_s: float = 0.0) -> None:
        self.server, self.bytes_per_s, self.delay_s = port, bytes_per_s, delay_s
        #: Bytes of requests and of answers so far.
        self.asked = self.answered = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> SlowProxy:
        self._thread.start()
        return self

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.server))
            threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            time.sleep(self.delay_s)
            self.asked += len(data)
            server.sendall(data)
        server.close()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        while data := _received(server):
            self.answered += len(data)
            if self.bytes_per_s is not None:
                time.sleep(len(data) / self.bytes_per_s)
            try:
                client.sendall(data)
            except OSError:
                break
        client.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=10)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(512)
    except OSError:
        return b""
