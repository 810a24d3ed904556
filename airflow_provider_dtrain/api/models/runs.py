"""Bodies of requests about the table of runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.core.expressions.tokens import LENGTH_MOST
from airflow_provider_dtrain.resources.runs import ChartKind
from airflow_provider_dtrain.store.queries.runs import COLUMNS_MOST, GROUPED_MOST
from airflow_provider_dtrain.store.run_views import NAME_CHARS

#: Most characters of a name in an expression, and charts of a view.
WRITTEN_CHARS, CHARTS_MOST = 500, 8

#: A name as it is written in expressions.
Written = Annotated[str, Field(max_length=WRITTEN_CHARS)]


class RunChartBody(Model):
    """A chart that a view pins."""

    kind: ChartKind
    #: Column of the y axis, or the metric of curves.
    y: Written
    #: Column of the x axis; empty for curves.
    x: Written = ""


class RunViewBody(Model):
    """A view of the table of runs."""

    name: str = Field(max_length=NAME_CHARS)
    is_shared: bool = False
    where: str = Field(default="", max_length=LENGTH_MOST)
    columns: Annotated[list[Written], Field(max_length=COLUMNS_MOST)] = []
    by: Annotated[list[Written], Field(max_length=GROUPED_MOST)] = []
    sort: Written = ""
    charts: Annotated[list[RunChartBody], Field(max_length=CHARTS_MOST)] = []
