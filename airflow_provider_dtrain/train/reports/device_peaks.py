"""Peak rates of devices, for the utilization by a model. A device that is not listed has none: nothing is estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_TERA = 1e12


class Peaks(NamedTuple):
    """Dense matrix products, 10**12 operations per second, without sparsity. 0: the device has no such units."""

    float16: float
    bfloat16: float
    #: float32 numbers that are multiplied as TF32.
    tf32: float
    float32: float


#: Name of the device by NVML -> peaks. Tables of NVIDIA that give rates with sparsity are halved here.
#: Source: data sheets of NVIDIA for V100, T4, A100, A10, A30, A40, L4, L40S, H100, H200.
PEAKS: Mapping[str, Peaks] = {
    **dict.fromkeys(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), Peaks(125, 0, 0, 15.7)),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), Peaks(112, 0, 0, 14)),
    "Tesla T4": Peaks(65, 0, 0, 8.1),
    **dict.fromkeys(
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
        Peaks(312, 312, 156, 19.5),
    ),
    "NVIDIA A10": Peaks(125, 125, 62.5, 31.2),
    "NVIDIA A30": Peaks(165, 165, 82, 10.3),
    "NVIDIA A40": Peaks(149.7, 149.7, 74.8, 37.4),
    "NVIDIA L4": Peaks(121, 121, 60, 30.3),
    "NVIDIA L40S": Peaks(362, 362, 183, 91.6),
    "NVIDIA H100 80GB HBM3": Peaks(989, 989, 494.5, 67),
    "NVIDIA H100 PCIe": Peaks(756, 756, 378, 51),
    "NVIDIA H200": Peaks(989, 989, 494.5, 67),
}


def peak_flops(device: str, kind: str) -> float | None:
    """Return the peak of a device in operations per second, None if it is unknown.

    :param device: name by NVML, which is exact: a part of a device (MIG) has another one
    :param kind: ``float16``, ``bfloat16``, ``tf32`` or ``float32``
    """
    rate = getattr(PEAKS.get(device), kind, 0)
    return rate * _TERA if rate else None
