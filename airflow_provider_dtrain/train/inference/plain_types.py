"""Arrow types without differences of encoding, in which all files and batches agree."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without differences of encoding: no dictionary, and 32-bit offsets wherever 64 are possible."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return _nested(kind.value_type, kind.shape)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    return with_inner(kind, plain_type)


def with_inner(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type of lists, maps or structs with other types inside, and any other type as it is."""
    types = pa.types
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(change(kind.value_type))
    if types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    return pa.struct([(field.name, change(field.type)) for field in kind]) if types.is_struct(kind) else kind


def widest_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of two plain types exactly, else None."""
    try:
        both = [pa.schema([("", kind)]) for kind in (one, other)]
        kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None
    return kind if _holds(kind, one) and _holds(kind, other) else None


def _holds(kind: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether the type that pyarrow proposes changes no value: it would round, wrap, and invent fields."""
    types = pa.types
    if kind == narrow or types.is_null(narrow):
        return True
    if types.is_nested(kind):
        names, kinds = zip(*_children(kind))
        own_names, own_kinds = zip(*_children(narrow))
        return bool(names == own_names) and all(map(_holds, kinds, own_kinds))
    if types.is_integer(narrow):
        return types.is_integer(kind) and bool(kind.bit_width > narrow.bit_width)
    return not types.is_string(narrow)


def _children(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        return [(field.name, field.type) for field in kind]
    if pa.types.is_map(kind):
        return [("key", kind.key_type), ("value", kind.item_type)]
    return [("item", kind.value_type)]


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
