"""Types of columns as texts, such as ``int64``, ``list<float32>`` and ``float32[3,224]``."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache

import pyarrow as pa

from airflow_provider_dtrain.train.errors import SchemaError

#: Name of a type -> type, for declared types.
SCALARS = {
    "bool": pa.bool_(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us"), "null": pa.null(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(),
}  # fmt: skip
#: Arrow's own names of types that are written differently here.
NAMES = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64", pa.date32(): "date"}
#: Longest text of a type, and most values of a tensor in one row.
TEXT_LIMIT, VALUES_LIMIT = 10_000, 2**31 - 1
_SHAPE = re.compile(r"(.+)\[(\d+(?:,\s*\d+)*)\]")
_NESTED = re.compile(r"(list|map|struct)<(.*)>", re.DOTALL)
_DECIMAL = re.compile(r"(decimal(?:32|64|128|256))\((\d+), ?(-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?tz=([\w+:/-]+)\]")
_BINARY = re.compile(r"fixed_size_binary\[(\d+)\]")
#: Name of a field of a struct that needs no quotes.
_NAME = re.compile(r"\w+(?:[ .-]\w+)*")
_QUOTED_OR_CHAR = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.DOTALL)


class JsonText(pa.ExtensionType):
    """Texts that are JSON values, which only JSON lines hold: they are written there as they are."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "dtrain.json")

    def __hash__(self) -> int:
        return hash(self.extension_name)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> JsonText:
        return cls()


@lru_cache(maxsize=1024)
def type_text(kind: pa.DataType) -> str:
    """Return the text of a type. Nested lists of fixed sizes are one shape."""
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(str(kind.list_size))
        kind = kind.value_type
    if shape:
        return f"{type_text(kind)}[{','.join(shape)}]"
    if pa.types.is_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_name_text(field.name)}: {type_text(field.type)}' for field in kind)}>"
    return "json" if isinstance(kind, JsonText) else NAMES.get(kind, str(kind))


def parse_type(text: str, setting: str = "outputs.schema") -> pa.DataType:
    """Return the type of a text.

    :param setting: where a user has written the text, for messages
    :raises SchemaError: the text names no type
    """
    if len(text) > TEXT_LIMIT:
        raise SchemaError(f"A type in {setting} must have at most {TEXT_LIMIT} characters, got {text[:40]!r}...")
    try:
        found = _parsed(text.strip(), setting)
    except RecursionError:
        found = None
    if found is None:
        raise SchemaError(
            f"{text[:200]!r} in {setting} is no type. Types are {', '.join(sorted(SCALARS))}, list<T>, map<K, V>, "
            "struct<name: T>, and T[3,224] for tensors."
        )
    return found


def _parsed(text: str, setting: str) -> pa.DataType | None:
    if text in SCALARS:
        return SCALARS[text]
    if match := _BINARY.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _SHAPE.fullmatch(text):
        return _tensor(text, match[1].strip(), [int(size) for size in match[2].split(",")], setting)
    if match := _NESTED.fullmatch(text):
        return _nested(match[1], _parts(match[2]), setting)
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        # Early versions of pyarrow have two of the four.
        decimal = getattr(pa, match[1], None)
        try:
            return decimal and decimal(int(match[2]), int(match[3]))
        except (ValueError, OverflowError) as error:
            raise SchemaError(f"{text!r} in {setting} is no type: {error}") from error
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None


def _tensor(text: str, inner: str, sizes: list[int], setting: str) -> pa.DataType | None:
    if not 0 < math.prod(sizes) <= VALUES_LIMIT:
        raise SchemaError(f"The sizes of {text!r} in {setting} must be from 1 on, with a product below 2^31.")
    kind = _parsed(inner, setting)
    for size in reversed(sizes if kind is not None else ()):
        kind = pa.list_(kind, size)
    return kind


def _nested(name: str, parts: list[str], setting: str) -> pa.DataType | None:
    names = [""] * len(parts)
    if name == "struct":
        pairs = [_field(part) for part in parts if part]
        names, parts = [one for one, _ in pairs], [inner for _, inner in pairs]
    kinds = [_parsed(part.strip(), setting) for part in parts]
    if None in kinds or len(kinds) != {"list": 1, "map": 2}.get(name, len(kinds)):
        return None
    return {"list": pa.list_, "map": pa.map_}[name](*kinds) if name != "struct" else pa.struct(list(zip(names, kinds)))


def _name_text(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _field(text: str) -> tuple[str, str]:
    """Return name and type of a struct's field."""
    quoted = _QUOTED_OR_CHAR.match(text)
    if quoted is None or len(quoted[0]) == 1:
        name, _, kind = text.partition(": ")
        return name, kind
    try:
        name = json.loads(quoted[0])
    except ValueError:
        return text, ""
    return name, text[quoted.end() :].removeprefix(":")


def _parts(text: str) -> list[str]:
    """Return the texts between the commas that are not inside brackets or quotes."""
    parts, depth = [""], 0
    for char in _QUOTED_OR_CHAR.findall(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in another type, if no value changes its meaning.

    Numbers become other numbers, and lists of a fixed size become lists.

    :raises pyarrow.ArrowInvalid: the types do not fit, or a value would be cut
    """
    if column.type == kind:
        return column
    if not _fits(column.type, kind):
        raise pa.ArrowInvalid(f"{type_text(column.type)} is no {type_text(kind)}")
    return column.cast(kind)


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    lists = (pa.types.is_list, pa.types.is_fixed_size_list)
    if any(test(kind) for test in lists) and any(test(wanted) for test in lists):
        return _fits(kind.value_type, wanted.value_type)
    return _family(kind) == _family(wanted)


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    return "time" if types.is_timestamp(kind) or types.is_date(kind) else type_text(kind)
