"""The first rows of the results as short texts, for the trial's page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.values import JsonObject

#: Rows without a setting, columns, and characters of a value.
ROWS, COLUMNS_MOST, TEXT_MOST = 20, 40, 200
#: Most bytes of all rows as JSON.
BYTES_MOST = 200_000
#: Items of a list that are converted: an image has millions.
_ITEMS_MOST = 20


def preview_of(parts: Sequence[pa.RecordBatch], rows: int) -> JsonObject:
    """Return columns with their types, and the first rows as texts. Null is None.

    :param parts: at least one, all with the same columns
    :param rows: most rows
    """
    fields = list(parts[0].schema)[:COLUMNS_MOST]
    texts: list[list[str | None]] = []
    left_bytes = BYTES_MOST
    for part in parts:
        first = part.slice(0, rows - len(texts))
        columns = [[_text(value) for value in first.column(index)] for index in range(len(fields))]
        for row in zip(*columns):
            left_bytes -= len(json.dumps(row))
            if left_bytes < 0:
                break
            texts.append(list(row))
        if left_bytes < 0 or len(texts) >= rows:
            break
    columns_of = [[_cut(field.name), _cut(type_text(field.type))] for field in fields]
    return {"columns": columns_of, "columns_in_all": parts[0].num_columns, "rows": texts}


def _text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return f"{len(value.as_buffer()):,} bytes"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list(value)
    found = value.as_py()
    return _cut(f"{found:.6g}" if isinstance(found, float) else str(found))


def _list(value: Any) -> str:
    items = value.values
    texts = [_text(item) for item in items.slice(0, _ITEMS_MOST)]
    shown = ["null" if text is None else text for text in texts]
    more = [f"... {len(items):,} in all"] if len(items) > _ITEMS_MOST else []
    return _cut(f"[{', '.join([*shown, *more])}]")


def _cut(text: str) -> str:
    # An extension type may give a text with lone surrogates, which are no UTF-8.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= TEXT_MOST else f"{text[: TEXT_MOST - 3]}..."
