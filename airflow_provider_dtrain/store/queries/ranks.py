"""Processes of gangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.ranks import AttemptRanks, RankRow
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import AttemptView, RankView, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Most characters of an error.
ERROR_CHARS: Final = 10_000


def ranks_of(
    store: Store, rights: Rights, trial_id: int, *, attempt: int | None = None, logs: bool = False
) -> AttemptRanks:
    """Return the processes of an attempt. Their errors are for users who may read task logs.

    :param attempt: its number; None = the latest
    :param logs: with the ends of their logs, which only such users may read
    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt
    """
    trial = readable_trial(store, rights, trial_id)
    if logs:
        rights.require_logs(trial.key.dag_id)
    view = attempt_of(store, trial, attempt)
    with_errors = logs or rights.may_read_logs(trial.key.dag_id)
    rows = [_row(one, with_error=with_errors, with_log=logs) for one in store.events.ranks(view.attempt_id)]
    return AttemptRanks(attempt=view.number, rows=rows)


def attempt_of(store: Store, trial: TrialView, number: int | None) -> AttemptView:
    """Return an attempt of a trial by its number, None for the latest.

    :raises NotFoundError: there is no such attempt
    """
    if number in (None, trial.attempts):
        return store.attempts.get(trial.attempt_id)
    for view in store.attempts.of_trial(trial.trial_id):
        if view.number == number:
            return view
    raise NotFoundError(f"Trial {trial.trial_id} has no attempt {number}; it has {trial.attempts}.")


def _row(view: RankView, *, with_error: bool, with_log: bool) -> RankRow:
    return RankRow(
        rank=view.rank,
        host=view.host,
        local_rank=view.local_rank,
        slot=view.slot if view.slot >= 0 else None,
        pid=view.pid,
        exit_code=view.exit_code,
        exited_at=view.exited_at,
        error=_message(view.error) if with_error else None,
        sent_signal=view.sent_signal,
        log_tail=view.log_tail if with_log else "",
    )


def _message(error: Mapping[str, Any] | None) -> str | None:
    message = (error or {}).get("message")
    return None if message is None else str(message)[:ERROR_CHARS]
