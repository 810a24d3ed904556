"""Fit of a configuration: whether a pool can run a trial of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine.submission.job_outlook import refusal

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, Unplaceable
    from airflow_provider_dtrain.store.records.trials import HostRecord, SlotView
    from airflow_provider_dtrain.store.store import Store

#: Id of the request that a configuration would make.
ASKED = "config"


def never_fits(store: Store, pool: str, config: ExperimentConfig) -> str | None:
    """Return why a pool can never run a trial, or None if it can.

    :raises NotFoundError: the pool does not exist
    """
    from airflow_provider_dtrain.core.scheduling.model import Unplaceable

    of_pool = store.pools.get(pool)
    if of_pool.is_external:
        wanted = config.resources
        return refusal(store, of_pool, wanted.slots_per_trial, is_single_host=wanted.is_single_host)
    found = placed(store, pool, request_of(config))
    return found.reason if isinstance(found, Unplaceable) and found.never else None


def request_of(config: ExperimentConfig) -> GangRequest:
    """Return the request that a trial of a configuration makes."""
    from airflow_provider_dtrain.core.scheduling.model import GangRequest

    wanted = config.resources
    return GangRequest(
        ASKED,
        slots=wanted.slots_per_trial,
        priority=wanted.priority,
        is_single_host=wanted.is_single_host,
        sequence=sys.maxsize,
        group=ASKED,
        weight=wanted.weight,
        max_slots=wanted.max_slots,
        max_runtime_s=config.max_runtime,
        is_preemptible=bool(config.preemptible),
    )


def placed(store: Store, pool: str, request: GangRequest) -> Placement | Unplaceable:
    """Return where a request would be placed now, or why not."""
    from airflow_provider_dtrain.core.scheduling.placement import place

    options = store.pools.get(pool).options
    slots: dict[str, list[SlotView]] = {}
    for slot in store.hosts.slots(pool):
        slots.setdefault(slot.host, []).append(slot)
    hosts = [_host(record, slots.get(record.name, [])) for record in store.hosts.list(pool)]
    return place(request, hosts, allow_heterogeneous=options.allow_heterogeneous, fit=options.fit)


def _host(record: HostRecord, slots: list[SlotView]) -> Host:
    from airflow_provider_dtrain.core.scheduling.model import Host

    count = max((slot.index for slot in slots), default=-1) + 1
    known = {slot.index for slot in slots}
    return Host(
        record.name,
        slots=count,
        held=frozenset(slot.index for slot in slots if slot.allocation_id is not None),
        state=record.state,
        disabled=frozenset(slot.index for slot in slots if not slot.enabled) | (frozenset(range(count)) - known),
        blocked=frozenset(slot.index for slot in slots if slot.state != "ready"),
        holders=tuple((slot.index, f"trial {slot.trial_id}") for slot in slots if slot.trial_id is not None),
    )
