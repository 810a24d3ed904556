"""Rank 0's log of one attempt on its way to the task log."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.engine.logs.buffer import MAX_LINE_BYTES, LogBuffer, LogPlace, Shown
from airflow_provider_dtrain.engine.logs.sender import MOST_RECORD_BYTES, RECORD_EVERY_S, log_sender

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.follower import LogFollower
    from airflow_provider_dtrain.store.records.trials import AttemptView

RANK0_LOG = "rank0.log"
TAIL_BYTES = 64 * 1024
COMMIT_EVERY_S = 1.0
#: Seconds after the end of an attempt in which its lines must be handed over, and then be confirmed.
DELIVER_MOST_S, CONFIRM_MOST_S = 4.0, 4.0


class RankLog:
    """Log of rank 0 on its way from the host to the task log.

    The event loop receives it, the process's log sender sends it, and the follower commits what Airflow has written.

    :param host: host of rank 0
    :param begin: first byte that will arrive
    :param committed: position in the store
    :param watch: watch of the attempt; None = that of ``rt``
    """

    def __init__(
        self, rt: LogFollower, view: AttemptView, *, host: str, begin: int, committed: int, watch: int | None = None
    ) -> None:
        self.rt = rt
        self.attempt_id = view.attempt_id
        self.host = host
        self.watch = rt.watch if watch is None else watch
        self.buffer = LogBuffer(LogPlace(view.trial_id, view.number), begin)
        #: Part of the log that the task log's file shows.
        self.shown = Shown(view.attempt_id, self.buffer.place, begin, begin)
        #: True when all that the rank wrote has arrived.
        self.is_complete = False
        #: Offset of the byte that comes next.
        self.received = begin
        #: Offset before which Airflow has written everything, or a mark that it is missing.
        self.written = begin
        self.committed = committed
        self._committed_at = time.monotonic()
        self._tail = bytearray()
        self._is_tail_new = False
        #: The last bytes that arrived, which may be the begin of a secret, and their offset.
        self._held = b""
        self._held_at = begin
        self._redactor = Redactor()
        #: The bytes before the held ones are missing.
        self._is_after_gap = begin > 0
        #: Offset of the bytes that were received before the host lost the file's end. They arrive again.
        self._again = 0
        self._handed = begin
        self._due_at = 0.0
        self.is_urgent = False
        #: Numbers of records handed over and confirmed. A mark without an end moves no position, but must be confirmed.
        self._records_handed = self._records_confirmed = 0
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._sender = log_sender(rt.settings.task_log_records_per_s)
        self._sender.add(self)

    # -- from the host -------------------------------------------------------------------------
    def take(self, offset: int, data: bytes, redactor: Redactor) -> None:
        """Receive bytes of the log, and drop those that arrived before.

        Bytes that may be the begin of a secret are held back until the bytes that follow tell.
        """
        self.received = offset + len(data)
        data = data[max(0, self._again - offset) :]
        offset = max(offset, self._again)
        self._redactor = redactor
        if data:
            if not self._held:
                self._held_at = offset
            self._held += data
            self._pass_on(redactor.sure_log(self._held, is_cut=self._is_after_gap))

    def _pass_on(self, masked: bytes) -> None:
        """Show the first held bytes as they are masked."""
        if not masked:
            return
        self._tail += masked
        if len(self._tail) > 4 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        self._is_tail_new = True
        self.buffer.add(self._held_at, masked)
        self._held = self._held[len(masked) :]
        self._held_at += len(masked)
        self._is_after_gap = False
        self._sender.wake()

    def _release(self) -> None:
        """Show the held bytes, because nothing follows them. A part of a secret at their end is masked."""
        self._pass_on(self._redactor.log(self._held, is_cut=True))
        self._is_after_gap = True

    def skip(self, start: int, end: int | None, reason: str) -> None:
        """Record that bytes will not arrive."""
        self._release()
        if (end or 0) > self.received:
            # Readers name bytes of the tail by their distance to its end.
            self._tail.clear()
        self.received = max(self.received, end or 0)
        self.buffer.skip(start, end, reason)
        self._sender.wake()

    def restart(self, *, is_known: bool) -> None:
        """Record that the file is read from its start again.

        :param is_known: the file holds the bytes that arrived before, and its rank has ended
        """
        if not is_known:
            self._release()
            self._is_after_gap = False
        self._again = max(self._again, self.received) if is_known else 0
        if not is_known:
            self.buffer.restart(0)
        self.received = 0

    @property
    def is_drained(self) -> bool:
        """True when nothing that has arrived waits to be sent."""
        return not self._held and not self.buffer.has_record

    # -- to Airflow, in the sender's thread ----------------------------------------------------
    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next record may be sent, or None when there is none."""
        return max(0.0, self._due_at - now) if self.buffer.has_record else None

    def send(self) -> bool:
        """Hand the next record to Airflow's logger, and return whether there was one."""
        rate = max(1, self.rt.log.rate_bytes_per_s or 1)
        before = self.buffer.position
        # Count before the buffer gives it out: a reader in between must not conclude that all is written.
        self._records_handed += 1
        most = min(MOST_RECORD_BYTES, max(MAX_LINE_BYTES, rate // 2))
        lines = self.buffer.record(most)
        self._handed = self.shown.end = self.buffer.position
        # A jump over a gap costs nothing.
        sent = min(abs(self._handed - before), sum(map(len, lines)))
        # Further lines would not fit into a large record, so waiting for them saves none.
        least_s = 0.0 if sent > most // 2 else RECORD_EVERY_S
        self._due_at = time.monotonic() + max(least_s, sent / rate)
        if lines:
            self._context.run(self.rt.log.rank_lines, lines)
        self._notify()
        return bool(lines)

    def unconfirmed(self) -> int | None:
        """Return how many records were handed over, or None when all of them are confirmed."""
        return self._records_handed if self._records_handed != self._records_confirmed else None

    def confirmed(self, records: int) -> None:
        """Record that Airflow has written this many records.

        No record was handed over since they were counted.
        """
        self._records_confirmed = records
        self.written = self._handed
        self._notify()

    def _notify(self) -> None:
        # The loop may be closed: then no coroutine waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)

    # -- in the store --------------------------------------------------------------------------
    async def commit(self, *, at_once: bool = False, closed: bool = False) -> None:
        """Store how much Airflow has written, and the end of the log, at most once a second.

        :param closed: the task log has everything, or marks that say what is missing
        :raises StaleWatchError: another process follows the attempt
        """
        now = time.monotonic()
        written = self.written
        is_new = written != self.committed or self._is_tail_new
        if not closed and not (is_new and (at_once or now - self._committed_at >= COMMIT_EVERY_S)):
            return
        self._is_tail_new, self._committed_at, tail = False, now, bytes(self._tail[-TAIL_BYTES:])
        commit = self.rt.store.events.commit_log
        place = (self.attempt_id, self.watch, self.host, 0, written, tail or None)
        await self.rt.db(
            commit, *place, tail_end=self._held_at if self._held else max(self.received, self._again), closed=closed
        )
        self.committed = written

    # -- the end -------------------------------------------------------------------------------
    async def close(self, *, is_over: bool = True, most_s: float | None = None) -> bool:
        """Send the waiting lines within seconds, and return whether all of them are written or marked.

        :param is_over: nothing follows, so lines that are not sent in time are replaced by one mark
        :param most_s: seconds in which the lines must be handed over; None: as long as a user can read them later
        """
        self.is_urgent = True
        if is_over:
            self._release()
            self.buffer.finish()
        self._sender.wake()
        deliver_s = DELIVER_MOST_S if most_s is None else most_s
        if not await self._until(lambda: not self.buffer.has_record, deliver_s) and is_over:
            self.buffer.leave_out("the trial has ended")
            self._due_at = 0.0
            self._sender.wake()
        is_written = await self._until(self._is_written, CONFIRM_MOST_S)
        self.abandon()
        return is_written

    def _is_written(self) -> bool:
        return not self.buffer.has_record and self._records_confirmed == self._records_handed

    async def _until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        give_up_at = time.monotonic() + limit_s
        while True:
            self._news.clear()
            if is_done():
                return True
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()

    def abandon(self) -> None:
        """Stop sending the log."""
        self._sender.remove(self)
