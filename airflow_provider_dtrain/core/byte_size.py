"""Number of bytes, as text."""

from __future__ import annotations


def byte_size(count: int | float | None) -> str:
    """Return a number of bytes with a readable unit."""
    if count is None:
        return "-"
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
