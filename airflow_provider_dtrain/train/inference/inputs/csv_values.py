"""Values of CSV: texts that become numbers or other types, if that changes none of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_dtrain.train.inference.column_types import JsonText, type_text

#: Texts of a missing value in every type but text. Source: the defaults of pyarrow.csv.ConvertOptions.
NULLS = pa.array(
    [
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
        "NaN", "n/a", "nan", "null",
    ]
)  # fmt: skip
#: An integer as it is usually written. A code such as 00123 is none.
INTEGER = "^(0|-?[1-9][0-9]{0,18})$"
#: A decimal number. A code such as 1E5 is none: an exponent has a sign, or a point before it. Longer integers are
#: identifiers, whose last digits a float would lose.
NUMBER = (
    r"^-?((0|[1-9][0-9]{0,14})|(0|[1-9][0-9]*)?\.[0-9]+([eE][+-]?[0-9]+)?|(0|[1-9][0-9]*)\.([eE][+-]?[0-9]+)?"
    r"|[1-9][0-9]{0,14}[eE][+-][0-9]+|inf)$"
)


def guessed(column: pa.Array) -> str:
    """Return the text of the type of texts: ``int64``, ``float64``, ``string``, or ``null`` without any value."""
    trimmed = pc.utf8_trim_whitespace(column)
    if not len(pc.filter(column, pc.not_equal(column, ""))):
        return "null"
    numbers = trimmed.filter(pc.invert(pc.is_in(trimmed, NULLS)))
    for pattern, kind in ((INTEGER, pa.int64()), (NUMBER, pa.float64())):
        if len(numbers) and pc.all(pc.match_substring_regex(numbers, pattern)).as_py():
            try:
                numbers.cast(kind)
            except pa.ArrowInvalid:
                continue  # more than 64 bits
            return type_text(kind)
    return "string"


def has_texts(kind: pa.DataType) -> bool:
    """Return whether texts can be values of a type."""
    try:
        of_texts(pa.array([None], pa.string()), kind)
    except pa.ArrowNotImplementedError:
        return False
    return not isinstance(kind, JsonText)


def of_texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as values of a type.

    :raises pyarrow.ArrowInvalid: a text is no such value
    :raises pyarrow.ArrowNotImplementedError: the type has no texts
    """
    if kind == pa.string():
        return column
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, NULLS), pa.scalar(None, pa.string()), trimmed).cast(kind)
