"""Copies of complete logs: what is new on a host is appended to the copy in the store. Blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import LOG_READ_S
from airflow_provider_dtrain.core.logs.chunks import CHUNK_BYTES
from airflow_provider_dtrain.core.logs.clock import Sample, samples_of, within
from airflow_provider_dtrain.engine.operations.rank_log import CHUNK_BYTES as READ_BYTES
from airflow_provider_dtrain.engine.operations.rank_log import log_bytes
from airflow_provider_dtrain.engine.operations.ranks import NotWantedError
from airflow_provider_dtrain.errors import HostRefusedError
from airflow_provider_dtrain.hosts.channel.answers import piece_of
from airflow_provider_dtrain.store.log_copies import LOG_MOST_BYTES

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView, RankView

#: Most bytes of a clock file. Its supervisor keeps it shorter.
_CLOCK_BYTES = 4 << 20


def copy_log(
    hook: DtrainHook,
    view: AttemptView,
    rank: RankView,
    *,
    redactor: Redactor,
    is_wanted: Callable[[], bool] = lambda: True,
) -> int:
    """Append what a host has of a rank's log to the copy in the store, and return the end of the copy.

    While the rank runs, only whole lines are copied, so that the copy ends with a line.

    :param view: as it was before the log is read
    :param redactor: masks secrets
    :raises HostError: the host does not answer
    :raises NotWantedError: the user no longer waits
    """
    assert view.run is not None
    copies = hook.store.log_copies
    known = copies.get(view.attempt_id, rank.rank)
    end = 0 if known is None else known.end
    if known is not None and known.is_complete:
        return end
    is_over = view.ended_at is not None or rank.exited_at is not None
    # Before the log: the bytes that are written meanwhile have no time yet, rather than a wrong one.
    samples = _samples(hook, view.run, rank)
    start, rest = end, b""

    def append(data: bytes) -> int:
        own = within(samples, start, start + len(data))
        return copies.append(view.attempt_id, rank.rank, start, data, samples=own).end

    for piece in log_bytes(hook, view.run, rank, end, LOG_MOST_BYTES, redactor=redactor, chunk_bytes=READ_BYTES):
        if not is_wanted():
            raise NotWantedError
        if piece.freed:
            end = append(rest) if rest else end
            freed_from = piece.start - piece.freed
            end = copies.append(view.attempt_id, rank.rank, freed_from, piece.mark, end=piece.start).end
            start, rest = piece.start, b""
        data = rest + piece.data
        whole = len(data) if len(data) - data.rfind(b"\n") > CHUNK_BYTES else data.rfind(b"\n") + 1
        if whole:
            end = append(data[:whole])
        start, rest = start + whole, data[whole:]
    if is_over:
        end = append(rest) if rest else end
        if end < LOG_MOST_BYTES:
            copies.complete(view.attempt_id, rank.rank, end)
    return end


def _samples(hook: DtrainHook, run: str, rank: RankView) -> list[Sample]:
    """Return the sizes that the log had at known times. A host that does not have them sends none."""
    link = hook.link(hook.store.hosts.get(rank.host))
    stream = f"rank{rank.rank}.clock"
    try:
        answer = link.call("read", run=run, stream=stream, offset=0, length=_CLOCK_BYTES).result(LOG_READ_S + 5)
    except HostRefusedError:
        return []
    piece = piece_of(rank.host, answer, offset=0, length=_CLOCK_BYTES)
    return samples_of(piece.data, link.clock_offset_s)
