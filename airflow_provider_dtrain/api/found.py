"""Experiments and trials by id: an id that the user may not read does not exist for them."""

from __future__ import annotations

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.core.lifecycle.trial_text import units_of
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.queries.rights import ID_MOST
from airflow_provider_dtrain.store.queries.trials import require_all
from airflow_provider_dtrain.store.records.pages import ExperimentEntry, ExperimentPlan, TrialHead
from airflow_provider_dtrain.store.records.trials import Config


def experiment_entry(call: Call, experiment_id: int) -> ExperimentEntry:
    """Return an experiment.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    missing = f"There is no experiment {experiment_id}. See: airflow dtrain experiments list"
    entry = call.store.experiment_table.get(experiment_id) if 0 < experiment_id <= ID_MOST else None
    if entry is None or not call.access.may_read(entry.view.dag_id):
        raise NotFoundError(missing)
    return entry


def experiment_plan(call: Call, experiment_id: int) -> ExperimentPlan:
    """Return DAG, plan and metric of an experiment. It costs a tenth of :func:`experiment_entry`.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    plan = call.store.experiment_table.plan(experiment_id) if 0 < experiment_id <= ID_MOST else None
    if plan is None or not call.access.may_read(plan.dag_id):
        raise NotFoundError(f"There is no experiment {experiment_id}. See: airflow dtrain experiments list")
    return plan


def readable_trials(call: Call, trial_ids: list[int]) -> list[TrialHead]:
    """Return states and names of trials in the order of their ids here.

    :raises NotFoundError: there is none with one of the ids, or the user may not read its DAG
    """
    heads = call.store.trial_table.heads([one for one in trial_ids if 0 < one <= ID_MOST])
    dags = {dag_id for dag_id in {one.dag_id for one in heads} if call.access.may_read(dag_id)}
    require_all(trial_ids, {one.trial_id for one in heads if one.dag_id in dags})
    return heads


def plan_config(call: Call, plan: ExperimentPlan) -> Config | None:
    """Return the configuration of an experiment, None while it has neither plan nor trial."""
    return None if plan.config_id is None else call.store.configs.get(plan.config_id)


def config_of(call: Call, entry: ExperimentEntry) -> Config | None:
    """Return the configuration of an experiment, None while it has neither plan nor trial."""
    config_id = call.store.experiment_table.config_id(entry.view.experiment_id)
    return None if config_id is None else call.store.configs.get(config_id)


def units_in(config: Config | None) -> str:
    """Return the unit of the lengths of training in a configuration."""
    return units_of(None if config is None else config.document.get("searcher"))
