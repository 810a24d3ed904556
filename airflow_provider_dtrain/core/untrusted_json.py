"""Parser for JSON from hosts: limits depth and number of values, and removes text that no database accepts."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from airflow_provider_dtrain.core.documents import JsonObject

#: An integer with more digits fits no column. int() of many digits costs quadratic time.
MAX_DIGITS = 19
#: A text without escapes, or an open one up to the end. It matches at every quote, so the time is linear.
_TEXTS = re.compile(rb'"[^"]*"?')
_BRACKETS = re.compile(rb"[\[{]|[\]}]")
#: Escapes of NUL and of surrogates: neither is text for PostgreSQL or UTF-8.
_UNSTORABLE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_REPLACED = re.compile("[\x00\ud800-\udfff]")


class UntrustedInputError(ValueError):
    """Input from a host exceeds a limit or is malformed."""


def parse_object(text: bytes, *, depth: int, values: int) -> JsonObject:
    """Return the JSON object in ``text``. Lone surrogates and NUL become U+FFFD.

    Depth and number of values are counted before anything is built: a MiB of ``{},{},`` takes 70 MiB as objects.

    :param text: JSON; the caller has limited its length
    :param depth: most levels of nesting, the object itself included
    :param values: most values in all lists and objects together
    :raises UntrustedInputError: a limit is exceeded, or it is not a JSON object in UTF-8; NaN, infinities and integers
        of more than 19 digits are not accepted
    """
    document = _parsed(text, _CHECKED, depth, values)
    return _storable(document) if _UNSTORABLE.search(text) else document


def parse_measurement(text: bytes, *, depth: int, values: int) -> JsonObject:
    """Return the JSON object in ``text`` as :func:`parse_object` does, in a third of the time.

    The caller checks each number that it uses, because integers may be larger than any column and floats infinite. It
    stores no text.

    :raises UntrustedInputError: a limit is exceeded, or it is not a JSON object in UTF-8
    """
    return _parsed(text, _NUMBERS_UNCHECKED, depth, values)


def _parsed(text: bytes, decoder: json.JSONDecoder, depth: int, values: int) -> JsonObject:
    check_size(text, depth=depth, values=values)
    try:
        document = decoder.decode(text.decode())
    except UntrustedInputError:
        raise
    except (ValueError, RecursionError) as error:
        raise UntrustedInputError(f"not valid JSON ({str(error)[:200]})") from None
    if not isinstance(document, dict):
        raise UntrustedInputError("not a JSON object")
    return document


def check_size(text: bytes, *, depth: int, values: int) -> None:
    """Check the limits of a JSON document without building it. Takes linear time for any bytes.

    :param depth: most levels of nesting
    :param values: most values in all lists and objects together
    :raises UntrustedInputError: a limit is exceeded
    """
    opened = text.count(b"{") + text.count(b"[")
    if opened <= depth and opened + text.count(b",") <= values:
        return
    bare = _TEXTS.sub(b"", text.replace(rb"\\", b"").replace(rb"\"", b""))
    found = bare.count(b"{") + bare.count(b"[") + bare.count(b",")
    if found > values:
        raise UntrustedInputError(f"{found:,} values in lists and objects, at most {values:,} are accepted")
    level = deepest = 0
    for bracket in _BRACKETS.finditer(bare):
        level += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, level)
    if deepest > depth:
        raise UntrustedInputError(f"nested {deepest:,} levels deep, at most {depth} are accepted")


def _refuse(name: str) -> None:
    raise UntrustedInputError(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + digits.startswith("-"):
        raise UntrustedInputError(f"an integer of {len(digits):,} digits, at most {MAX_DIGITS} are accepted")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise UntrustedInputError(f"the number {digits[:20]} is beyond the range of a float")
    return number


_CHECKED = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer, parse_float=_finite)
_NUMBERS_UNCHECKED = json.JSONDecoder(parse_constant=_refuse)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _REPLACED.sub("\ufffd", value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return value


def is_count(value: object) -> bool:
    """Return whether a value is an integer from 0 that fits a column of 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: object) -> bool:
    """Return whether a value is a number and no bool."""
    return type(value) in (int, float)
