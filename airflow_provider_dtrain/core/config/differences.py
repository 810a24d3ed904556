"""Differences between effective configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.core.config.merge import join_path


def differences(documents: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, list[Any]]], int]:
    """Return the paths whose values differ, with the value of each document, and the number of the other paths.

    :param documents: plain data; a path that a document lacks has the value None there
    """
    flat = [dict(leaves(document)) for document in documents]
    paths = list(dict.fromkeys(path for one in flat for path in one))
    found = []
    for path in paths:
        values = [one.get(path) for one in flat]
        if len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1:
            found.append((path, values))
    return found, len(paths) - len(found)


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
