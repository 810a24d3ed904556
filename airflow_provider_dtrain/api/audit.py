"""Entries of Airflow's audit log for actions of pages, as Airflow's own routes write them."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.log import Log
from airflow.utils.session import create_session

from airflow_provider_dtrain.store.records.trials import TrialKey

#: Prefix of the names of events.
PREFIX = "dtrain_"


def log_action(event: str, user: str, key: TrialKey | None = None, **extra: Any) -> None:
    """Write an entry of Airflow's audit log. It is committed before the action, whatever the action's outcome.

    :param event: name of the action
    :param key: the task instance that it concerns
    :param extra: ids and values of the request; never a configuration, which may hold secrets
    """
    of: dict[str, Any] = {}
    if key is not None:
        of = {name: value for name in ("dag_id", "run_id", "task_id") if (value := getattr(key, name))}
    with create_session() as session:
        session.add(
            Log(
                event=f"{PREFIX}{event}",
                task_instance=None,
                owner=user,
                owner_display_name=user,
                extra=json.dumps(extra, default=str),
                **of,
            )
        )
