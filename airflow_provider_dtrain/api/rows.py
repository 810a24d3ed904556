"""Parts of answers that several routes build."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, overload

from fastapi import Query

from airflow_provider_dtrain.api.models.common import ErrorAnswer
from airflow_provider_dtrain.resources.metrics import Number

#: Answers of every route besides success.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words}
    for status, words in {
        401: "not logged in",
        403: "not allowed",
        404: "not found, or not readable",
        409: "not possible in this state",
        413: "the body is too large",
        422: "not valid",
        503: "the store does not answer",
    }.items()
}


@overload
def number(value: float) -> Number: ...


@overload
def number(value: float | None) -> Number | None: ...


def number(value: float | None) -> Number | None:
    """Return a single value: NaN and infinities as their names, because JSON has none."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def point(value: Any) -> float | None:
    """Return a value of a series, None unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


#: Parameters of tables.
Search = Annotated[str, Query(max_length=200, description="part of a name; % and _ have no special meaning")]
Order = Annotated[Literal["asc", "desc"], Query()]
