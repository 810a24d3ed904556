"""Ports that are reserved for a run, and connections between hosts."""

from __future__ import annotations

import errno
import random
import socket
import struct
import threading
import time
from typing import Any

from ..names import Json
from ..refusal import Refused
from .network import SCOPE_HOST, addresses, candidates, interface_of

#: Most descriptors in one message: standard streams or a log, and the locks of slots.
_MOST_FDS = 250


def send_message(connection: socket.socket, body: bytes, fds: list[int]) -> None:
    """Send a message with descriptors to a process of this machine."""
    socket.send_fds(connection, [struct.pack("=Q", len(body))], fds)
    connection.sendall(body)


def receive_message(connection: socket.socket) -> tuple[bytes | None, list[int]]:
    """Return the next message and its descriptors, None when the other side is gone, or goes during the message."""
    data, fds, _, _ = socket.recv_fds(connection, 8, _MOST_FDS)
    while 0 < len(data) < 8:
        more = connection.recv(8 - len(data))
        if not more:
            return None, list(fds)
        data += more
    if not data:
        return None, list(fds)
    length = struct.unpack("=Q", data)[0]
    body = bytearray()
    while len(body) < length:
        chunk = connection.recv(min(1 << 20, length - len(body)))
        if not chunk:
            return None, list(fds)
        body += chunk
    return bytes(body), list(fds)


def ports_of(port_range: Any) -> list[int]:
    """Return the ports to try, in random order. Port 0 lets the kernel choose."""
    if not port_range:
        return [0]
    ports = list(range(port_range[0], port_range[1] + 1))
    random.shuffle(ports)
    return ports


def bind_everywhere(port: int) -> socket.socket:
    """Return a socket that is bound to a port on all addresses, IPv4 and, if available, IPv6."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        sock = None
    if sock is not None:
        try:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", port))
            return sock
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind(("0.0.0.0", port))  # noqa: S104 - the caller determines which address serves
    except OSError:
        sock.close()
        raise
    return sock


def open_listeners(port_range: Any, where: list[str]) -> list[socket.socket]:
    """Return one listening socket per address, all on the same port.

    :param where: address literals of this host
    :raises Refused: no port of the range is free on all addresses
    """
    # Without a range the kernel chooses a port on the first address. It may be in use on another address.
    for port in ports_of(port_range) if port_range else [0] * 16:
        listeners: list[socket.socket] = []
        try:
            for address in where:
                listeners.append(listen_on(address, listeners[0].getsockname()[1] if listeners else port))
        except OSError:
            for sock in listeners:
                sock.close()
            continue
        return listeners
    raise Refused("no_port", f"No free port in {port_range}. Widen port_range or free its ports.")


def listen_on(address: str, port: int) -> socket.socket:
    """Return a socket that listens on one address of this host."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((address, port))
        sock.listen(256)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def addresses_to_listen_on(interface: str | None) -> list[str]:
    """Return the addresses for a network check: those of one interface, or all that other hosts may use."""
    if interface is None:
        return [found["address"] for found in candidates()]
    # A link-local IPv6 address is meaningless without its interface.
    return [found.address for found in addresses() if found.link.name == interface and found.scope in (0, SCOPE_HOST)]


def connect_all(nonce: str, targets: list[tuple[str, int]], timeout_s: float) -> list[Json]:
    """Connect to all targets at once. Return the result of each, in their order."""
    results: list[Json] = [
        {
            "address": address,
            "port": port,
            "ok": False,
            "source_address": None,
            "interface": None,
            "elapsed_s": timeout_s,
            "error": "timed out",
        }
        for address, port in targets
    ]

    def one(result: Json) -> None:
        result.update(connect_one(nonce, result["address"], result["port"], timeout_s))

    threads = [threading.Thread(target=one, args=(result,), daemon=True) for result in results]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s + 1.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [dict(result) for result in results]


def connect_one(nonce: str, address: str, port: int, timeout_s: float) -> Json:
    """Connect once. Return whether the other side sent the nonce, and the address and interface used."""
    begun = time.monotonic()
    found: Json = {"ok": False, "error": None}
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as sock:
            found["source_address"] = sock.getsockname()[0].replace("::ffff:", "")
            received = b""
            while len(received) <= len(nonce) and (chunk := sock.recv(256)):
                received += chunk
        found["ok"] = received == nonce.encode() + b"\n"
        if not found["ok"]:
            found["error"] = "another program answers there"
        found["interface"] = interface_of(found["source_address"])
    except socket.timeout:
        found["error"] = "timed out"
    except OSError as error:
        found["error"] = error.strerror or str(error)
    found["elapsed_s"] = round(time.monotonic() - begun, 6)
    return found
