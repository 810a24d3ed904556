"""The cluster."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from fastapi import APIRouter

from airflow_provider_dtrain.api.bounds import Name, NameInPath
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.prepared import as_json, compact, with_parts
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.host_checks import HostDescription
from airflow_provider_dtrain.resources.hosts import Cluster
from airflow_provider_dtrain.store.queries.host_descriptions import host_description
from airflow_provider_dtrain.store.queries.hosts import (
    cluster_details,
    holder_of,
    is_hidden,
    shown_host,
    visible_holders,
)
from airflow_provider_dtrain.store.queries.jobs import facts_of, live_jobs
from airflow_provider_dtrain.store.records.pages import HolderMark, HolderView, HostMark

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster", response_model=Cluster, **guarded(Rule.READ))
def cluster(call: CallDep, pool: Name | None = None, host: Name | None = None, details: bool = False) -> Any:
    """Return pools, hosts, slots and their holders. Fields at their defaults are left out.

    :param details: with devices of slots, versions of programs, and connections that the user may edit
    """
    if details:
        found = cluster_details(call.store, call.access, pool, host)
        of_jobs = (found.schedulers, found.jobs)
        return call.answer(found.pools, found.holders, found.hosts, *of_jobs, make=lambda: as_json(compact(found)))
    version = call.store.cluster_page.version()
    rights = None if call.dags is None else sorted(call.dags)
    return call.answer(version, rights, make=lambda: _cluster(call, pool, host))


@router.get("/hosts/{name}", response_model=HostDescription, **guarded(Rule.READ))
def host(call: CallDep, name: NameInPath) -> Any:
    """Return a host with its slots, the facts of its last probe, and the latest results of its checks."""
    return host_description(call.store, call.access, name)


def _cluster(call: Call, pool: str | None, host: str | None) -> bytes:
    state = call.store.cluster_page.state(pool, host)
    shown = _hosts(call, state.hosts, visible_holders(call.dags, state.holders))
    pools = call.store.pools.list()
    record = {
        "at": call.store.db.now(),
        "pools": state.pools,
        "schedulers": facts_of(pools, pool),
        "jobs": live_jobs(call.store, pools, pool),
    }
    return with_parts(record, "hosts", shown, "holders", _holders(call, state.holders))


def _hosts(call: Call, marks: Sequence[HostMark], visible: frozenset[int] | None) -> list[bytes]:
    """Return hosts in the order of their marks. A host is rendered once per mark and gangs that are visible there."""
    keys = [(call.store.store_id, mark, _visible_on(mark, visible)) for mark in marks]
    parts = call.kept.known(keys)
    new: dict[Hashable, bytes] = {key: as_json(compact(shown_host(*key[1:]))) for key in keys if key not in parts}
    call.kept.keep(new)
    parts.update(new)
    return [parts[key] for key in keys]


def _visible_on(mark: HostMark, visible: frozenset[int] | None) -> frozenset[int] | None:
    """Return the visible gangs on a host whose slots may have notes. Other hosts are alike for all users."""
    if visible is None or not mark.cells:
        return None
    return frozenset(one.allocation_id for one in mark.held if one.allocation_id in visible)


def _holders(call: Call, marks: Sequence[HolderMark]) -> list[bytes]:
    """Return gangs as fields with the id of their allocation as name. A gang is read once per mark."""
    store_id, dags = call.store.store_id, call.dags
    keys = {mark.allocation_id: (store_id, is_hidden(dags, mark), mark) for mark in marks}
    parts = call.kept.known(keys.values())
    changed = [allocation_id for allocation_id, key in keys.items() if key not in parts]
    # A gang may change between the two reads: its part is kept by the mark that was read with it.
    views = call.store.cluster_page.holders(changed)
    new = {one.mark.allocation_id: _field(call, one) for one in views}
    call.kept.keep({(store_id, is_hidden(dags, one.mark), one.mark): new[one.mark.allocation_id] for one in views})
    found = (new.get(allocation_id) or parts.get(key) for allocation_id, key in keys.items())
    return [part for part in found if part is not None]


def _field(call: Call, view: HolderView) -> bytes:
    hparams = view.hparams if view.is_drawn else None
    name = call.names.of_json(call.store, view.config_id, view.trial_number or 0, hparams, view.trial_task)
    return b'"%d":%s' % (view.mark.allocation_id, as_json(holder_of(call.store, call.dags, view, name)))
