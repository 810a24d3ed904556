"""Number of bytes, as text."""

from __future__ import annotations

import math
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_size(count: int | float | None) -> str:
    """Return a number of bytes with a readable unit, such as ``1.2 GiB``. None, NaN and infinity are a dash.

    The pages have the same function: ``bytes`` in ``ui/src/format/numbers.ts``.
    """
    if count is None or not math.isfinite(count):
        return "-"
    number = float(count)
    for unit in _UNITS:
        # Half up, and rounded before the unit is chosen: 1023.96 KiB are 1.0 MiB.
        digits = 1 if unit == "B" else 10
        number_shown = math.floor(abs(number) * digits + 0.5) / digits
        if number_shown < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    sign = "-" if number < 0 and number_shown else ""
    return f"{sign}{number_shown:.0f} {unit}" if unit == "B" else f"{sign}{number_shown:.1f} {unit}"
