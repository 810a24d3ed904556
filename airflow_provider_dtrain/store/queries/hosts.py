"""Hosts with their slots and holders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.resources.hosts import Cluster, ClusterHost, Holder, HostDetails
from airflow_provider_dtrain.store.pages.cluster_hosts import host_of
from airflow_provider_dtrain.store.queries.config_facts import config_facts
from airflow_provider_dtrain.store.queries.jobs import facts_of, live_jobs
from airflow_provider_dtrain.store.queries.names import name_of
from airflow_provider_dtrain.store.queries.tasks import task_ref

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.pages import Dags, HolderMark, HolderView, HostMark
    from airflow_provider_dtrain.store.records.trials import HostRecord
    from airflow_provider_dtrain.store.store import Store


def cluster_details(store: Store, rights: Rights, pool: str | None = None, host: str | None = None) -> Cluster:
    """Return pools, hosts with their details and devices, and holders.

    :param pool: only this pool; None = all
    :param host: only this host, and its pool counted as a whole; None = all
    """
    dags = rights.readable(store)
    state = store.cluster_page.state(pool, host, with_devices=True)
    of_store = store.pools.list()
    details = _details(store, rights, pool, host)
    visible = visible_holders(dags, state.holders)
    holders = store.cluster_page.holders([mark.allocation_id for mark in state.holders])
    config_facts(store, {one.config_id for one in holders if one.config_id is not None})
    return Cluster(
        at=store.db.now(),
        pools=list(state.pools),
        hosts=[replace(shown_host(mark, visible), details=details.get(mark.name)) for mark in state.hosts],
        holders={str(one.mark.allocation_id): holder_of(store, dags, one) for one in holders},
        schedulers=facts_of(of_store, pool),
        jobs=live_jobs(store, of_store, pool),
    )


def _details(store: Store, rights: Rights, pool: str | None, host: str | None) -> dict[str, HostDetails]:
    records = store.hosts.list(pool, host)
    may_change = rights.may_change(records)
    return {
        one.name: HostDetails(
            conn_id=one.conn_id if one.name in may_change else None,
            python=_text(one.facts.get("python")),
            torch=_text(one.facts.get("torch")),
            environments=_total(one, "count"),
            environments_bytes=_total(one, "bytes"),
            other_stores=one.other_stores(store.store_id),
        )
        for one in records
    }


def _total(record: HostRecord, name: str) -> int:
    return int((record.facts.get("environments") or {}).get(name, 0))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def is_hidden(dags: Dags, mark: HolderMark) -> bool:
    """Return whether a gang is of a DAG that the user may not read."""
    return dags is not None and mark.dag_id not in dags


def visible_holders(dags: Dags, marks: Sequence[HolderMark]) -> frozenset[int] | None:
    """Return the gangs whose DAGs the user may read, None for all."""
    return None if dags is None else frozenset(mark.allocation_id for mark in marks if mark.dag_id in dags)


def shown_host(mark: HostMark, visible: frozenset[int] | None) -> ClusterHost:
    """Return a host. The note of a slot may name its holder, or a former one.

    :param visible: gangs whose DAGs the user may read; None = all
    """
    host = host_of(mark)
    if visible is None or not mark.cells:
        return host
    slots = [replace(one, note="") if one.note and one.allocation_id not in visible else one for one in host.slots]
    return replace(host, slots=slots)


def holder_of(store: Store, dags: Dags, view: HolderView, name: str | None = None) -> Holder:
    """Return a gang that holds slots, without its names if the user may not read its DAG.

    :param name: of its trial, if the caller has it
    """
    hidden = is_hidden(dags, view.mark)
    if hidden or view.trial_id is None:
        name = None
    elif name is None:
        name = name_of(store, view.config_id, view.trial_number or 0, _hparams(view), view.trial_task)
    return Holder(
        allocation_id=view.mark.allocation_id,
        trial_id=None if hidden else view.trial_id,
        experiment_id=None if hidden else view.experiment_id,
        experiment="" if hidden else view.experiment,
        trial_name=name,
        task=None if hidden else task_ref(view.key),
        since=view.since,
        slots=view.mark.slots,
        state=view.mark.state,
        is_hidden=hidden,
    )


def _hparams(view: HolderView) -> Mapping[str, Any] | None:
    values: dict[str, Any] | None = json.loads(view.hparams) if view.is_drawn and view.hparams is not None else None
    return values
