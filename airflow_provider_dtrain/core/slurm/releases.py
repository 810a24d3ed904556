"""Versions of Slurm, and known defects of some of them."""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", re.ASCII)
#: First and last release with bug 15857 of bugs.schedmd.com.
_BUG_15857: Final = ((22, 5, 5), (22, 5, 8))
#: First release with ``srun --overlap``.
_OLDEST: Final = (20, 11, 0)

Version = tuple[int, int, int]


def version_of(text: str) -> Version | None:
    """Return the version in a text such as ``slurm-wlm 22.05.8``, None without one."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def version_text(version: Version) -> str:
    """Return a version as Slurm prints it."""
    return f"{version[0]}.{version[1]:02d}.{version[2]}"


def warnings(version: Version | None) -> list[str]:
    """Return one sentence for each known defect of a version."""
    if version is None:
        return ["The version of Slurm is not known: 'sbatch --version' has no number."]
    found = []
    if version < _OLDEST:
        found.append(
            f"Slurm {version_text(version)} has no 'srun --overlap', by which a job is reached without a free port. "
            "20.11 or newer has it."
        )
    if _BUG_15857[0] <= version <= _BUG_15857[1]:
        found.append(
            f"Slurm {version_text(version)} has bug 15857 of SchedMD (22.05.5 to 22.05.8). Ask the administrators to "
            "update to 22.05.9 or newer."
        )
    return found


def is_usable(version: Version | None) -> bool:
    """Return whether jobs of a version can be reached. A version that is not known may be new enough."""
    return version is None or version >= _OLDEST
