"""Launch plans: ranks, environment and command of each host, from a placement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.core.launch.devices import HostDevices, VisibleDevices, host_devices
from airflow_provider_dtrain.core.launch.network import NetworkChoice, choose_network, connect_targets, pairs_to_check
from airflow_provider_dtrain.core.launchers.launcher import launcher_of, launcher_problems
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.errors import ConfigError, Problem

__all__ = [
    "RESERVED_VARIABLES",
    "HostFacts",
    "LaunchFacts",
    "NetworkChoice",
    "build_plans",
    "choose_network",
    "connect_targets",
    "device_views",
    "pairs_to_check",
    "rank_order",
]

PROTOCOL = 1
#: The slot index of the one rank that has no slot.
NO_SLOT = -1
#: Limit of Linux for one string of an environment (MAX_ARG_STRLEN), including its final NUL.
MAX_VARIABLE_BYTES = 131_072

#: Set for every rank by the supervisor. A user's value would be lost or break the gang.
RESERVED_VARIABLES: frozenset[str] = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"),
        *("DTRAIN_RUN", "DTRAIN_RUN_DIR", "DTRAIN_EVENTS", "DTRAIN_CONTEXT", "DTRAIN_CHECKPOINT_DIR"),
        *("DTRAIN_LAUNCH", "DTRAIN_WORLD_SIZE", "DTRAIN_METRICS"),
        *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("PET_RDZV_ID", "PET_RDZV_ENDPOINT"),
        *("DTRAIN_SLOT", "DTRAIN_SECRETS", "DTRAIN_HPARAMS", "DTRAIN_TRIAL_SEED", "DTRAIN_LATEST_CHECKPOINT"),
    }
)


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Facts that differ between the hosts of a gang."""

    #: Slot index -> UUID of its device; None or absent for a CPU slot.
    devices: Mapping[int, str | None] = field(default_factory=dict)
    #: Interpreter for ``python`` in the command; None: the supervisor's own.
    python: str | None = None
    #: Digest of the environment that the interpreter belongs to; None: it was not built for the code.
    environment: str | None = None
    #: Environment that the host's administrators set for its ranks.
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
    """Facts of an attempt that are the same for all of its hosts."""

    #: ``t<trial>.<attempt>.<token>``
    run: str
    #: Id of the store that granted the slots.
    store: str
    token: int
    argv: Sequence[str]
    #: One process per host, which starts the ranks of its slots itself.
    is_per_host: bool = False
    #: Drawn at random once per launch: distinguishes it from one of the same name that a restored store has lost.
    launch: str | None = None
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    #: ``all``: a rank sees the devices of all ranks of its host, as under torchrun. ``own``: only its own.
    visible_devices: VisibleDevices = "all"
    #: None only until the hosts have answered. No interface is set then.
    network: NetworkChoice | None = None
    #: The user's ``environment.variables``.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Seconds for which a warm parent of the ranks waits; None: the ranks are executed.
    warm_idle_s: float | None = None
    #: Names of those variables that are secrets, which a warm parent does not get.
    private: Collection[str] = ()
    #: Script in the code that a login shell runs for its variables.
    setup: str | None = None
    #: SHA-256 of the packed user code and of the training library.
    payload: str | None = None
    library: str | None = None
    port_range: tuple[int, int] | None = None
    grace_s: float = 30
    #: 0: the run never ends by itself.
    orphan_timeout_s: float = 900
    prepare_timeout_s: float = 120
    timeout_s: float | None = None
    log_limit_bytes: int = 256 * 1024 * 1024
    #: Seconds between two samples of the system's metrics; 0: no samples.
    sampling_interval_s: float = 0
    #: The pool's slots are CPU slots.
    has_cpu_slots: bool = False


def rank_order(placement: Placement) -> list[str]:
    """Return the hosts in the order in which ranks are numbered: most slots first, then by name.

    Rank 0 runs on the first one. The order depends on nothing else, so that a restart on the same slots
    gives every process the same rank.
    """
    return sorted(placement.slots, key=lambda host: (-len(placement.slots[host]), host))


def build_plans(placement: Placement, facts: LaunchFacts) -> dict[str, dict[str, Any]]:
    """Return the launch plan of each host in rank order, as plain JSON data.

    A plan has no value of the trial: those are in the context, which is the same on all hosts.

    :param placement: the slots of the gang; a host without slots runs one process without a slot
    :raises ConfigError: a variable of the user has a reserved name or cannot be set, or options of a launcher
        contradict the placement; names all of them at once
    """
    problems = [problem for name, value in facts.variables.items() for problem in _variable_problems(name, value)]
    order = rank_order(placement)
    slots = _slots(placement)
    devices = device_views(placement, {host: facts.hosts[host].devices for host in facts.hosts}, facts.visible_devices)
    if facts.is_per_host:
        problems += _device_problems(devices)
        launcher = launcher_of(facts.argv)
        if launcher is not None:
            counts = {host: len(slots[host]) for host in order}
            problems += launcher_problems(launcher, counts, has_cpu_slots=facts.has_cpu_slots)
    if problems:
        raise ConfigError(problems)
    world_size = sum(map(len, slots.values()))
    plans = {}
    first_rank = 0
    for group_rank, host in enumerate(order):
        gang = {"group_rank": group_rank, "group_world_size": len(order), "world_size": world_size}
        plans[host] = _plan(host, facts) | gang | {"ranks": _ranks(first_rank, slots[host], devices[host])}
        first_rank += len(slots[host])
    return plans


def device_views(
    placement: Placement, devices: Mapping[str, Mapping[int, str | None]], mode: VisibleDevices
) -> dict[str, HostDevices]:
    """Return the devices of the ranks on each host of a gang.

    :param devices: host -> slot index -> UUID of its device, None or absent for a CPU slot
    """
    return {
        host: host_devices([devices.get(host, {}).get(slot) for slot in slots], mode)
        for host, slots in _slots(placement).items()
    }


def _slots(placement: Placement) -> dict[str, tuple[int, ...]]:
    return {host: slots or (NO_SLOT,) for host, slots in placement.slots.items()}


def _plan(name: str, facts: LaunchFacts) -> dict[str, Any]:
    host = facts.hosts.get(name, HostFacts())
    return {
        "protocol": PROTOCOL,
        "run": facts.run,
        "store": facts.store,
        "token": facts.token,
        "launch": facts.launch,
        "host": name,
        "argv": list(facts.argv),
        "per_host": facts.is_per_host,
        "python": host.python,
        "environment": host.environment,
        "setup": facts.setup,
        "env": _interface_variables(facts.network, name) | dict(host.variables) | dict(facts.variables),
        "payload": facts.payload,
        "library": facts.library,
        "warm": None if facts.warm_idle_s is None else {"idle_s": facts.warm_idle_s, "private": sorted(facts.private)},
        "port_range": list(facts.port_range) if facts.port_range else None,
        "grace_s": facts.grace_s,
        "orphan_timeout_s": facts.orphan_timeout_s,
        "prepare_timeout_s": facts.prepare_timeout_s,
        "timeout_s": facts.timeout_s,
        "log_limit_bytes": facts.log_limit_bytes,
        "sampling_interval_s": facts.sampling_interval_s,
        "cpu_slots": facts.has_cpu_slots,
    }


def _ranks(first_rank: int, slots: tuple[int, ...], devices: HostDevices) -> list[dict[str, Any]]:
    return [
        {
            "rank": first_rank + local_rank,
            "local_rank": local_rank,
            "slot": slot,
            "device": devices.own[local_rank],
            "visible_devices": list(devices.visible[local_rank]),
        }
        for local_rank, slot in enumerate(slots)
    ]


def _device_problems(devices: Mapping[str, HostDevices]) -> list[Problem]:
    """Return a problem if a process of the gang would have to see several MIG instances, which CUDA refuses."""
    host = next((host for host, one in devices.items() if one.has_mig and len(one.own) > 1), None)
    if host is None:
        return []
    message = f"per_host is impossible on host '{host}', because a process can use only one of its MIG instances. "
    return [Problem(path="launch", message=message + "Use whole GPUs, or start the script without a launcher")]


def _interface_variables(network: NetworkChoice | None, host: str) -> dict[str, str]:
    if network is None or host not in network.interfaces:
        return {}
    name = network.interfaces[host]
    # NCCL treats a bare name as a prefix, and "=" makes it exact. Gloo accepts exact names only.
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}


def _variable_problems(name: str, value: str) -> list[Problem]:
    path = f"environment.variables.{name}"
    if name in RESERVED_VARIABLES:
        return [Problem(path=path, message="is set for every rank by the launch and cannot be set here")]
    if not name or "=" in name or "\0" in name + value:
        return [Problem(path=path, message="is not a valid name of a variable, or its value has a NUL byte")]
    if len(f"{name}={value}".encode()) >= MAX_VARIABLE_BYTES:
        return [Problem(path=path, message=f"is longer than the {MAX_VARIABLE_BYTES:,} bytes that Linux allows")]
    return []
