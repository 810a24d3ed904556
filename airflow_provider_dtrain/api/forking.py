"""Forks: another experiment with the configuration, code and sealed secrets of an earlier one."""

from __future__ import annotations

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.models.experiments import Fork
from airflow_provider_dtrain.store.records.pages import ExperimentEntry
from airflow_provider_dtrain.store.records.trials import Config


def fork_of(call: Call, entry: ExperimentEntry, config: Config | None) -> Fork:
    """Return whether the user can fork an experiment, and otherwise the reason."""
    if config is None:
        return Fork(possible=False, reason="It has no trial and no plan, so it has no configuration yet.")
    reason = call.access.starting.hint
    return Fork(possible=not reason, reason=reason)
