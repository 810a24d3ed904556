"""The cluster page."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import Cluster, Holder, Host, PoolSummary, Slot, SlotState
from airflow_provider_dtrain.api.rows import ERRORS, task_ref
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.store.records.pages import HolderView, HostCells, PoolCounts, SlotCell

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster", **guarded(Rule.READ))
def cluster(call: CallDep, pool: str | None = None, host: str | None = None) -> Cluster:
    """Return pools, hosts, slots and their holders.

    :param host: only this host, with the devices of its slots
    """
    state = call.store.cluster_page.state(pool, host)
    return Cluster(
        at=call.store.db.now(),
        pools=[_pool(one) for one in state.pools],
        holders={str(key): _holder(call, one) for key, one in state.holders.items()},
        hosts=[host_of(one, with_devices=host is not None) for one in state.hosts],
    )


def _pool(counts: PoolCounts) -> PoolSummary:
    names = ("name", "slot_type", "hosts", "slots", "free", "held", "waiting")
    unavailable = counts.slots - counts.free - counts.held
    return PoolSummary(unavailable=unavailable, **{name: getattr(counts, name) for name in names})


def _holder(call: Call, view: HolderView) -> Holder:
    is_hidden = call.dags is not None and view.key.dag_id not in call.dags
    name = None
    if view.trial_id is not None and not is_hidden:
        name = call.names.of_trial(
            call.store, view.config_id, view.trial_number or 0, view.hparams, is_drawn=view.is_drawn
        )
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


def host_of(view: HostCells, *, with_devices: bool) -> Host:
    """Return a host with its slots by index."""
    names = ("name", "pool", "state", "state_reason", "state_since", "slot_type", "device_name")
    return Host(
        slots=[_slot(cell, with_device=with_devices) for cell in view.cells],
        **{name: getattr(view, name) for name in names},
    )


_STATES: Mapping[str, SlotState] = {"stuck": "stuck", "busy_elsewhere": "busy_elsewhere"}


def _slot(cell: SlotCell, *, with_device: bool) -> Slot:
    if cell.allocation_id is not None:
        state: SlotState = "held"
    else:
        state = "disabled" if not cell.enabled else _STATES.get(cell.state, "free")
    return Slot(
        state=state,
        holder=cell.allocation_id,
        disabled=not cell.enabled and cell.allocation_id is not None,
        device=cell.device if with_device else None,
        note=cell.note,
    )
