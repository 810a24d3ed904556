"""Checks between hosts before a start: ports that greet, connections to them, and files of shared folders."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import threading
from collections.abc import Callable

from ..fields import Fields
from ..files.layout import Layout
from ..limits import MAX_THREADS
from ..machine.network import candidates
from ..machine.sockets import addresses_to_listen_on, connect_all, open_listeners
from ..names import WORD, Json
from ..refusal import Refused
from .interpreters import Interpreters
from .probe import preflight
from .transfers import receive, transfer, transfer_request


class NetworkChecks:
    """Network checks of one channel, each named by its nonce.

    :param handle: lets a function run whenever a descriptor can be read
    :param forget: ends that
    """

    def __init__(
        self, layout: Layout, handle: Callable[[int, Callable[[], None]], None], forget: Callable[[int], None]
    ) -> None:
        self.layout = layout
        self._handle = handle
        self._forget = forget
        self.listeners: dict[str, list[socket.socket]] = {}
        #: Nonce -> key of the transfers that its port accepts.
        self.keys: dict[str, str] = {}
        self.shared_checks: dict[str, set[str]] = {}
        self.interpreters = Interpreters()

    def listen(self, request_id: str | None, fields: Fields) -> tuple[Json, bytes]:
        """Open a port that greets each process that connects, and with a key receives transfers."""
        nonce = fields.text("nonce", WORD)
        key = fields.text("key", WORD, default=None)
        port_range = fields.port_range("port_range")
        where = addresses_to_listen_on(fields.text("interface", limit=64, default=None))
        if nonce not in self.listeners:
            if len(self.listeners) >= 64:
                raise Refused("busy", "64 network checks are open on this channel, which is the limit. Close one.")
            self.listeners[nonce] = open_listeners(port_range, where)
            if key is not None:
                self.keys[nonce] = key
            for sock in self.listeners[nonce]:
                self._handle(sock.fileno(), functools.partial(self._greet, sock, nonce))
        port = self.listeners[nonce][0].getsockname()[1] if self.listeners[nonce] else 0
        return {"port": port, "addresses": candidates()}, b""

    def _greet(self, sock: socket.socket, nonce: str) -> None:
        with contextlib.suppress(OSError):
            connection, _ = sock.accept()
            key = self.keys.get(nonce)
            if key is not None and threading.active_count() < MAX_THREADS:
                threading.Thread(target=self._receive, args=(connection, nonce, key), daemon=True).start()
                return
            with connection:
                connection.setblocking(False)
                connection.send(nonce.encode() + b"\n")

    def _receive(self, connection: socket.socket, nonce: str, key: str) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(nonce.encode() + b"\n")
            receive(connection, key)

    def transfer(self, fields: Fields) -> Callable[[], Json]:
        """Return the work that measures the connection to another host."""
        request = transfer_request(fields)
        return lambda: transfer(request)

    def close(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        """End a check, and remove its files of shared folders."""
        nonce = fields.text("nonce", WORD)
        self.keys.pop(nonce, None)
        for sock in self.listeners.pop(nonce, ()):
            self._forget(sock.fileno())
            sock.close()
        for path in self.shared_checks.pop(nonce, ()):
            shutil.rmtree(os.path.join(os.path.expanduser(path), f".dtrain-check-{nonce}"), ignore_errors=True)
        return {}, b""

    def connect(self, fields: Fields) -> Callable[[], Json]:
        """Return the work that connects to ports of other hosts."""
        nonce = fields.text("nonce", WORD)
        timeout_s = fields.number("timeout_s", 0.01, 60, default=5)
        targets = []
        for index, item in enumerate(fields.items("targets", limit=1024)):
            target = Fields(item, f"targets.{index}")
            targets.append((target.text("address", WORD), target.integer("port", 1, 65535)))
        return lambda: {"results": connect_all(nonce, targets, timeout_s)}

    def preflight(self, fields: Fields) -> Callable[[], Json]:
        """Return the work that checks this host before a start."""
        paths = fields.texts("shared_paths", limit=64, default=[])
        if paths:
            self.shared_checks.setdefault(fields.text("nonce", WORD), set()).update(paths)
        return lambda: preflight(self.layout, self.interpreters, fields)
