"""Options of an output: format, passed columns, row ids, and the types of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.train.errors import SchemaError
from airflow_provider_dtrain.train.inference.column_types import parse_type
from airflow_provider_dtrain.train.inference.preview import ROWS

FORMATS = ("parquet", "jsonl")
#: Column that ``inference.on_bad_row: mark`` adds.
ERROR = "error"


@dataclass
class OutputOptions:
    """The group ``inference.outputs`` of the configuration, and the columns that were written so far."""

    format: str = "parquet"
    #: Input columns that are passed through.
    columns: tuple[str, ...] = ()
    #: Name of a column with the row ids of the input; None: none.
    row_id: str | None = None
    #: Declared column -> text of its type.
    declared: Mapping[str, str] = field(default_factory=dict)
    #: Bad rows are rows of the output, with their errors in a column.
    marks: bool = False
    #: First rows that the trial's page shows.
    preview: int = ROWS
    #: Column -> text of its type, in the order of the output; empty before the first rows.
    known: dict[str, str] = field(default_factory=dict)
    #: Whether the processor returns rows; None before its first result.
    has_rows: bool | None = None
    #: Names of the warnings that were logged, each once.
    notes: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, settings: Mapping[str, Any], *, marks: bool = False) -> OutputOptions:
        """Return the options of the plain mapping.

        :param marks: ``inference.on_bad_row`` is ``mark``
        :raises SchemaError: a value is not valid, or two columns have the same name
        """
        kind = settings.get("format") or "parquet"
        if kind not in FORMATS:
            raise SchemaError(f"outputs.format must be one of {', '.join(FORMATS)}, got {kind!r}.")
        columns, row_id = tuple(settings.get("columns") or ()), settings.get("row_id")
        names = [*columns, *([row_id] if row_id else [])]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(f"outputs.columns and outputs.row_id have the column {twice[0]!r} twice.")
        if marks and ERROR in names:
            raise SchemaError(f"inference.on_bad_row: mark adds the column {ERROR!r}, which outputs has as well.")
        declared = {str(name): str(kind) for name, kind in (settings.get("schema") or {}).items()}
        for text in declared.values():
            parse_type(text)
        preview = settings.get("preview")
        most = ROWS if preview is None else int(preview)
        return cls(kind, columns, row_id or None, declared, marks=marks, preview=most)

    def expect(self, types: Mapping[str, str]) -> None:
        """Require the columns of parts that exist already.

        :param types: column -> text of its type, as in a part's description
        """
        self.known = dict(types)
