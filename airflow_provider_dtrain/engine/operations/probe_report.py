"""Answers to a probe, whose texts are made harmless, because hosts are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.host_facts import clock_text
from airflow_provider_dtrain.core.launch.requirements import OLDEST_TORCH, dotted, is_older
from airflow_provider_dtrain.hosts.transport.registry import host_keys

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import HostRecord

PROBE_TIMEOUT_S = 30.0
#: A larger offset distorts leases and time limits. NTP keeps hosts within a few milliseconds.
CLOCK_LIMIT_S = 2.0
LOW_DISK_BYTES = 2**30
_MOST_CHARS = 500


def probe_host(hook: DtrainHook, record: HostRecord) -> tuple[HostLink, JsonObject]:
    """Return the open channel to a host and the facts that it reports about itself.

    :raises HostError: it cannot be reached, or its answer is invalid
    :raises EnvironmentMissingError: it has no usable interpreter
    """
    link = hook.link(record)
    facts = _harmless(link.call("probe", timeout_s=PROBE_TIMEOUT_S).result(PROBE_TIMEOUT_S + 5))
    link.measure_clock(timeout_s=PROBE_TIMEOUT_S)
    facts["clock_offset_s"] = round(link.clock_offset_s, 3)
    # At least the last digit of the offset.
    facts["clock_uncertainty_s"] = max(0.001, round(link.clock_uncertainty_s, 3))
    return link, facts


def key_warnings(record: HostRecord) -> list[str]:
    """Return warnings about the host key settings of a host's connection."""
    keys = host_keys(record.conn_id)
    warning = None if keys is None else keys.warning()
    return [warning] if warning else []


def _harmless(value: Any) -> Any:
    """Return the facts of a probe with every text cut and free of control characters."""
    if isinstance(value, str):
        return escaped(value)[:_MOST_CHARS]
    if isinstance(value, Mapping):
        return {escaped(str(key)): _harmless(item) for key, item in value.items()}
    return [_harmless(item) for item in value] if isinstance(value, list) else value


def is_clock_wrong(facts: Mapping[str, Any]) -> bool:
    """Return whether a host's clock is certainly too far from the one here."""
    apart_s: float = abs(facts.get("clock_offset_s") or 0.0) - (facts.get("clock_uncertainty_s") or 0.0)
    return apart_s > CLOCK_LIMIT_S


def lock_problem(facts: Mapping[str, Any]) -> str | None:
    """Return why a host's slot locks protect one account only.

    None means that they protect all accounts, or that the host has reported nothing.
    """
    problem = facts.get("lock_problem")
    if facts.get("lock_dir") or not isinstance(problem, str):
        return None
    return f"locks protect this account only, so another account can use the same slots. {problem}"


def warnings(host: str, facts: Mapping[str, Any]) -> list[str]:
    """Return warnings about a host. They do not prevent its registration."""
    found = []
    if not facts.get("torch"):
        found.append(
            f"Host '{host}': {facts.get('executable')} has no PyTorch, which training needs. On the host, "
            f"run: {facts.get('executable')} -m pip install torch. Or name an interpreter that has it (--python, or "
            "environment.python in the configuration)."
        )
    elif is_older(facts["torch"], OLDEST_TORCH):
        oldest = dotted(OLDEST_TORCH)
        found.append(
            f"Host '{host}': {facts.get('executable')} has PyTorch {facts['torch']}, but training needs {oldest} or "
            f"newer. On the host, run: {facts.get('executable')} -m pip install 'torch>={oldest}'. Or name an "
            "interpreter that has it (--python, or environment.python in the configuration)."
        )
    if facts.get("has_amd_gpus") is True:
        found.append(
            f"Host '{host}': its AMD GPUs are not used, because ROCm is not supported. Its slots are CPU slots."
        )
    found += [f"Host '{host}': no run can start there: {message}." for message in facts.get("problems") or ()]
    found += [f"Host '{host}': {message}." for message in facts.get("doubts") or ()]
    if problem := lock_problem(facts):
        found.append(f"Host '{host}': {problem}")
    if is_clock_wrong(facts):
        found.append(
            f"Host '{host}': its clock is {clock_text(facts)} from the one here, more than {CLOCK_LIMIT_S:g} s. "
            "Start time synchronisation there, e.g. chrony."
        )
    free_bytes = facts.get("disk_free_bytes")
    if free_bytes is not None and free_bytes < LOW_DISK_BYTES:
        free = f"{byte_size(free_bytes)} of disk are free, less than {byte_size(LOW_DISK_BYTES)}"
        found.append(f"Host '{host}': {free}. Free some space.")
    return found
