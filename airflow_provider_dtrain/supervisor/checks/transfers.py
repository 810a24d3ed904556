"""Transfers between two hosts that measure bandwidth and latency.

A connection to a port of a network check gets the nonce. The sender answers with the key, which only the control side
knows. Bytes then go back and forth one by one, and at last one way for some time. The receiver measures them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time

from ..fields import Fields, parse_object
from ..limits import TRANSFER_MOST_S, TRANSFER_MOST_STREAMS
from ..names import WORD, Json
from ..refusal import Refused
from .rates import cpu_times, median

#: Round trips of one byte.
ROUNDS = 50
BLOCK = 1 << 20
#: Part of a transfer that does not count: TCP begins slowly, and a throttle lets the first bytes pass.
WARM_UP = 0.3
#: Part of a transfer from which on a thread counts as busy that had a CPU or waited for one.
BUSY = 0.85
_HEADER = struct.Struct("!d")


def receive(connection: socket.socket, key: str) -> None:
    """Serve one connection that has got the nonce: echo single bytes, then count what arrives."""
    connection.settimeout(5.0)
    with contextlib.suppress(OSError, ValueError, struct.error):
        if _exactly(connection, len(key) + 1) != key.encode() + b"\n":
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUNDS):
            connection.sendall(_exactly(connection, 1))
        (duration_s,) = _HEADER.unpack(_exactly(connection, _HEADER.size))
        connection.sendall(json.dumps(_counted(connection, min(duration_s, TRANSFER_MOST_S))).encode() + b"\n")


def _counted(connection: socket.socket, duration_s: float) -> Json:
    """Return the bytes that arrived after the warm-up, when they did, and the seconds of :func:`_waited`."""
    buffer = bytearray(BLOCK)
    begun = last = time.monotonic()
    since, total, before = 0.0, 0, cpu_times()
    while True:
        count = connection.recv_into(buffer)
        now = time.monotonic()
        if not count or now - begun > 3 * duration_s + 5.0:
            break
        if since:
            total, last = total + count, now
        elif now - begun >= WARM_UP * duration_s:
            since = last = now
            before = cpu_times()
    return {"bytes": total, "since_s": since, "until_s": last, "waited_s": _waited(before, last - since)}


def _waited(before: tuple[float, float], passed_s: float) -> float:
    """Return the seconds for which this thread waited for a CPU, 0 if the network made it sleep.

    A host whose CPUs are busy sends and receives less, whatever its network is. A thread that sleeps has time to wait
    for a CPU: its buffers go on.
    """
    had, queued = (now - then for now, then in zip(cpu_times(), before))
    return queued if had + queued >= BUSY * passed_s else 0.0


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise OSError("the other side is gone")
        data += chunk
    return data


def transfer_request(fields: Fields) -> Json:
    """Check the fields of a transfer to another host."""
    return {
        "nonce": fields.text("nonce", WORD),
        "key": fields.text("key", WORD),
        "address": fields.text("address", WORD),
        "port": fields.integer("port", 1, 65535),
        "seconds": fields.number("seconds", 0.01, TRANSFER_MOST_S),
        "streams": fields.integer("streams", 1, TRANSFER_MOST_STREAMS),
    }


def transfer(request: Json) -> Json:
    """Send to another host over some connections at once. Return bytes per second and the time of a round trip.

    :raises Refused: ``no_path``, the other host cannot be reached or does not answer
    """
    results: list[Json] = [{} for _ in range(request["streams"])]
    threads = [threading.Thread(target=_guarded, args=(request, result), daemon=True) for result in results]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 4 * request["seconds"] + 20.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    failed = [str(result.get("error", "it did not end in time")) for result in results if "bytes" not in result]
    if failed:
        raise Refused("no_path", f"{request['address']} port {request['port']}: {failed[0]}")
    return {"bytes_per_s": _rate(results), "round_trip_s": min(result["round_trip_s"] for result in results)}


def _rate(results: list[Json]) -> float:
    """Return the bytes per second of all connections together, by the clock of the receiver."""
    seconds = max(result["until_s"] for result in results) - min(result["since_s"] for result in results)
    if seconds <= 0:
        raise Refused("no_path", "too little arrived to measure it")
    waited_s = sum(result["waited_s"] for result in results) / len(results)
    return float(sum(result["bytes"] for result in results) / (seconds - min(waited_s, 0.95 * seconds)))


def _guarded(request: Json, result: Json) -> None:
    try:
        result.update(_send(request))
    except socket.timeout:
        result["error"] = "timed out"
    except (OSError, ValueError, TypeError, KeyError) as error:
        result["error"] = getattr(error, "strerror", None) or str(error) or type(error).__name__


def _send(request: Json) -> Json:
    with socket.create_connection((request["address"], request["port"]), timeout=5.0) as sock:
        greeting = request["nonce"].encode() + b"\n"
        if _exactly(sock, len(greeting)) != greeting:
            raise OSError("another program answers there")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(request["key"].encode() + b"\n")
        trips = []
        for _ in range(ROUNDS):
            begun = time.monotonic()
            sock.sendall(b"!")
            _exactly(sock, 1)
            trips.append(time.monotonic() - begun)
        sock.sendall(_HEADER.pack(request["seconds"]))
        sock.settimeout(3 * request["seconds"] + 5.0)
        waited = _stream(sock, request["seconds"])
        sock.shutdown(socket.SHUT_WR)
        answer = parse_object(_line(sock)) or {}
        found = {name: float(answer[name]) for name in ("bytes", "since_s", "until_s", "waited_s")}
        if not found["since_s"]:
            raise OSError("too little arrived to measure it")
        found["waited_s"] = max(found["waited_s"], waited * (1 - WARM_UP))
        return {**found, "round_trip_s": median(trips)}


def _stream(sock: socket.socket, seconds: float) -> float:
    """Send for some seconds, and return those of :func:`_waited`."""
    block = bytes(BLOCK)
    begun, before = time.monotonic(), cpu_times()
    while time.monotonic() - begun < seconds:
        sock.sendall(block)
    return _waited(before, time.monotonic() - begun)


def _line(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < 4096 and (chunk := sock.recv(4096)):
        data += chunk
    return data
