"""GPUs of a job on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def job_devices(visible: str | None, gpus: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]] | str:
    """Return the GPUs that Slurm gave to a job on a node, or why they are not known.

    Slurm numbers GPUs as NVML does, by their PCI address. Where it constrains devices, NVML shows only its own,
    and their numbers begin at 0 or are those of the node, which depends on its version.

    :param visible: ``CUDA_VISIBLE_DEVICES`` of the job's step
    :param gpus: GPUs that NVML shows there, in its order
    :param count: GPUs that the job has
    """
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    if len(names) != count:
        shown = f"{visible!r}" if visible is not None else "not set"
        return f"the job has {count} GPUs there, and CUDA_VISIBLE_DEVICES is {shown}"
    found = [_device(name, gpus) for name in names]
    if None not in found:
        return [one for one in found if one is not None]
    if len(gpus) == count:
        return list(gpus)
    return f"CUDA_VISIBLE_DEVICES is {visible!r}, and NVML shows {len(gpus)} GPUs"


def _device(name: str, gpus: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    if name.isascii() and name.isdecimal():
        return gpus[int(name)] if int(name) < len(gpus) else None
    matching = [gpu for gpu in gpus if str(gpu["uuid"]).startswith(name)]
    return matching[0] if len(matching) == 1 else None
