"""Arrow types without differences of encoding, in which all files and batches agree."""

from __future__ import annotations

import pyarrow as pa


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without differences of encoding: no dictionary, and 32-bit offsets wherever 64 are possible."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return _nested(kind.value_type, kind.shape)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or kind in _views("string_view"):
        return pa.string()
    if pa.types.is_large_binary(kind) or kind in _views("binary_view"):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, plain_type(kind.field(i).type)) for i in range(kind.num_fields)])
    return kind


def widest_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of two plain types exactly, else None."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_integer(one) and types.is_integer(other):
        return _widest_integer(one, other)
    if types.is_floating(one) and types.is_floating(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if types.is_decimal(one) and types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = scale + max(kind.precision - kind.scale for kind in (one, other))
        return None if digits > 76 else pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    if types.is_timestamp(one) and types.is_timestamp(other):
        return max(one, other, key=lambda kind: _UNITS.index(kind.unit)) if one.tz == other.tz else None
    return _widest_nested(one, other)


_UNITS = ("s", "ms", "us", "ns")
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def _widest_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    if signed[0] == signed[1]:
        return max(one, other, key=lambda kind: kind.bit_width)
    # A signed type holds an unsigned one of half its width.
    bits = max(kind.bit_width * (1 if is_signed else 2) for kind, is_signed in zip((one, other), signed))
    return next((kind for kind in _SIGNED if kind.bit_width == bits), None)


def _widest_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_list(one) and types.is_list(other):
        inner = widest_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_fixed_size_list(one) and types.is_fixed_size_list(other) and one.list_size == other.list_size:
        inner = widest_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner, one.list_size)
    if types.is_map(one) and types.is_map(other):
        both = [widest_type(one.key_type, other.key_type), widest_type(one.item_type, other.item_type)]
        return None if None in both else pa.map_(*both)
    if types.is_struct(one) and types.is_struct(other) and [f.name for f in one] == [f.name for f in other]:
        kinds = [widest_type(first.type, second.type) for first, second in zip(one, other)]
        return None if None in kinds else pa.struct(list(zip([field.name for field in one], kinds)))
    return None


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece and with its plain type."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = plain_type(column.type)
    return column if column.type == kind else decoded(column).cast(kind)


def decoded(column: pa.Array) -> pa.Array:
    """Return a column without its extension type or dictionary."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        return _tensors(column)
    if isinstance(column, pa.ExtensionArray):
        return decoded(column.storage)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _tensors(column: pa.ExtensionArray) -> pa.Array:
    """Return the tensors of a column as nested lists of fixed sizes."""
    storage, shape = column.storage, column.type.shape
    if storage.null_count:
        raise pa.ArrowInvalid("a column of tensors with nulls cannot be read")
    found = storage.flatten()
    for size in reversed(shape):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found


def _nested(kind: pa.DataType, shape: list[int]) -> pa.DataType:
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind


def _views(name: str) -> tuple[pa.DataType, ...]:
    """Return a type that early versions of pyarrow do not have."""
    return (getattr(pa, name)(),) if hasattr(pa, name) else ()
