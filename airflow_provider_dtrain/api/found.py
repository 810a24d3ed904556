"""Experiments and trials by id: an id that the user may not read does not exist for them."""

from __future__ import annotations

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.core.lifecycle.trial_words import units_of
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.records.pages import ExperimentEntry, TrialEntry
from airflow_provider_dtrain.store.records.trials import Config

#: Largest id that a database can hold.
ID_MOST = 2**63 - 1


def experiment_entry(call: Call, experiment_id: int) -> ExperimentEntry:
    """Return an experiment.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    missing = f"There is no experiment {experiment_id}. See: airflow dtrain experiments list"
    entry = call.store.experiment_table.get(experiment_id) if 0 < experiment_id <= ID_MOST else None
    if entry is None or not call.access.may_read(entry.view.dag_id):
        raise NotFoundError(missing)
    return entry


def trial_entry(call: Call, trial_id: int) -> TrialEntry:
    """Return a trial.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    return trial_entries(call, [trial_id])[0]


def trial_entries(call: Call, trial_ids: list[int]) -> list[TrialEntry]:
    """Return trials in the order of their ids here.

    :raises NotFoundError: there is none with one of the ids, or the user may not read its DAG
    """
    known = [one for one in trial_ids if 0 < one <= ID_MOST]
    found = {entry.view.trial_id: entry for entry in call.store.trial_table.some(known)}
    for trial_id in trial_ids:
        if trial_id not in found or not call.access.may_read(found[trial_id].view.key.dag_id):
            raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")
    return [found[trial_id] for trial_id in trial_ids]


def config_of(call: Call, entry: ExperimentEntry) -> Config | None:
    """Return the configuration of an experiment, None while it has neither plan nor trial."""
    config_id = call.store.experiment_table.config_id(entry.view.experiment_id)
    return None if config_id is None else call.store.configs.get(config_id)


def units_in(config: Config | None) -> str:
    """Return the unit of the lengths of training in a configuration."""
    return units_of(None if config is None else config.document.get("searcher"))
