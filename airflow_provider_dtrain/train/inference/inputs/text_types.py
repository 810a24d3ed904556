"""Types of the columns of text files, as texts: those that a user declares, and those of several files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa

from airflow_provider_dtrain.train.errors import InputError, SchemaError
from airflow_provider_dtrain.train.inference.column_types import JsonText, parse_type

#: Type of JSON values as they are: Python's values for the processor, and their text where they are passed through.
JSON = "json"


@lru_cache(maxsize=1024)
def declared_type(text: str) -> pa.DataType:
    """Return the type of a column that ``inputs.schema`` declares.

    :raises InputError: the text names no type
    """
    if text == JSON:
        return JsonText()
    try:
        return parse_type(text, "inputs.schema")
    except SchemaError as error:
        raise InputError(f"{error} A column of JSON lines can also be of type json, which any value is.") from error


def widest(kinds: Iterable[str | None], default: str) -> str:
    """Return the type of a column that has these types in several files, ``json`` if no other type holds them.

    :param kinds: None: the file has no such column
    :param default: type of a column without any value
    """
    found = dict.fromkeys(kind for kind in kinds if kind not in (None, "null"))
    if len(found) == 1:
        return str(next(iter(found)))
    return default if not found else "float64" if found.keys() == {"int64", "float64"} else JSON
