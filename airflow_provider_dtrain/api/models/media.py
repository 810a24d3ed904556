"""Content of a file of media. Hosts write these files, so each form has limits, those of the training library."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.core.media_names import MediaKind

Label = Annotated[str, Field(max_length=1000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Cell = Label | bool | Annotated[int, Field(ge=-(2**53), le=2**53)] | Finite | None
Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Form(BaseModel):
    """A document of a host."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class MediaTable(_Form):
    """Rows with one value per column."""

    columns: Annotated[list[Label], Field(min_length=1, max_length=100)]
    rows: Annotated[list[Annotated[list[Cell], Field(max_length=100)]], Field(max_length=1000)]
    #: Number of rows that were reported, of which ``rows`` has the first ones.
    rows_total: Count


class MediaHistogram(_Form):
    """Number of values per bin."""

    #: Limits of the bins, one more than there are counts, growing.
    edges: Annotated[list[Finite], Field(min_length=2, max_length=513)]
    counts: Annotated[list[Count], Field(min_length=1, max_length=512)]
    #: Values that are NaN or infinite.
    left_out: Count

    @model_validator(mode="after")
    def _fit(self) -> MediaHistogram:
        if len(self.edges) != len(self.counts) + 1 or sorted(self.edges) != self.edges:
            raise ValueError("edges must grow, and be one more than counts")
        return self


class MediaMatrix(_Form):
    """Samples by true class (row) and predicted class (column)."""

    labels: Annotated[list[Label], Field(min_length=1, max_length=100)]
    counts: Annotated[list[Annotated[list[Count], Field(max_length=100)]], Field(max_length=100)]

    @model_validator(mode="after")
    def _fit(self) -> MediaMatrix:
        if {len(self.counts), *map(len, self.counts)} != {len(self.labels)}:
            raise ValueError("counts must have one row and one column per label")
        return self


class MediaCurve(_Form):
    """Points of a curve in their order."""

    x_label: Label
    y_label: Label
    x: Annotated[list[Finite], Field(max_length=500)]
    y: Annotated[list[Finite], Field(max_length=500)]
    note: Label

    @model_validator(mode="after")
    def _fit(self) -> MediaCurve:
        if len(self.x) != len(self.y):
            raise ValueError("x and y must have the same length")
        return self


class MediaContent(Model):
    """Content of a file that is no image. The field of its kind is set."""

    kind: MediaKind
    text: str | None = None
    table: MediaTable | None = None
    histogram: MediaHistogram | None = None
    matrix: MediaMatrix | None = None
    curve: MediaCurve | None = None
