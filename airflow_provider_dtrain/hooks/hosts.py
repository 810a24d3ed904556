"""Conversion of a probe's facts about a machine into a host record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.errors import ConfigError, Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.scheduling.model import SlotType
    from airflow_provider_dtrain.hosts.wire import Hello
    from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord

LOCAL_HOST = "local"
LOCAL_POOL = "local"


def slots_from_facts(facts: Mapping[str, Any], wanted: str) -> tuple[SlotType, tuple[SlotRecord, ...]]:
    """Return the slot type and the slots of a host.

    :param facts: answer of the ``probe`` command
    :param wanted: ``auto`` (one per GPU, else one per two cores, at least 2), ``N`` (the first N
        GPUs, or N CPU slots on a host without GPU) or ``cpu:N``
    :raises ConfigError: ``wanted`` has none of these forms, or the host has fewer GPUs
    """
    from airflow_provider_dtrain.store.records.trials import SlotRecord

    gpus = list(facts.get("gpus") or ())
    count = _count(wanted)
    if gpus and not wanted.startswith("cpu:"):
        count = len(gpus) if count is None else count
        if count > len(gpus):
            raise _bad_slots(f"{count} slots requested, the host has {len(gpus)} GPUs. Use {len(gpus)} or cpu:{count}")
        return "cuda", tuple(_gpu_slot(i, gpu) for i, gpu in enumerate(gpus[:count]))
    if count is None:
        count = max(2, int(facts.get("cpu_count") or 0) // 2)
    return "cpu", tuple(SlotRecord(index=i, device=None, device_name="CPU", memory_bytes=None) for i in range(count))


def slots_of_gpus_found(slots: Sequence[SlotRecord], facts: Mapping[str, Any]) -> tuple[SlotRecord, ...] | None:
    """Return the slots of a registered host with the GPUs that it has now, None if these are fewer than the slots.

    A slot keeps its GPU while the host has it, whatever its number there: a gang may hold the slot. A slot whose GPU is
    gone gets one that has no slot.
    """
    found = {gpu["uuid"]: gpu for gpu in facts.get("gpus") or ()}
    taken = {slot.device for slot in slots}
    spare = [gpu for uuid, gpu in found.items() if uuid not in taken]
    if len(found) < len(slots):
        return None
    return tuple(_gpu_slot(slot.index, found.get(slot.device) or spare.pop(0)) for slot in slots)


def _gpu_slot(index: int, gpu: Mapping[str, Any]) -> SlotRecord:
    from airflow_provider_dtrain.store.records.trials import SlotRecord

    return SlotRecord(index=index, device=gpu["uuid"], device_name=gpu["name"], memory_bytes=gpu["memory_bytes"])


def _count(wanted: str) -> int | None:
    if wanted == "auto":
        return None
    text = wanted.removeprefix("cpu:")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise _bad_slots(f"must be 'auto', N or 'cpu:N' (N from 1 to 4096), got {wanted!r}")
    return int(text)


def _bad_slots(message: str) -> ConfigError:
    return ConfigError([Problem(path="slots", message=message)], source="hosts add")


def host_record(name: str, *, pool: str, **fields: str | None) -> HostRecord:
    """Return the record with the fields that are needed to reach a machine.

    :param fields: of :class:`HostRecord`
    """
    from airflow_provider_dtrain.store.records.trials import HostRecord

    return HostRecord(name=name, pool=pool, slot_type="cpu", slots=(), **fields)  # type: ignore[arg-type]


def host_record_from_facts(
    name: str,
    *,
    pool: str,
    conn_id: str | None,
    facts: Mapping[str, Any],
    hello: Hello,
    slots: str = "auto",
    remote_dir: str,
    state_dir: str | None = None,
    lock_dir: str | None = None,
    python: str | None = None,
    host_key: str | None = None,
    address: str | None = None,
) -> HostRecord:
    """Return the record that ``hosts add`` stores.

    :param hello: first line of the host's follow channel; it carries the machine's identity
    :param python: interpreter that starts the supervisor; None = the one that answered
    """
    from airflow_provider_dtrain.store.records.trials import HostRecord

    slot_type, records = slots_from_facts(facts, slots)
    return HostRecord(
        name=name,
        pool=pool,
        conn_id=conn_id,
        slot_type=slot_type,
        address=address,
        python=python or hello.executable,
        remote_dir=remote_dir,
        state_dir=state_dir,
        lock_dir=lock_dir,
        host_key=host_key,
        slots=records,
        facts=dict(facts),
        machine_id=hello.machine_id,
        boot_id=hello.boot_id,
        pid_ns=str(hello.pid_ns),
    )
