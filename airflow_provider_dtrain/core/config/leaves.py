"""Values of effective configurations by their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.core.config.merge import join_path


def leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each scalar. Empty maps and lists count as values."""
    for key, value in document.items():
        below = join_path(path, str(key))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, below)
        elif isinstance(value, list) and value:
            yield from leaves({str(index): item for index, item in enumerate(value)}, below)
        else:
            yield below, value
