"""Peak memory of follower processes."""

from __future__ import annotations

from pathlib import Path

#: Limit per follower process. It starts with about 150 MiB; buffers for data from hosts are bounded far below the rest.
MOST_MIB = 500


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process in MiB, 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def grown(pids: list[int]) -> list[str]:
    """Return a message for each process that has exceeded :data:`MOST_MIB`."""
    peaks = {pid: peak_mib(pid) for pid in pids}
    return [f"process {pid} used {peak:.0f} MiB" for pid, peak in peaks.items() if peak > MOST_MIB]
