"""The cluster page."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from fastapi import APIRouter

from airflow_provider_dtrain.api.bounds import Name
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.cluster_rows import ClusterRecord, host_record
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import Cluster, Holder
from airflow_provider_dtrain.api.prepared import as_json, with_parts
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.store.pages.cluster_hosts import host_cells
from airflow_provider_dtrain.store.queries.tasks import task_ref
from airflow_provider_dtrain.store.records.pages import Dags, HolderMark, HolderView, HostMark

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster", response_model=Cluster, **guarded(Rule.READ))
def cluster(call: CallDep, pool: Name | None = None, host: Name | None = None) -> Any:
    """Return pools, hosts, slots and their holders.

    :param host: only this host, with the devices of its slots
    """
    version = call.store.cluster_page.version()
    rights = None if call.dags is None else sorted(call.dags)
    return call.answer(version, rights, make=lambda: _cluster(call, pool, host))


def _cluster(call: Call, pool: str | None, host: str | None) -> bytes:
    state = call.store.cluster_page.state(pool, host)
    record = ClusterRecord(at=call.store.db.now(), pools=list(state.pools))
    if host is None:
        shown = _hosts(call, state.hosts)
    else:
        shown = [as_json(host_record(host_cells(one), with_devices=True)) for one in state.hosts]
    return with_parts(dict(record), "hosts", shown, "holders", _holders(call, state.holders))


def _hosts(call: Call, marks: Sequence[HostMark]) -> list[bytes]:
    """Return hosts in the order of their marks. A host is rendered once per mark."""
    keys = [(call.store.store_id, mark) for mark in marks]
    parts = call.kept.known(keys)
    new: dict[Hashable, bytes] = {
        key: as_json(host_record(host_cells(key[1]), with_devices=False)) for key in keys if key not in parts
    }
    call.kept.keep(new)
    parts.update(new)
    return [parts[key] for key in keys]


def _holders(call: Call, marks: Sequence[HolderMark]) -> list[bytes]:
    """Return gangs as fields with the id of their allocation as name. A gang is read once per mark."""
    store_id, dags = call.store.store_id, call.dags
    keys = {mark.allocation_id: (store_id, _is_hidden(dags, mark), mark) for mark in marks}
    parts = call.kept.known(keys.values())
    changed = [allocation_id for allocation_id, key in keys.items() if key not in parts]
    # A gang may change between the two reads: its part is kept by the mark that was read with it.
    views = call.store.cluster_page.holders(changed)
    new = {one.mark.allocation_id: _field(call, one) for one in views}
    call.kept.keep({(store_id, _is_hidden(dags, one.mark), one.mark): new[one.mark.allocation_id] for one in views})
    found = (new.get(allocation_id) or parts.get(key) for allocation_id, key in keys.items())
    return [part for part in found if part is not None]


def _field(call: Call, view: HolderView) -> bytes:
    return b'"%d":%s' % (view.mark.allocation_id, as_json(_holder(call, view)))


def _is_hidden(dags: Dags, mark: HolderMark) -> bool:
    return dags is not None and mark.dag_id not in dags


def _holder(call: Call, view: HolderView) -> Holder:
    is_hidden = _is_hidden(call.dags, view.mark)
    name = None
    if view.trial_id is not None and not is_hidden:
        hparams = view.hparams if view.is_drawn else None
        name = call.names.of_json(call.store, view.config_id, view.trial_number or 0, hparams, view.trial_task)
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
