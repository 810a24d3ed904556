"""Training length of the trials of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.errors import Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.unions import Searcher

#: Searchers that compare trials at intermediate training lengths.
HALVING = ("async_halving", "adaptive_asha")


def length_of(searcher: Searcher) -> tuple[str, int] | None:
    """Return the unit and the maximum training length of a trial, or None without a limit.

    :param searcher: of a valid configuration; with ``max_time``, ``time_metric`` is the unit
    """
    if searcher.max_length is not None:
        ((unit, count),) = searcher.max_length.model_dump(exclude_none=True).items()
        return str(unit), int(count)
    if searcher.max_time is not None and searcher.time_metric is not None:
        return searcher.time_metric, searcher.max_time
    return None


def missing_length(document: Mapping[str, Any]) -> list[Problem]:
    """Return the problem of a halving searcher without a length, for a document with other errors.

    :param document: plain, without tags
    """
    searcher = document.get("searcher")
    if not isinstance(searcher, Mapping) or searcher.get("name") not in HALVING:
        return []
    if searcher.get("max_length") is not None or searcher.get("max_time") is not None:
        return []
    return [Problem(path="searcher.max_length", message=needs_length(str(searcher["name"])))]


def needs_length(subject: str) -> str:
    """Return the message of a searcher or a class without a length."""
    return f"missing; {subject} requires it, or max_time and time_metric"
