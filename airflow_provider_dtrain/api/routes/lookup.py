"""The way from a DAG run or task instance to its experiments and trials."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import NUMBER_MOST, AirflowId
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.lookup import FoundExperiment, FoundTrial, Lookup
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.store.queries.names import name_of

router = APIRouter(route_class=StoreRoute, tags=["lookup"], responses=ERRORS)


@router.get("/lookup", **guarded(Rule.READ))
def lookup(
    call: CallDep,
    dag_id: AirflowId,
    run_id: AirflowId,
    task_id: AirflowId | None = None,
    map_index: Annotated[int | None, Query(ge=-1, le=NUMBER_MOST)] = None,
) -> Lookup:
    """Return the experiments of a DAG run, and its trials or those of one task instance, newest first."""
    if not call.access.may_read(dag_id):
        return Lookup(experiments=[], trials=[])
    store = call.store
    found = store.lookup.trials(dag_id, run_id, task_id, map_index)
    names = ("trial_id", "experiment_id", "state", "is_current")
    return Lookup(
        experiments=[
            FoundExperiment(experiment_id=one.experiment_id, name=one.name, state=one.state)
            for one in store.lookup.experiments(dag_id, run_id)
        ],
        trials=[
            FoundTrial(
                **{name: getattr(one, name) for name in names},
                name=name_of(
                    store,
                    one.config_id,
                    one.number,
                    one.hparams if one.is_drawn else None,
                    (one.key.task_id, one.key.map_index),
                ),
                task_id=one.key.task_id,
                map_index=one.key.map_index,
            )
            for one in found
        ],
    )
