"""Warm parent: a process that imports what the ranks of a program import, and forks their supervisors.

It runs no code of a user, has no value of a trial and no secret, uses no device, and has one thread when it forks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import sys
import time

from ..fields import parse_object
from ..file_access import read_json, read_text
from ..files.layout import Layout
from ..limits import WARM_CHECK_S, WARM_MEMORY_RATIO
from ..machine.job_process import JobProcess
from ..machine.process_strings import show_strings, variables_of
from ..machine.processes import identity, read_arguments, set_name
from ..machine.sockets import receive_message
from ..names import WARM_NAME
from .launcher import reap
from .warm_image import WarmImage, why_not_forked
from .warm_record import checked_names
from .warm_start import ENDED, READY, write_identity


class WarmParent:
    """The parent of one key.

    :param listener: descriptor of its socket
    :param lock: descriptor of the lock that it holds while it lives
    :param digest: of its key
    :param record: path of the record of its program
    :param started_with: modules of the interpreter before those of this program
    """

    def __init__(
        self, layout: Layout, listener: int, lock: int, digest: str, record: str, idle_s: float, started_with: set[str]
    ) -> None:
        self.layout = layout
        self.listener = socket.socket(fileno=listener)
        self.lock = lock
        self.digest = digest
        self.record = record
        self.folder = os.path.dirname(record)
        self.idle_s = idle_s
        self.image = WarmImage(digest, started_with)
        self._seen: tuple[int, int] | None = None

    def serve(self) -> None:
        """Serve until no launch has come for a while, memory is short, or a condition fails.

        :raises RankProgram: in a rank that was forked
        """
        set_name(WARM_NAME)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        write_identity(self.folder, self.digest, identity())
        # Raises where the kernel cannot do for ranks what this does for this process.
        show_strings([os.fsencode(one) for one in read_arguments(os.getpid())[:-1]], variables_of(dict(os.environ)))
        # A launch that connects afterwards starts another parent.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with contextlib.suppress(SystemExit):
            self._serve()
        self._refuse_waiting()

    def _serve(self) -> None:
        until = time.monotonic() + self.idle_s
        job = JobProcess(os.environ)
        awaited: list[int] = [self.listener.fileno(), *([job.fd] if job.fd >= 0 else [])]
        while time.monotonic() < until and not is_memory_short() and not job.has_ended:
            if awaited[0] in select.select(awaited, [], [], min(WARM_CHECK_S, self.idle_s))[0]:
                connection, _ = self.listener.accept()
                if not self._answer(connection):
                    return
                until = time.monotonic() + self.idle_s

    def _refuse_waiting(self) -> None:
        """Tell launches that have connected meanwhile that this process ends."""
        with contextlib.suppress(OSError):
            os.unlink(self.listener.getsockname())
        self.listener.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                connection.sendall(ENDED)
                connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        """Fork the supervisor of a run. Return False if this process has to end."""
        with connection:
            if _peer(connection) != os.getuid():
                return True
            try:
                self._prepare()
            except SystemExit:
                # The launch that waits is not the reason.
                with contextlib.suppress(OSError):
                    connection.sendall(ENDED)
                raise
            if why_not_forked() is not None:
                return False
            pid = os.fork()
            if pid == 0:
                self._detach(connection)
            os.waitpid(pid, 0)
        return True

    def _prepare(self) -> None:
        """Import what ranks of the program have imported since the last launch."""
        try:
            found = os.stat(self.record)
        except OSError:
            return
        seen = (found.st_ino, found.st_mtime_ns)
        if seen == self._seen:
            return
        self._seen = seen
        names = (read_json(self.record) or {}).get("modules")
        libraries = os.path.dirname(self.layout.library("0"))
        self.image.load(checked_names(names) if isinstance(names, list) else [], libraries)
        # OpenBLAS ends its threads before a fork, and starts them again when they are needed.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        gc.collect()
        # Collections of the ranks leave these objects alone, so that their memory stays shared.
        gc.freeze()

    def _detach(self, connection: socket.socket) -> None:
        """Wait for the request in a process without session and parent, and carry it out."""
        self.listener.close()
        os.close(self.lock)
        os.setsid()
        if os.fork():
            os._exit(0)
        connection.sendall(READY)
        body, fds = receive_message(connection)
        message = parse_object(body or b"")
        if message is None or not fds:
            os._exit(0)
        connection.close()
        os.environ.clear()
        os.environ.update(message["environment"])
        reap(self.layout, message["request"].encode(), fds[0], self.image)
        os._exit(0)


def _peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def is_memory_short() -> bool:
    """Return whether little memory of this host is available."""
    values = {}
    for line in (read_text("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            values[name] = int(rest.split()[0])
    return values.get("MemAvailable", 1) < WARM_MEMORY_RATIO * values.get("MemTotal", 1)
