"""A proxy in front of a server that counts bytes, and sends answers slowly on request."""

from __future__ import annotations

import socket
import threading
import time

from tests.support.tcp_proxy import TcpProxy, received

#: Bytes that are passed on at once, so that a slow line is slow within an answer.
PIECE = 512


class SlowProxy(TcpProxy):
    """A proxy that counts bytes.

    :param port: of the server on this machine
    :param bytes_per_s: rate of answers; None = as fast as they come
    :param delay_s: time by which each part of a request is delayed
    """

    def __init__(self, port: int, *, bytes_per_s: float | None = None, delay_s: float = 0.0) -> None:
        super().__init__(port)
        self.bytes_per_s, self.delay_s = bytes_per_s, delay_s
        #: Bytes of requests and of answers so far.
        self.asked = self.answered = 0

    def serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.server)) as server:
            threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
            self._answer(server, client)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        while data := received(client, PIECE):
            time.sleep(self.delay_s)
            self.asked += len(data)
            try:
                server.sendall(data)
            except OSError:
                return

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        while data := received(server, PIECE):
            self.answered += len(data)
            if self.bytes_per_s is not None:
                time.sleep(len(data) / self.bytes_per_s)
            try:
                client.sendall(data)
            except OSError:
                return
