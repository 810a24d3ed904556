"""The cluster page."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.cluster_rows import ClusterRecord, host_record
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import Cluster, Holder, PoolSummary
from airflow_provider_dtrain.api.prepared import as_json, with_fields
from airflow_provider_dtrain.api.rows import ERRORS, task_ref
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.store.records.pages import HolderMark, HolderView, PoolCounts

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster", response_model=Cluster, **guarded(Rule.READ))
def cluster(call: CallDep, pool: str | None = None, host: str | None = None) -> Any:
    """Return pools, hosts, slots and their holders.

    :param host: only this host, with the devices of its slots
    """
    version = call.store.cluster_page.version()
    rights = None if call.dags is None else sorted(call.dags)
    return call.answer(version, rights, make=lambda: _cluster(call, pool, host))


def _cluster(call: Call, pool: str | None, host: str | None) -> bytes:
    state = call.store.cluster_page.state(pool, host)
    record = ClusterRecord(
        at=call.store.db.now(),
        pools=[_pool(one) for one in state.pools],
        hosts=[host_record(one, with_devices=host is not None) for one in state.hosts],
    )
    return with_fields(dict(record), "holders", _holders(call, state.holders))


def _holders(call: Call, marks: Sequence[HolderMark]) -> dict[str, bytes]:
    """Return gangs by the id of their allocation. A gang is read once per mark."""
    keys = {mark.allocation_id: _part(call, mark) for mark in marks}
    parts = call.parts.known(keys.values())
    changed = [allocation_id for allocation_id, key in keys.items() if key not in parts]
    # A gang may change between the two reads: its part is kept by the mark that was read with it.
    views = call.store.cluster_page.holders(changed)
    new = {one.mark.allocation_id: as_json(_holder(call, one)) for one in views}
    call.parts.keep({_part(call, one.mark): new[one.mark.allocation_id] for one in views})
    found = {key: new.get(key) or parts.get(part) for key, part in keys.items()}
    return {str(key): part for key, part in found.items() if part is not None}


def _part(call: Call, mark: HolderMark) -> Hashable:
    return (call.store.store_id, _is_hidden(call, mark), mark)


def _is_hidden(call: Call, mark: HolderMark) -> bool:
    return call.dags is not None and mark.dag_id not in call.dags


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
    is_hidden = _is_hidden(call, view.mark)
    name = None
    if view.trial_id is not None and not is_hidden:
        hparams = view.hparams if view.is_drawn else None
        name = call.names.of_json(call.store, view.config_id, view.trial_number or 0, hparams)
    return Holder(
        allocation_id=view.mark.allocation_id,
        trial_id=None if is_hidden else view.trial_id,
        experiment_id=None if is_hidden else view.experiment_id,
        experiment="" if is_hidden else view.experiment,
        trial_name=name,
        task=None if is_hidden else task_ref(view.key),
        since=view.since,
        slots=view.mark.slots,
        state=view.mark.state,
        hidden=is_hidden,
    )
