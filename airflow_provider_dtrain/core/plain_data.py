"""Values that JSON and YAML can hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def plain_data(value: Any) -> Any:
    """Return a value that JSON and YAML can hold. NaN and infinities become their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_data({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_data(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        # The writer of YAML takes no subclass, such as the name of a state.
        return str(value)
    return value if value is None or isinstance(value, int | float | bool) else str(value)
