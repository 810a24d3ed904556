"""Accounting of the seconds that requests wait and hold slots, across preemption, restart and pause."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.timing import SILENT_AFTER
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import CounterRow, TrialRow
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.database.tables import experiments

#: Columns that a new request inherits from the previous request of its trial, besides the counters.
KEPT_BY_REQUESTS = (
    "trial_id", "pool", "backend", "slots", "priority", "is_single_host", "on_unplaceable", "sequence",
    "submitted_at", "max_runtime_s", "preemptible", "has_checkpoint", "cost_s",
)  # fmt: skip

#: Columns of a skipped request: it keeps its place, but no slots and no hosts.
NOTHING_KEPT: Mapping[str, Any] = {"claim": None, "reserved_hosts": None, "expected": "", "expected_at": None}


def held_s(row: CounterRow, until: datetime) -> float:
    """Return the seconds that the gangs of an allocation's request have held slots.

    :param until: latest end of the current gang
    """
    now = 0.0 if row.granted_at is None else (until - row.granted_at).total_seconds()
    return float(row.held_s) + max(0.0, now)


def waited_s(row: CounterRow, until: datetime) -> float:
    """Return the seconds that an allocation's request was eligible and held no slots.

    Time in which the request was not renewed does not count.
    """
    if row.eligible_since is None:
        return float(row.waited_s)
    followed_until = min(until, row.renewed_at + SILENT_AFTER)
    counted = max(0.0, (followed_until - row.eligible_since).total_seconds())
    return float(row.waited_s) + float(counted)


def ineligible(row: CounterRow, now: datetime) -> Values:
    """Return the columns of a request whose waiting time stops to count now."""
    return {"waited_s": waited_s(row, now), "eligible_since": None}


_CONTROL_REQUEST = sa.select(experiments.c.control_request).where(experiments.c.id == sa.bindparam("experiment"))


def paused_by(conn: Connection, trial: TrialRow) -> str:
    """Return the reason of a paused request, in words.

    :param trial: row of its trial
    """
    suffix = f" by {trial.pause_requested_by}" if trial.pause_requested_by else ""
    is_whole = statements.first(conn, _CONTROL_REQUEST, {"experiment": trial.experiment_id}).control_request == "pause"
    again = f"experiments activate {trial.experiment_id}" if is_whole else f"trials activate {trial.id}"
    return f"it is paused{suffix}; resume with: airflow dtrain {again}"
