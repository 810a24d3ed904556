"""A proxy in front of a server that cuts connections after some bytes, and refuses some."""

from __future__ import annotations

import random
import socket
import threading

from tests.support.tcp_proxy import TcpProxy, copy, end, received


class CuttingProxy(TcpProxy):
    """A proxy that cuts connections.

    :param port: of the server on this machine
    :param seed: decides which connections are cut, and after how many bytes of answers
    :param most: most bytes of a connection that is cut
    """

    def __init__(self, port: int, *, seed: int, most: int) -> None:
        super().__init__(port)
        self.most = most
        self.random = random.Random(seed)
        self.cuts = 0

    def serve(self, client: socket.socket) -> None:
        left = self.random.randrange(self.most)
        with client, socket.create_connection(("127.0.0.1", self.server)) as server:
            threading.Thread(target=copy, args=(client, server), daemon=True).start()
            while data := received(server):
                client.sendall(data[:left])
                left -= len(data)
                if left <= 0:
                    self.cuts += 1
                    break
            for one in (client, server):
                end(one)
