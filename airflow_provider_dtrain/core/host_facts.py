"""Facts of a probe, as users see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.clock_offset import offset_text
from airflow_provider_dtrain.core.documents import JsonObject


def summary(facts: Mapping[str, Any]) -> JsonObject:
    """Return the facts that are shown to the user."""
    gpus = facts.get("gpus") or []
    interfaces = [f"{one['name']} {one.get('address') or ''}".strip() for one in facts.get("interfaces") or []]
    return {
        "python": f"{facts.get('python')} ({facts.get('executable')})",
        "torch": facts.get("torch") or "missing",
        "gpus": [f"{gpu['name']} {byte_size(gpu.get('memory_bytes'))}" for gpu in gpus] or "none",
        "cpus": facts.get("cpu_count"),
        "memory": byte_size(facts.get("memory_bytes")),
        "disk_free": byte_size(facts.get("disk_free_bytes")),
        "interfaces": interfaces,
        "container_runtime": facts.get("container_runtime") or "none",
        "clock_offset": clock_text(facts),
    }


def clock_text(facts: Mapping[str, Any]) -> str:
    """Return the offset of a host's clock in the facts of a probe."""
    return offset_text(facts.get("clock_offset_s"), facts.get("clock_uncertainty_s"))
