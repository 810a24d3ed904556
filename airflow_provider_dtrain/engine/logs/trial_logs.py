"""Rank 0's logs of a trial's attempts in the task log.

They cover the attempt that runs, and the missing parts of attempts that ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.engine.logs.buffer import Shown
from airflow_provider_dtrain.engine.logs.rank_log import RANK0_LOG, TAIL_BYTES, RankLog
from airflow_provider_dtrain.engine.logs.task_log import FILES
from airflow_provider_dtrain.errors import DtrainError, HostError, StaleWatchError
from airflow_provider_dtrain.hosts.channel.answers import Piece, piece_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.follower import LogFollower
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Bytes that are read from the end of a log that another process left behind.
REST_BYTES = 256 * 1024
REST_MOST_S = 5.0
#: Bytes that are shown again after Airflow has emptied the file of the task log.
REPLAY_BYTES = 1 << 20
#: Seconds that the event of an ended trial waits for its log. This is longer than its lines may take to be handed over
#: and confirmed, so it passes only when a host, the store or Airflow's parent process does not answer.
FINISH_MOST_S = 10.0
#: Seconds for each step, and in all, if the log is out of reach afterwards: no user can read later what is left out.
LAST_STEP_S, RECEIVE_MOST_S = 30.0, 60.0
_PIECE_BYTES = 128 * 1024


class TrialLogs:
    """Logs of a trial, as one follower handles them.

    :param rt: the follower
    """

    def __init__(self, rt: LogFollower) -> None:
        self.rt = rt
        self._logs: dict[int, RankLog] = {}
        self._work: dict[int, asyncio.Future[None]] = {}
        self._emptied: dict[int, Shown] = {}
        #: Logs of which the task log may miss something, by attempt.
        self._open: dict[int, RankLog] = {}
        #: Marks for lines that Airflow had not confirmed when the trial ended. They need another way into the task log.
        self.unconfirmed: list[str] = []

    @property
    def wanted(self) -> bool:
        """True when the task log of this follower takes lines of rank 0."""
        return self.rt.log.rate_bytes_per_s is not None

    @property
    def to_repeat(self) -> list[Shown]:
        """Parts that the file of the task log showed before Airflow emptied it, and does not show again yet."""
        return list(self._emptied.values())

    def repeat(self, parts: Sequence[Shown]) -> None:
        """Show parts again that the file of the task log showed before Airflow emptied it."""
        for part in parts:
            known = self._emptied.setdefault(part.attempt_id, part)
            known.begin, known.end = min(known.begin, part.begin), max(known.end, part.end)

    def begin_of(self, view: AttemptView, committed: int) -> int:
        """Return the first byte of an attempt's log that the host has to send."""
        lost = self._emptied.get(view.attempt_id)
        return committed if lost is None else max(min(lost.begin, committed), committed - REPLAY_BYTES)

    def open(self, view: AttemptView, host: str, committed: int, *, watch: int | None = None) -> RankLog:
        """Return the log of an attempt, from the position that the task log has reached.

        :param committed: first byte that the task log may not have
        """
        begin = self.begin_of(view, committed)
        self._emptied.pop(view.attempt_id, None)
        log = RankLog(self.rt, view, host=host, begin=begin, committed=committed, watch=watch)
        FILES.note(self.rt.log.file, log.shown)
        self._open[view.attempt_id] = log
        return log

    def follow(self, view: AttemptView, host: str, committed: int) -> RankLog:
        """Return the log of the attempt that is followed."""
        if view.attempt_id not in self._logs:
            self._logs[view.attempt_id] = self.open(view, host, committed)
        return self._logs[view.attempt_id]

    def resume_earlier(self, view: AttemptView) -> None:
        """Begin to deliver, in the background, the lines that earlier followers of the trial have left."""
        if self.wanted:
            self._begin(0, self._rests(view.trial_id))

    def end(self, view: AttemptView) -> None:
        """Close the log of an attempt that has ended, in the background."""
        if (log := self._logs.pop(view.attempt_id, None)) is not None:
            self._begin(view.attempt_id, self._end(view, log))

    async def receive(self, view: AttemptView) -> None:
        """Read the log of an attempt to its end, because its hosts are out of reach soon.

        It returns after :data:`RECEIVE_MOST_S` at the latest.
        """
        if not self.wanted:
            return
        self.end(view)
        if view.attempt_id not in self._work:
            # No byte of it has arrived: the gang ended before, or while another process followed it.
            self._begin(view.attempt_id, self._unread(view))
        await asyncio.wait(self._work.values(), timeout=RECEIVE_MOST_S)

    async def finish(self, view: AttemptView) -> None:
        """Wait until the task log has all lines of the ended attempts, or marks.

        It returns after :data:`FINISH_MOST_S` at the latest. Then :attr:`unconfirmed` has marks for the rest.
        """
        if not self.wanted:
            return
        # The log of an attempt that was killed while it was followed is still open.
        self.end(view)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_MOST_S):
                await asyncio.gather(*self._work.values(), return_exceptions=True)
                await self._rests(view.trial_id)
        message = f"Airflow has not confirmed within {FINISH_MOST_S:.0f} s that it wrote them; they may be there"
        self.unconfirmed = [log.buffer.place.missing(log.written, None, message) for log in self._open.values()]
        self.abandon()

    async def hand_over(self) -> None:
        """Deliver and commit the received lines, so that the next process continues there."""
        for log in self._logs.values():
            with contextlib.suppress(StaleWatchError):
                await log.close(is_over=False)
                await log.commit(at_once=True)
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    def abandon(self) -> None:
        """Stop sending, because another process follows, or this one ends."""
        for log in self._open.values():
            log.abandon()
        for work in self._work.values():
            work.cancel()
        self._open.clear()
        self._logs.clear()
        self._work.clear()

    async def keep_tail(self, view: AttemptView, hosts: Iterable[str]) -> None:
        """Store the end of the log of an attempt that is ended in place of its follower.

        The position of the log stays.

        :param hosts: hosts that still answer
        """
        redactor = await self.rt.redactor()
        length = TAIL_BYTES + redactor.longest
        for host in hosts:
            with contextlib.suppress(HostError):
                tail = redactor.log((await self._read(view, host, -length, length)).data, is_cut=True)[-TAIL_BYTES:]
                commit = self.rt.store.events.commit_log
                await self.rt.db(commit, view.attempt_id, self.rt.watch, host, 0, None, tail)
                return

    # -- what is left --------------------------------------------------------------------------
    def _begin(self, key: int, work: Coroutine[Any, Any, None]) -> None:
        self._work[key] = asyncio.ensure_future(_quietly(self.rt, work))

    async def _end(self, view: AttemptView, log: RankLog) -> None:
        is_written = await log.close(most_s=LAST_STEP_S if view.is_external else None)
        # Bytes may have arrived since the log was closed: they are read from the host again.
        if is_written and log.is_complete and log.is_drained:
            await self._close(log)
            return
        await log.commit(at_once=True)
        if is_written:
            await self._rest(view, self.open(view, log.host, log.written, watch=log.watch))

    async def _close(self, log: RankLog) -> None:
        """Record that the task log has all of a log, or marks."""
        self._open.pop(log.attempt_id, None)
        await log.commit(closed=True)

    async def _rests(self, trial_id: int) -> None:
        """Deliver or mark the missing lines of attempts that have ended."""
        rests = []
        for one in await self.rt.db(self.rt.store.events.open_logs, trial_id):
            if one.attempt_id not in self._work and one.attempt_id not in self._logs:
                view = await self.rt.db(self.rt.store.attempts.get, one.attempt_id)
                rests.append((view, self.open(view, one.host, one.position, watch=view.watch)))
        for view, log in rests:
            await self._rest(view, log)

    async def _unread(self, view: AttemptView) -> None:
        """Deliver the log of an attempt of which this follower has received nothing."""
        if (one := await self.rt.db(self.rt.store.events.open_log, view.attempt_id)) is not None:
            await self._rest(view, self.open(view, one.host, one.position, watch=view.watch))

    async def _rest(self, view: AttemptView, log: RankLog) -> None:
        most_s = LAST_STEP_S if view.is_external else REST_MOST_S
        try:
            async with asyncio.timeout(most_s):
                await self._fill(view, log)
        except (HostError, TimeoutError) as error:
            why = str(error).rstrip(".") or f"host '{log.host}' did not send it within {most_s:.0f} s"
            log.skip(log.received, None, why)
        with contextlib.suppress(StaleWatchError):
            if await log.close(most_s=LAST_STEP_S if view.is_external else None):
                await self._close(log)

    async def _fill(self, view: AttemptView, log: RankLog) -> None:
        """Read the end of the log from its host."""
        size = (await self._read(view, log.host, 0, 0)).size
        start = log.received if view.is_external else max(log.received, size - REST_BYTES)
        if start > log.received:
            log.skip(log.received, start, "the follower was away when the trial ended")
        while log.received < size:
            piece = await self._read(view, log.host, log.received, _PIECE_BYTES)
            if piece.offset > log.received:
                log.skip(log.received, piece.offset, "beyond log_limit")
            if not piece.data:
                return
            log.take(piece.offset, piece.data, await self.rt.redactor())

    async def _read(self, view: AttemptView, host: str, offset: int, length: int) -> Piece:
        answer = await self.rt.call(host, "read", run=view.run, stream=RANK0_LOG, offset=offset, length=length)
        return piece_of(host, answer, offset=offset, length=length)


async def _quietly(rt: LogFollower, work: Coroutine[Any, Any, None]) -> None:
    """Run work on the log, which may fail without harm to the trial."""
    try:
        await work
    except StaleWatchError:
        return
    except DtrainError as error:
        rt.log.warning("A part of rank 0's log did not reach the task log: %s", error)
