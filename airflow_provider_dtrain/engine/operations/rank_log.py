"""Logs of ranks, read from their hosts. Blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.lifecycle.timing import LOG_READ_S
from airflow_provider_dtrain.errors import DtrainError, HostLostError, NotFoundError
from airflow_provider_dtrain.hosts.channel.answers import Piece, piece_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView, RankView
    from airflow_provider_dtrain.store.store import Store

CHUNK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class LogBytes:
    """Bytes of a log."""

    #: Offset of the first one.
    start: int
    data: bytes
    #: Bytes before the first one that the host has removed, as ``log_limit`` says.
    freed: int

    @property
    def mark(self) -> bytes:
        """A line in place of the bytes that were removed. Empty: none were."""
        if not self.freed:
            return b""
        begin = self.start - self.freed
        return f"\n[bytes {begin} to {self.start} ({byte_size(self.freed)}) were left out by log_limit]\n".encode()


def read_log(
    hook: DtrainHook,
    view: AttemptView,
    rank: RankView,
    offset: int,
    end: int | None = None,
    *,
    redactor: Redactor,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[LogBytes]:
    """Yield the bytes of a rank's log that its host has now, or those of a complete copy if the host does not answer.

    :param view: an attempt that was granted
    :param offset: first byte; negative = as many bytes before the end of the log
    :param end: first byte that is not read; None = all
    :param redactor: masks secrets of the host's bytes; in the copy they are masked in any case
    :raises HostError: the host does not answer, and the store has no complete copy
    """
    assert view.run is not None
    try:
        check_reach(hook.store, view, rank.rank)
        for piece in log_bytes(hook, view.run, rank, offset, end, redactor=redactor, chunk_bytes=chunk_bytes):
            yield piece
            offset = piece.start + len(piece.data)
    except DtrainError:
        copy = hook.store.log_copies.get(view.attempt_id, rank.rank)
        if copy is None or not copy.is_complete:
            raise
        start = max(0, copy.end + offset) if offset < 0 else offset
        yield from _copied(hook.store, view.attempt_id, rank.rank, start, copy.end if end is None else end)


def _copied(store: Store, attempt_id: int, rank: int, offset: int, end: int) -> Iterator[LogBytes]:
    while offset < end:
        chunks = store.log_copies.chunks_from(attempt_id, rank, offset=offset, most=1)
        if not chunks:
            return
        (chunk,) = chunks
        until = min(chunk.end, end)
        # The content of a chunk that stands for other bytes is the line that names them.
        if len(chunk.content) != chunk.end - chunk.start:
            yield LogBytes(start=until, data=b"", freed=until - offset)
        else:
            data = chunk.content[offset - chunk.start : until - chunk.start]
            yield LogBytes(start=offset, data=data, freed=0)
        offset = until


def log_bytes(
    hook: DtrainHook,
    run: str,
    rank: RankView,
    offset: int,
    end: int | None = None,
    *,
    redactor: Redactor,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[LogBytes]:
    """Yield the bytes of a rank's log that its host has now.

    :param offset: first byte; negative = as many bytes before the end of the log
    :param end: first byte that is not read; None = all
    :param redactor: masks secrets, also those of which the bytes are a part
    :raises HostError: the host does not answer
    """
    link = hook.link(hook.store.hosts.get(rank.host))
    while end is None or offset < end:
        length = chunk_bytes if end is None else min(chunk_bytes, end - offset)
        piece = _piece(link, run, rank, offset, length, redactor)
        start = piece.offset if end is None else min(piece.offset, end)
        data = piece.data if end is None else piece.data[: end - start]
        freed = start - offset if 0 <= offset < start else 0
        yield LogBytes(start=start, data=data, freed=freed)
        offset = start + len(data)
        if not (data or freed) or offset >= piece.size:
            return


def _piece(link: HostLink, run: str, rank: RankView, offset: int, length: int, redactor: Redactor) -> Piece:
    """Return a part of a log as it is masked together with the bytes around it."""

    def read(first: int, most: int) -> Piece:
        call = link.call("read", run=run, stream=f"rank{rank.rank}.log", offset=first, length=most)
        return piece_of(rank.host, call.result(LOG_READ_S + 5), offset=first, length=most)

    margin = redactor.longest
    if offset < 0:
        offset = max(0, read(0, 0).size + offset)
    before = min(offset, margin)
    found = read(offset - before, before + length + margin)
    if before and found.offset + len(found.data) <= offset:
        # The bytes before are separated from these by some that log_limit has freed.
        found = read(offset, length + margin)
    masked = redactor.log(found.data, is_cut=True)
    begin = max(offset, found.offset)
    data = masked[begin - found.offset :][:length]
    return Piece(offset=begin, data=data, size=found.size)


def check_reach(store: Store, view: AttemptView, rank: int) -> None:
    """Check that the nodes of an attempt can still be asked. Those of a job that was given back cannot.

    :raises HostLostError: they cannot
    """
    if not view.is_external or view.allocation_state != "released":
        return
    job = store.external_jobs.of_allocation(view.allocation_id)
    where = next((one.host for one in store.events.ranks(view.attempt_id) if one.rank == rank), "its node")
    number = f"Job {job.number}" if job is not None and job.number is not None else "Its job"
    raise HostLostError(where, f"{number} was given back, and {where} with it.")


def attempt_of(hook: DtrainHook, trial_id: int, number: int | None) -> AttemptView:
    """Return an attempt of a trial.

    :param number: None = the latest
    :raises NotFoundError: the trial has no such attempt
    """
    trial = hook.store.trials.get(trial_id)
    if number is None:
        return hook.store.attempts.get(trial.attempt_id)
    for view in hook.store.attempts.of_trial(trial_id):
        if view.number == number:
            return view
    raise NotFoundError(f"Trial {trial_id} has no attempt {number}; it has {trial.attempts}.")


def rank_of(hook: DtrainHook, view: AttemptView, number: int) -> RankView:
    """Return a rank of an attempt.

    :raises NotFoundError: it has none with this number
    """
    ranks = hook.store.events.ranks(view.attempt_id)
    for rank in ranks:
        if rank.rank == number:
            return rank
    known = f"it has 0 to {len(ranks) - 1}" if ranks else "none of its ranks is known"
    raise NotFoundError(f"Attempt {view.number} has no rank {number}; {known}.")
