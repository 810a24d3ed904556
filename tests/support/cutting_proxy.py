"""A proxy in front of a server that cuts connections after some bytes, and refuses some."""

from __future__ import annotations

import random
import socket
import threading
from types import TracebackType


class CuttingProxy:
    """A TCP proxy on a free port.

    :param port: of the server on this machine
    :param seed: decides which connections are cut, and after how many bytes of answers
    :param most: most bytes of a connection that is cut
    """

    def __init__(self, port: int, *, seed: int, most: int) -> None:
        self.server, self.most = port, most
        self.random = random.Random(seed)
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, self.random.randrange(self.most)), daemon=True).start()

    def _serve(self, client: socket.socket, left: int) -> None:
        with client, socket.create_connection(("127.0.0.1", self.server)) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            while data := _received(server):
                client.sendall(data[:left])
                left -= len(data)
                if left <= 0:
                    self.cuts += 1
                    break
            for one in (client, server):
                _end(one)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._listener)
        self._listener.close()
        self._thread.join(timeout=10)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(4096)
    except OSError:
        return b""


def _copy(source: socket.socket, target: socket.socket) -> None:
    while data := _received(source):
        try:
            target.sendall(data)
        except OSError:
            return


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
