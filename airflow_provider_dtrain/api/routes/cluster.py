"""The cluster page."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.cluster_rows import ClusterRecord, host_record
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import Cluster, Holder, PoolSummary
from airflow_provider_dtrain.api.rows import ERRORS, task_ref
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.store.records.pages import HolderView, PoolCounts

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster", response_model=Cluster, **guarded(Rule.READ))
def cluster(call: CallDep, pool: str | None = None, host: str | None = None) -> Any:
    """Return pools, hosts, slots and their holders.

    :param host: only this host, with the devices of its slots
    """
    version = call.store.cluster_page.version()
    rights = None if call.dags is None else sorted(call.dags)
    return call.answer(version, rights, make=lambda: _cluster(call, pool, host))


def _cluster(call: Call, pool: str | None, host: str | None) -> ClusterRecord:
    state = call.store.cluster_page.state(pool, host)
    return ClusterRecord(
        at=call.store.db.now(),
        pools=[_pool(one) for one in state.pools],
        holders={str(key): _holder(call, one) for key, one in state.holders.items()},
        hosts=[host_record(one, with_devices=host is not None) for one in state.hosts],
    )


def _pool(counts: PoolCounts) -> PoolSummary:
    return PoolSummary(
        name=counts.name,
        slot_type=counts.slot_type,
        hosts=counts.hosts,
        slots=counts.slots,
        free=counts.free,
        held=counts.held,
        unavailable=counts.slots - counts.free - counts.held,
        waiting=counts.waiting,
    )


def _holder(call: Call, view: HolderView) -> Holder:
    is_hidden = call.dags is not None and view.key.dag_id not in call.dags
    name = None
    if view.trial_id is not None and not is_hidden:
        hparams = view.hparams if view.is_drawn else None
        name = call.names.of_json(call.store, view.config_id, view.trial_number or 0, hparams)
    return Holder(
        allocation_id=view.allocation_id,
        trial_id=None if is_hidden else view.trial_id,
        experiment_id=None if is_hidden else view.experiment_id,
        experiment="" if is_hidden else view.experiment,
        trial_name=name,
        task=None if is_hidden else task_ref(view.key),
        since=view.since,
        slots=view.slots,
        state=view.state,
        hidden=is_hidden,
    )
