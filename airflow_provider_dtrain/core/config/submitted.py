"""The part of an effective configuration that a user or a template has set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_dtrain.core.config.merge import join_path
from airflow_provider_dtrain.core.documents import ConfigDocument


def set_by(document: Mapping[str, Any], origins: Mapping[str, str], wanted: Collection[str]) -> ConfigDocument:
    """Return the values of an effective document that have one of the wanted origins, in its order.

    :param origins: dotted path of each leaf -> its origin; a value without one is a default
    :param wanted: for example ``{"config", "dag_run"}``
    """
    return dict(_kept(document, origins, wanted, "") or {})


def _kept(value: Any, origins: Mapping[str, str], wanted: Collection[str], path: str) -> Any:
    """Return the part of a value that has a wanted origin, None when there is none."""
    if path in origins:
        return value if origins[path] in wanted else None
    if isinstance(value, Mapping):
        parts = ((name, _kept(below, origins, wanted, join_path(path, str(name)))) for name, below in value.items())
        return {name: part for name, part in parts if part is not None} or None
    if isinstance(value, list):
        items = (_kept(below, origins, wanted, join_path(path, str(at))) for at, below in enumerate(value))
        return [item for item in items if item is not None] or None
    return None
