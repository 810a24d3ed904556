"""Ranks and hosts of an attempt in the sentences about its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.rank_text import clock, ranks_text
from airflow_provider_dtrain.engine.attempt.stream import ranks_of
from airflow_provider_dtrain.errors import (
    ExecutionTimeoutError,
    HostLostError,
    HostSilentError,
    TaskEndedError,
    TrialKilledError,
)

if TYPE_CHECKING:
    from airflow_provider_dtrain.errors import DtrainError
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Hosts that a sentence names.
_MOST_HOSTS = 4


def where_text(view: AttemptView) -> str:
    """Return the time and what the attempt was doing: ``at 10:00:05 UTC, while its 2 ranks ran on 'a' and 'b'``."""
    now = clock(time.time())
    if view.started_at is None:
        phase = "while it waited for slots" if view.granted_at is None else "before its ranks were started"
        return f"at {now}, {phase}"
    count = sum(len(ranks_of(view, host)) for host in view.placement)
    names = [f"'{host}'" for host in sorted(view.placement)]
    more = len(names) - _MOST_HOSTS
    hosts = ", ".join(names[:_MOST_HOSTS]) + (f" and {more} more hosts" if more > 0 else "")
    return f"at {now}, while its {count} {'rank' if count == 1 else 'ranks'} ran on {hosts}"


def killed_by_user(view: AttemptView, by: str) -> TrialKilledError:
    """Return the error of a trial that a user killed."""
    return TrialKilledError(f"The trial was killed by {by} {where_text(view)}. Clear its task to run it again.")


def ended_by_airflow(view: AttemptView) -> TaskEndedError:
    """Return the error of a trial whose task Airflow ended."""
    return TaskEndedError(
        f"The trial was killed by Airflow {where_text(view)}: the task was marked, cleared or ended there. "
        "Airflow's audit log says by whom."
    )


def ended_by_time_limit(view: AttemptView) -> ExecutionTimeoutError:
    """Return the error of a trial whose task has no time left."""
    return ExecutionTimeoutError(
        f"The trial was ended {where_text(view)}: the task's execution_timeout has passed. Its checkpoints are kept. "
        "Raise execution_timeout, or train for less."
    )


def with_ranks(view: AttemptView, error: DtrainError) -> DtrainError:
    """Return the error of a lost host with its ranks and the next step. Other errors stay as they are."""
    if not isinstance(error, HostLostError):
        return error
    head, newline, rest = str(error).partition("\n")
    ranks = ranks_of(view, error.host)
    ran = f"; {ranks_text(ranks)} ran there" if ranks else ""
    if view.is_external:
        advice = f"See its job: airflow dtrain trials describe {view.trial_id}"
    elif isinstance(error, HostSilentError):
        advice = f"Probe it: airflow dtrain hosts probe {error.host}"
    else:
        advice = "The journal of that host says why (journalctl)."
    return type(error)(error.host, f"{head.rstrip(' .')}{ran}. {advice}{newline}{rest}")
