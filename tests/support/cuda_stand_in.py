"""GPUs for machines without: stands in for the calls of torch.cuda that count and choose devices, and only these.

Imported by programs of tests. ``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it: the list ends before the first entry
that is no device, and a device that is listed twice empties it. Both were seen on an H100 with driver 580.
"""

import os

import torch

#: Devices of the machine, with commas.
MACHINE = os.environ["TEST_DEVICES"].split(",")
_current = [0]


def visible():
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return MACHINE
    found = []
    for entry in listed.split(","):
        name = MACHINE[int(entry)] if entry.isdigit() and int(entry) < len(MACHINE) else entry
        if name not in MACHINE:
            break
        if name in found:
            return []
        found.append(name)
    # A process uses one MIG instance only.
    return found[:1] if found and found[0].startswith("MIG-") else found


def set_device(device):
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if not 0 <= index < len(visible()):
        raise RuntimeError(f"CUDA error: invalid device ordinal {index} of {len(visible())}")
    _current[0] = index


def current_uuid():
    return visible()[_current[0]]


torch.cuda.is_available = lambda: bool(visible())
torch.cuda.device_count = lambda: len(visible())
torch.cuda.set_device = set_device
torch.cuda.current_device = lambda: _current[0]
