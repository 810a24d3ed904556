"""Peak memory of the processes that follow gangs."""

from __future__ import annotations

from pathlib import Path

#: A follower's process starts with about 150 MiB; what hosts send is bounded far below the rest.
MOST_MIB = 500


def peak_mib(pid: int) -> float:
    """Return the most memory that a process ever had resident, MiB; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def grown(pids: list[int]) -> list[str]:
    """Return the processes that have used more memory than a follower may."""
    peaks = {pid: peak_mib(pid) for pid in pids}
    return [f"process {pid} used {peak:.0f} MiB" for pid, peak in peaks.items() if peak > MOST_MIB]
