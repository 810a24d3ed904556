"""Visible devices of the ranks of a gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["HostDevices", "VisibleDevices", "host_devices", "notices", "shares_devices"]

#: Setting ``resources.visible_devices``.
VisibleDevices = Literal["all", "own"]
#: Prefix of the UUID of a MIG instance, a part of a GPU.
MIG = "MIG-"


@dataclass(frozen=True, kw_only=True)
class HostDevices:
    """Devices of the ranks of one gang on one host, by local rank."""

    #: UUID of the device of each rank's slot; None for a CPU slot.
    own: tuple[str | None, ...]
    #: UUIDs that each rank sees, in the order in which CUDA numbers them.
    visible: tuple[tuple[str, ...], ...]
    #: Ranks see only their own device although ``all`` was requested.
    is_forced: bool = False

    @property
    def is_indexed(self) -> bool:
        """Return whether each rank's device is the one with the number ``LOCAL_RANK``, as under torchrun."""
        pairs = enumerate(zip(self.own, self.visible, strict=True))
        return all(device is None or seen.index(device) == local_rank for local_rank, (device, seen) in pairs)

    @property
    def has_mig(self) -> bool:
        """Return whether a rank has a MIG instance."""
        return any(device is not None and device.startswith(MIG) for device in self.own)


def host_devices(own: Sequence[str | None], mode: VisibleDevices) -> HostDevices:
    """Return the devices that each rank of a host sees.

    With ``all``, every rank sees the devices of all ranks there, in the order of the slots, so that ``LOCAL_RANK`` is
    the number of its device. This is impossible with MIG instances, of which a process can use only one.

    :param own: device of each local rank, in the order of the slots
    """
    devices = tuple(device for device in own if device is not None)
    has_mig = any(device.startswith(MIG) for device in devices)
    if mode == "all" and not (has_mig and len(devices) > 1):
        return HostDevices(own=tuple(own), visible=tuple(devices if device is not None else () for device in own))
    visible: list[tuple[str, ...]] = [(device,) if device is not None else () for device in own]
    return HostDevices(own=tuple(own), visible=tuple(visible), is_forced=mode == "all")


def shares_devices(hosts: Mapping[str, HostDevices]) -> bool:
    """Return whether NCCL would refuse the gang, because several ranks of a host have parts of one GPU.

    The UUID of a MIG instance does not tell its GPU, so those of a host count as parts of one.
    """
    return any(one.has_mig and len(one.own) > 1 for one in hosts.values())


def notices(hosts: Mapping[str, HostDevices]) -> list[str]:
    """Return a sentence for each fact about devices that a user should know before the ranks start."""
    found = [
        f"Host '{host}': each rank sees only its own device, as with resources.visible_devices: own, because a process "
        "can use only one MIG instance."
        for host, one in hosts.items()
        if one.is_forced
    ]
    if shares_devices(hosts):
        found.append("MIG instances may be parts of one GPU, which NCCL refuses: dtrain.init() uses gloo.")
    return found
