"""Latest values of the metrics of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import NON_FINITE
from airflow_provider_dtrain.store.database.run_tables import latest_metrics

#: Most names of a trial that are kept, and characters of one, as in the training library.
NAMES_MOST: Final = 1000
NAME_CHARS: Final = 256
_GROUPS: Final = ("validation", "training")

_OF_TRIAL = sa.select(latest_metrics).where(latest_metrics.c.trial_id == sa.bindparam("trial"))
_INSERT = postgresql.insert(latest_metrics)
# Both databases spell ON CONFLICT alike.
_KEEP = _INSERT.on_conflict_do_update(
    index_elements=["trial_id"],
    set_={"validation": _INSERT.excluded.validation, "training": _INSERT.excluded.training},
)


def keep_latest(conn: Connection, trial_id: int, reports: Sequence[Mapping[str, Any]]) -> None:
    """Keep the values of reports of rank 0 as the latest ones of their metrics.

    :param reports: rows of the table ``metrics``, in the order of their arrival
    """
    row = statements.first(conn, _OF_TRIAL, {"trial": trial_id})
    before: dict[str, dict[str, Any]] = {group: {} if row is None else getattr(row, group) for group in _GROUPS}
    after = {group: dict(values) for group, values in before.items()}
    for report in reports:
        _merge(after["validation" if report["metric_group"] == "validation" else "training"], report["metrics"])
    if after != before or row is None:
        statements.write(conn, [(_KEEP, [{"trial_id": trial_id, **after}])])


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_named = isinstance(value, str) and value in NON_FINITE
        has_room = name in into or len(into) < NAMES_MOST
        if (is_number or is_named) and len(name) <= NAME_CHARS and has_room:
            into[name] = value
