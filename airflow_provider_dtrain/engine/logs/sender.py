"""Log sender: one thread per process that hands rank 0's logs to Airflow.

It sends records as fast as Airflow's parent process reads them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Protocol

from airflow_provider_dtrain.engine.logs.channel import LogChannel, airflow_channel

log = logging.getLogger(__name__)

#: Largest record. Airflow's cost is per record, and per 4 KiB that its parent reads at a time.
MOST_RECORD_BYTES = 64 * 1024
#: Seconds between two records of one trial. Lines that arrive meanwhile share a record.
RECORD_EVERY_S = 0.25
#: Seconds between two requests that confirm what the parent has written.
CONFIRM_EVERY_S = 1.0
#: Shortest and longest pause, in seconds, between two polls of the kernel until the parent has read a record, and their
#: share of the wait, which bounds the error of the time that the parent needed: the sender pauses for as long.
READ_POLL_S, READ_POLL_MOST_S, READ_POLL_RATIO = 0.002, 0.05, 0.125
#: Longest wait of the thread, in seconds: nothing wakes it when a pause is over.
IDLE_S = 5.0


class LogSource(Protocol):
    """A log that is sent."""

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next record may be sent, or None when there is none."""

    def send(self) -> bool:
        """Hand the next record to Airflow's logger, and return whether there was one."""

    def unconfirmed(self) -> int | None:
        """Return how many records were handed over, or None when all of them are confirmed."""

    @property
    def is_urgent(self) -> bool:
        """True when a coroutine waits for the confirmation."""

    def confirmed(self, records: int) -> None:
        """Record that Airflow has written this many records."""


class LogSender:
    """Sender of one record at a time, of one trial after the other.

    A record is sent only when the one before it was read. So Airflow's socket never fills up, and no logger of this
    process blocks. A slow parent gets fewer, longer records.

    :param records_per_s: for all trials of this process together
    """

    def __init__(self, records_per_s: float, channel: LogChannel | None = None) -> None:
        self.records_per_s = records_per_s
        self._channel = channel
        self._sources: list[LogSource] = []
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._not_before = self._confirm_at = 0.0

    def add(self, source: LogSource) -> None:
        """Send this log from now on."""
        with self._news:
            self._sources.append(source)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dtrain-task-log", daemon=True)
                self._thread.start()
            self._news.notify()

    def remove(self, source: LogSource) -> None:
        """Stop sending this log."""
        with self._news:
            if source in self._sources:
                self._sources.remove(source)

    def wake(self) -> None:
        """Wake the thread, because a log has something to send."""
        with self._news:
            self._news.notify()

    def _work(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:
                log.exception("Lines of a rank's log could not be handed to Airflow")
                time.sleep(1.0)

    def _turn(self) -> None:
        """Send one record or confirm what was sent, or wait until there is something to do."""
        channel = self._channel or airflow_channel()
        if self._confirm(channel):
            return
        with self._news:
            source, wait_s = self._next(time.monotonic())
            if source is None:
                self._news.wait(wait_s)
                return
            # The other logs come first next time.
            self._sources.remove(source)
            self._sources.append(source)
        begun = time.monotonic()
        if source.send():
            self._until_read(channel)
            # At most half of the parent's time is for logs.
            pause_s = max(1.0 / self.records_per_s, time.monotonic() - begun)
            self._not_before = time.monotonic() + pause_s

    def _next(self, now: float) -> tuple[LogSource | None, float]:
        """Return the log whose turn it is, or None and the seconds to wait."""
        wait_s = IDLE_S
        for source in self._sources:
            due_s = source.due_in(now)
            if due_s is None:
                if source.unconfirmed() is not None:
                    wait_s = min(wait_s, max(0.0, self._confirm_at - now))
                continue
            due_s = max(due_s, self._not_before - now)
            if due_s <= 0:
                return source, 0.0
            wait_s = min(wait_s, due_s)
        return None, wait_s

    def _until_read(self, channel: LogChannel) -> None:
        begun = time.monotonic()
        while not channel.is_read():
            waited_s = time.monotonic() - begun
            time.sleep(min(max(READ_POLL_S, READ_POLL_RATIO * waited_s), READ_POLL_MOST_S))

    def _confirm(self, channel: LogChannel) -> bool:
        """Confirm the records that were handed over, if that is due, and return whether it was."""
        with self._news:
            sources = list(self._sources)
        found = [(source, records) for source in sources if (records := source.unconfirmed()) is not None]
        now = time.monotonic()
        if not found or (now < self._confirm_at and not any(source.is_urgent for source, _ in found)):
            return False
        self._until_read(channel)
        is_done = channel.confirm()
        self._confirm_at = time.monotonic() + CONFIRM_EVERY_S
        for source, records in found if is_done else ():
            source.confirmed(records)
        if not is_done:
            time.sleep(CONFIRM_EVERY_S)
        return True


_senders: dict[int, LogSender] = {}


def log_sender(records_per_s: float) -> LogSender:
    """Return this process's sender."""
    pid = os.getpid()
    if pid not in _senders:
        _senders.clear()
        _senders[pid] = LogSender(records_per_s)
    _senders[pid].records_per_s = records_per_s
    return _senders[pid]
