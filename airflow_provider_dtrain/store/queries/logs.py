"""Logs of ranks: their ends, from the offset of a reader on."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.logs import LogPiece
from airflow_provider_dtrain.store.queries.ranks import attempt_of
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import LogTail
    from airflow_provider_dtrain.store.store import Store


def log_piece(store: Store, rights: Rights, trial_id: int, *, attempt: int | None, rank: int, offset: int) -> LogPiece:
    """Return the bytes of a rank's log behind an offset that the store has. Many followers ask each second.

    :param attempt: its number; None = the latest
    :param offset: offset of the reader; bytes between it and the piece's start are on the host only
    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt or rank
    """
    trial = readable_trial(store, rights, trial_id)
    rights.require_logs(trial.key.dag_id)
    # The state is read before the log: an attempt that is over then has its whole log in the store.
    view = attempt_of(store, trial, attempt)
    tails = store.events.log_tails(view.attempt_id, beyond=offset)
    found = next((one for one in tails if one.rank == rank), None)
    if found is None and tails:
        raise NotFoundError(f"Attempt {view.number} has no rank {rank}; it has 0 to {len(tails) - 1}.")
    start, content = _behind(found, offset)
    return LogPiece(
        attempt=view.number,
        is_started=view.run is not None,
        is_over=view.ended_at is not None,
        state=view.state,
        latest=trial.attempts,
        reason=view.reason or None,
        ranks=len(tails),
        start=start,
        content=base64.b64encode(content).decode(),
    )


def _behind(tail: LogTail | None, offset: int) -> tuple[int | None, bytes]:
    if tail is None:
        return offset, b""
    if tail.end is None:
        return None, tail.content
    # The end lies before that of earlier content if a host has lost the file.
    content = tail.content[-tail.end :] if tail.end else b""
    start = tail.end - len(content)
    if offset >= tail.end:
        return offset, b""
    return max(start, offset), content[max(offset - start, 0) :]
