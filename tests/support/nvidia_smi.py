"""GPUs and their processes, as nvidia-smi prints them."""

from __future__ import annotations

import subprocess

#: PyTorch needs half a minute for its first start on some machines.
START_S = 120.0


def smi(what: str, fields: str) -> list[list[str]]:
    """Return the rows of a query of nvidia-smi, with memory in MiB."""
    command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.strip()]


def uuid() -> str:
    return smi("gpu", "uuid")[0][0]


def users() -> set[int]:
    """Return the processes that nvidia-smi lists on the first GPU."""
    return {int(pid) for pid, device in smi("compute-apps", "pid,gpu_uuid") if device == uuid()}
