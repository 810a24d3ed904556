"""New probes of hosts, whose results are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.launch.requirements import start_problem
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.engine.operations.probe_report import key_warnings, probe_host, warnings
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.hooks.hosts import slots_of_gpus_found

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord
    from airflow_provider_dtrain.store.store import Store

#: Hosts that are probed at the same time.
PARALLEL_PROBES = 8


def probe_hosts(hook: DtrainHook, records: Sequence[HostRecord], by: str) -> list[JsonObject]:
    """Probe hosts again, and return a row for each.

    :param by: the user
    """
    with ThreadPoolExecutor(PARALLEL_PROBES) as threads:
        return list(threads.map(lambda record: probe_again(hook, record, by), records))


def probe_again(hook: DtrainHook, record: HostRecord, by: str) -> JsonObject:
    """Probe one host, store the results and return a row. ``problem`` is None or a message.

    :param by: the user
    """
    store = hook.store
    problem = None
    facts: JsonObject = {}
    try:
        link, facts = probe_host(hook, record)
    except DtrainError as error:
        problem = str(error)
        # Draining and disabling are decisions of a user. A failed probe does not undo them.
        if record.state == "ready":
            store.hosts.set_state(record.name, HostState.UNREACHABLE, problem, by=by)
    else:
        try:
            problem = _store_findings(store, record, link, facts)
            asyncio.run(recover(hook, host=record.name))
        except DtrainError as error:
            problem = str(error)
        fault = start_problem(facts)
        if fault and record.state in ("ready", "unreachable"):
            store.hosts.set_state(record.name, HostState.UNREACHABLE, fault, by=by)
        elif not fault and record.state in ("unreachable", "lost"):
            store.hosts.set_state(record.name, HostState.READY, by=by)
    found = store.hosts.get(record.name)
    row = {key: facts.get(key) for key in ("python", "torch", "clock_offset_s", "clock_uncertainty_s")}
    stores = found.other_stores(store.store_id)
    return {"host": record.name, "state": found.state, **row, "other_stores": stores, "problem": problem}


def _store_findings(store: Store, record: HostRecord, link: HostLink, facts: JsonObject) -> str | None:
    """Store the results of a probe and return problems that a user should fix."""
    slots, problem = _devices(record, facts)
    hello = link.hello
    store.hosts.update_facts(
        record.name,
        facts,
        machine_id=hello.machine_id,
        boot_id=hello.boot_id,
        pid_ns=str(hello.pid_ns),
        host_key=record.host_key,
        slots=slots,
    )
    _free_slots(store, record, link)
    found = [*key_warnings(record), *(message for message in warnings(record.name, facts) if "PyTorch" not in message)]
    return problem or "; ".join(found) or None


def _devices(record: HostRecord, facts: JsonObject) -> tuple[tuple[SlotRecord, ...] | None, str | None]:
    """Return the GPUs found now, one per slot of the host. None leaves the slots unchanged.

    The second value is the problem, if fewer GPUs than slots were found.
    """
    if record.slot_type != "cuda":
        return None, None
    if (slots := slots_of_gpus_found(record.slots, facts)) is None:
        found = len(facts.get("gpus") or [])
        return None, (
            f"{len(record.slots)} GPUs were registered, {found} are found now. Run nvidia-smi on the host. Disable "
            "the missing slots (airflow dtrain hosts disable --slot), or remove the host and add it again."
        )
    return slots, None


def _free_slots(store: Store, record: HostRecord, link: HostLink) -> None:
    """Make slots ready again that another process held and has released."""
    doubtful = [slot for slot in record.slots if slot.state != "ready"]
    if not doubtful:
        return
    asked = [{"slot": slot.index, "device": slot.device} for slot in doubtful]
    locks = link.call("status", slots=asked).result(35.0).get("slots") or {}
    for slot in doubtful:
        lock = locks.get(str(slot.index))
        if isinstance(lock, dict) and lock.get("held_by") is None:
            store.hosts.mark_slot(record.name, slot.index, "ready")
