"""Stand-in for Airflow's parent process: reads log records from a socket on command."""

from __future__ import annotations

import logging
import select
import socket
import threading

from airflow_provider_dtrain.engine.logs.channel import LogChannel


class LogReader:
    """One end of a socket. ``logger`` writes each record as NUL-terminated text to the other end."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.records: list[str] = []
        #: Number of answered requests.
        self.answers = 0
        self._reads, self._ends = threading.Event(), threading.Event()
        #: The parent has one thread: it answers after it has processed the data that it read.
        self._busy = threading.Lock()
        self._handler = _ToSocket(self.ours)
        self.logger = logging.Logger("task", logging.INFO)
        self.logger.addHandler(self._handler)
        self.channel = LogChannel(self.ours.fileno(), self._answer)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Start or resume reading."""
        self._reads.set()

    def stop(self) -> None:
        """Stop reading, as a stopped process does."""
        self._reads.clear()

    def close(self) -> None:
        self._ends.set()
        self._reads.set()
        self.ours.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)

    def _answer(self) -> None:
        self._reads.wait()
        with self._busy:
            self.answers += 1

    def _work(self) -> None:
        rest = b""
        while not self._ends.is_set():
            self._reads.wait()
            select.select([self.theirs], [], [])
            with self._busy:
                if not self._reads.is_set():
                    continue
                data = self.theirs.recv(4096)
                if not data:
                    return
                *whole, rest = (rest + data).split(b"\0")
                self.records += [one.decode() for one in whole]


class _ToSocket(logging.Handler):
    def __init__(self, ours: socket.socket) -> None:
        super().__init__()
        self.ours = ours

    def emit(self, record: logging.LogRecord) -> None:
        self.ours.sendall(record.getMessage().encode() + b"\0")
