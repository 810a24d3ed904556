"""Launches that are handed over to a warm parent: a process of this host that has imported what their ranks import."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from ..file_access import make_private, names_in, read_json, write_json
from ..files.layout import Layout
from ..limits import WARM_IMPORT_S, WARM_PARENTS, WARM_RECORD_DAYS
from ..machine.locks import is_locked, take_lock
from ..machine.processes import close_all_but, find_process, program, send_signal
from ..machine.sockets import send_message
from ..names import JOB_PROCESS, NO_LOCK_DIR, WARM_ROLE, Json
from .warm_key import WarmKey, warm_key
from .warm_record import WarmRecord

#: What a warm parent's child writes once it waits for the request.
READY = b"ready"
#: What a parent writes that has just begun to end.
ENDED = b"ended"


def why_not_handed_over(layout: Layout, request: bytes, report: int) -> str | None:
    """Hand a launch over to its warm parent, which is started if there is none. Return why the caller keeps it, if so.

    The first launch of code on this host is for the caller: most code is launched once.

    Nothing is sent before a child of the parent has said that it waits, and the caller never continues after that. So
    no launch is carried out twice.

    :param request: plan, context and secrets, which the parent itself never reads
    :param report: descriptor for the supervisor's answer
    """
    try:
        plan: Json = json.loads(request)["plan"]
        if plan["warm"] is None:
            return "warm_start is off"
        folder = warm_folder(layout)
        record = WarmRecord(folder, plan)
        if (reason := record.why_executed(plan["payload"])) is not None:
            return reason
        key = warm_key(layout, record.with_setup(plan))
        connection = _connected(layout, folder, key, record, plan["warm"]["idle_s"])
    except Exception as error:
        # Whatever it is, executed ranks do not depend on it.
        return str(error)
    with connection:
        answer = _answer(connection)
        if answer != READY:
            if answer != ENDED:
                # It ended while it imported, or may not fork.
                record.note_bad()
            return "the warm parent ended"
        message = {"environment": dict(os.environ), "request": request.decode()}
        with contextlib.suppress(OSError):
            send_message(connection, json.dumps(message).encode(), [report])
    return None


def warm_folder(layout: Layout) -> str:
    """Return the folder of the sockets and records of warm parents, which only this account can enter."""
    folder = os.path.join(layout.state_dir, "warm")
    make_private(folder)
    return folder


def _connected(layout: Layout, folder: str, key: WarmKey, record: WarmRecord, idle_s: float) -> socket.socket:
    # The path of a socket has at most 107 bytes.
    os.chdir(folder)
    name = key.digest[:32]
    until = time.monotonic() + 2.0
    while True:
        lock = take_lock(f"{name}.lock")
        if lock is not None:
            _start(layout, folder, key, record, idle_s, lock)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"{name}.sock")
            os.utime(f"{name}.lock")
            return connection
        except OSError:
            connection.close()
            # Another process has just begun to start it, or it ends.
            if time.monotonic() > until:
                raise
        time.sleep(0.005)


def _start(layout: Layout, folder: str, key: WarmKey, record: WarmRecord, idle_s: float, lock: int) -> None:
    """Start a parent, which keeps the lock of its socket while it lives."""
    _tidy(folder, f"{key.digest[:32]}.lock")
    name = f"{key.digest[:32]}.sock"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen(64)
        child = os.fork()
        if child == 0:
            try:
                _become_parent(layout, key, record, idle_s, listener.fileno(), lock)
            finally:
                os._exit(127)
    os.close(lock)


def _become_parent(layout: Layout, key: WarmKey, record: WarmRecord, idle_s: float, listener: int, lock: int) -> None:
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if os.fork():
        os._exit(0)
    listener, lock = os.dup(listener), os.dup(lock)
    high = max(listener, lock) + 1
    os.dup2(listener, high)
    os.dup2(lock, high + 1)
    close_all_but(high, high + 1)
    os.set_inheritable(high, True)
    os.set_inheritable(high + 1, True)
    os.chdir("/")
    folders = {"state": layout.state_dir, "remote": layout.remote_dir, "lock": layout.lock_dir or NO_LOCK_DIR}
    options = [word for name, path in folders.items() for word in (f"--{name}-dir", path)]
    values = [str(high), str(high + 1), key.digest, record.path, str(idle_s)]
    main = os.path.join(program(), "__main__.py")
    # It ends with the job that it belongs to.
    of_job = {name: os.environ[name] for name in (JOB_PROCESS,) if name in os.environ}
    environment = {**key.environment, **of_job}
    os.execve(key.python, [key.python, main, WARM_ROLE, *options, *values], environment)  # noqa: S606


def _tidy(folder: str, own: str) -> None:
    """Remove what is left of dead parents, and let those end that were not used for longest if there are many.

    :param own: name of the lock of the parent that starts
    """
    alive: list[tuple[float, str]] = []
    for name in names_in(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            age = time.time() - os.stat(path).st_mtime
            if name == own:
                continue
            if name.endswith(".lock") and is_locked(path):
                alive.append((age, path))
            elif name.endswith(".json") and age > WARM_RECORD_DAYS * 86400 or name.endswith(".lock") and age > 3600:
                os.unlink(path)
    for _, path in sorted(alive, reverse=True)[: max(0, len(alive) + 1 - WARM_PARENTS)]:
        known = read_json(path.removesuffix(".lock") + ".pid")
        proc = find_process(known)
        if proc is not None:
            send_signal(proc, signal.SIGTERM)


def _answer(connection: socket.socket) -> bytes:
    if not select.select([connection], [], [], WARM_IMPORT_S)[0]:
        return b""
    with contextlib.suppress(OSError):
        return connection.recv(len(READY))
    return b""


def write_identity(folder: str, digest: str, known: Any) -> None:
    """Write the identity of a parent, by which it is ended when there are too many."""
    with contextlib.suppress(OSError):
        write_json(os.path.join(folder, f"{digest[:32]}.pid"), known, durable=False)
