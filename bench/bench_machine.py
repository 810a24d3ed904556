"""Times of this machine for the steps that the other benchmarks consist of: the limits of their figures."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, Bench, Row

HERE = "this machine"


def ms_of(work: Callable[[], object], times: int) -> float:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return 1e3 * (time.perf_counter() - began) / times


def fork() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def interpreter() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


def synced(path: Path) -> Callable[[], None]:
    """Return a function that appends 4 KiB to a file and makes it durable."""
    number = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write() -> None:
        os.write(number, bytes(4096))
        os.fdatasync(number)

    return write


def transaction(path: Path) -> Callable[[], None]:
    """Return a function that commits one row to SQLite, as the store does: WAL, synchronous=FULL."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE t (a INTEGER)"):
        connection.execute(statement)
    return lambda: connection.execute("INSERT INTO t VALUES (1)")


def round_trip() -> Callable[[], None]:
    """Return a function that sends a byte over the loopback interface and waits for the answer."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = server.accept()
        while data := connection.recv(1):
            connection.send(data)

    threading.Thread(target=echo, daemon=True).start()
    client = socket.create_connection(server.getsockname())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask() -> None:
        client.send(b"x")
        client.recv(1)

    return ask


def count() -> float:
    """Return the additions of one process in a millisecond."""
    began = time.perf_counter()
    for _ in range(2_000_000):
        pass
    return 2_000 / (time.perf_counter() - began)


def speed_up() -> float:
    """Return the rate of as many processes as cores, in units of that of one."""
    number = len(os.sched_getaffinity(0))
    alone = count()
    with get_context("fork").Pool(number) as pool:
        return sum(one.get() for one in [pool.apply_async(count) for _ in range(number)]) / alone


def measure(run: Run) -> None:
    works = {
        "fork": (fork, 50),
        "interpreter": (interpreter, 3),
        "fdatasync": (synced(run.folder / "file"), 20),
        "transaction": (transaction(run.folder / "db"), 20),
        "round trip": (round_trip(), 50),
    }
    run.turns({HERE: lambda: {**{name: ms_of(*work) for name, work in works.items()}, "cores": speed_up()}}, warm_up=1)


def _row(name: str, what: str, unit: str = "ms") -> Row:
    return Row(name=name, what=what, unit=unit, sides={HERE: LIMIT})


BENCH = Bench(
    what="The steps that the other rows consist of",
    rows=(
        _row("fork", "Fork of a small process until its end: limit of a warm start"),
        _row("interpreter", "Python without site-packages until its end: limit of a cold start"),
        _row("fdatasync", "4 KiB until they are durable: limit of anything that survives a power cut"),
        _row("transaction", "One row in SQLite, durable: limit of a grant"),
        _row("round trip", "A byte there and back over the loopback interface: limit of an answer of a host"),
        _row("cores", "Rate of one process per core at once: limit of several ranks", "processes"),
    ),
    measure=measure,
    rounds=(15, 5),
)
