"""Times and sizes as Slurm and users write them."""

from __future__ import annotations

import re
from typing import Final

#: Texts by which Slurm means that there is no limit, or that it does not know one.
_NO_TIME: Final = frozenset(["", "UNLIMITED", "INFINITE", "NONE", "N/A", "NOT_SET", "INVALID", "(NULL)", "UNKNOWN"])
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_UNIT_MIB: Final = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_WITH_UNITS: Final = re.compile(r"(?:\d{1,9}[smhdw])+", re.ASCII)
_DAYS: Final = re.compile(r"(\d{1,6})-(\d{1,6})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
_CLOCK: Final = re.compile(r"(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
_SIZE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGTP]?)(?:i?B)?", re.ASCII | re.IGNORECASE)


def seconds_of(text: str) -> int | None:
    """Return a time in seconds, None if the text is not a time or means that there is no limit.

    As for ``sbatch --time``, ``90`` are minutes, ``90:30`` minutes and seconds, ``24:00:00`` hours, ``1-12`` and
    ``1-12:30:00`` days and hours. ``24h`` and ``1d12h`` have units.
    """
    text = text.strip()
    if _WITH_UNITS.fullmatch(text):
        return sum(int(count) * _UNIT_S[unit] for count, unit in re.findall(r"(\d+)([smhdw])", text))
    if match := _DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if match := _CLOCK.fullmatch(text):
        parts = [int(part) for part in match.groups() if part is not None]
        scales = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
        return sum(part * scale for part, scale in zip(parts, scales, strict=True))
    return None


def is_unlimited(text: str) -> bool:
    """Return whether Slurm's text of a time means that there is no limit or none is known."""
    return text.strip().upper() in _NO_TIME


def slurm_time(seconds: float) -> str:
    """Return a time as ``D-HH:MM:SS`` or ``HH:MM:SS``, rounded up to a second."""
    whole = int(-(-seconds // 1))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def mebibytes_of(text: str) -> int | None:
    """Return a size in MiB, rounded up, None if the text is not a size above 0.

    A size without a unit is in MiB, as for ``sbatch --mem``.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    size = -(-float(match[1]) * _UNIT_MIB[match[2].upper() or "M"] // 1)
    return int(size) if 0 < size < 2**53 else None
