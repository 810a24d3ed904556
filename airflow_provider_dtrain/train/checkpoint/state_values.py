"""Values of common Python types in a state: plain dicts stand for them, which need no pickle.

A dict with the only key ``dtrain.value`` stands for a value. Its list has the name of the value's type, and what the
value is made from: ``{"dtrain.value": ["deque", [1, 2], 5]}``. The bytes of an array are a tensor.
"""

from __future__ import annotations

import datetime
import sys
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import count, memory
from airflow_provider_dtrain.train.errors import CheckpointError, StateError
from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.wrapped_tensors import is_unknown, is_wrapped, made, name_of, taken_apart

#: Only key of the dict that stands for a value.
VALUE = "dtrain.value"
#: Most containers inside each other in a state to save or to read, because functions that walk it call themselves.
DEPTH_LIMIT = 100
_PLAIN = frozenset({type(None), bool, int, float, str})
#: Kinds of numbers of NumPy whose bytes say everything: no objects, and no records.
_NUMPY_KINDS = frozenset("biufcSUmM")
#: What the factory of a ``defaultdict`` may be.
FACTORIES: Mapping[str, Any] = {
    "None": None,
    **{kind.__name__: kind for kind in (list, int, dict, float, set, str, bool, tuple, deque, OrderedDict)},
}


def encode(state: Any) -> Any:
    """Return a state with a dict in the place of each value of a known type. Nothing else changes.

    A state without such values is returned itself. Values of unknown types stay in it.

    :raises StateError: the state is nested too deeply, or contains itself
    """
    try:
        encoded = _encoded(state)
        refuse_deep(encoded, "The state of a prepared object")
    except (RecursionError, CheckpointError):
        raise StateError(str(_too_deep("The state of a prepared object"))) from None
    return encoded


def decode(state: Any) -> Any:
    """Return a state with each value in the place of the dict that stands for it.

    :param state: nothing in it is trusted
    :raises CheckpointError: a value has an unknown type, or cannot be made
    """
    if type(state) is dict:
        if len(state) == 1 and VALUE in state:
            return _made(state[VALUE])
        items = [decode(item) for item in state.values()]
        return state if _same(items, state.values()) else dict(zip(state, items))
    if type(state) is OrderedDict:
        items = [decode(item) for item in state.values()]
        return state if _same(items, state.values()) else _ordered(state, zip(state, items))
    if type(state) in {list, tuple}:
        items = [decode(item) for item in state]
        return state if _same(items, state) else type(state)(items)
    return state


def made_of_tensors(state: Any) -> Iterator[Any]:
    """Yield what stands in an encoded state for values that are made of tensors on the CPU."""
    document = state.get(VALUE) if isinstance(state, dict) and len(state) == 1 else None
    if isinstance(document, list) and document and isinstance(document[0], str) and document[0] in _OF_TENSORS:
        yield state
    elif isinstance(state, dict):
        yield from (found for item in state.values() for found in made_of_tensors(item))
    elif isinstance(state, (list, tuple)):
        yield from (found for item in state for found in made_of_tensors(item))


def wrapped_shape(value: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the class and the shape of the tensor that a value of an encoded state stands for, None for any other."""
    document = value.get(VALUE) if isinstance(value, dict) and len(value) == 1 else None
    if type(document) is not list or len(document) != 6 or document[0] != "tensor" or type(document[4]) is not list:
        return None
    return str(document[1]), tuple(document[4])


def _too_deep(name: str) -> CheckpointError:
    return CheckpointError(
        f"{name} may have {DEPTH_LIMIT} containers inside each other, got more, or one that contains itself. Keep "
        "lists and dicts of plain values in it."
    )


def refuse_deep(state: Any, name: str, most: int | None = None) -> None:
    """Raise when the containers of a state are nested too deeply to walk.

    :param name: the state, for the message
    :param most: number of values that it can have, because a small file may refer to one list many times
    :raises CheckpointError: says the limit
    """
    found = 0
    level = [state]
    for _ in range(DEPTH_LIMIT):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, (list, tuple)):
                below.extend(value)
            if most is not None and found + len(below) > most:
                raise CheckpointError(f"{name} must have at most one value per byte, got more than {most}.")
        found += len(below)
        if not below:
            return
        level = below
    raise _too_deep(name)


@dataclass(frozen=True)
class _Form:
    """Way to take a value apart, and to make it again."""

    name: str
    #: Returns what the value is made from, or None if that cannot be saved.
    parts: Callable[[Any], list[Any] | None]
    #: Takes the parts. It may raise TypeError, ValueError, KeyError or OverflowError.
    value: Callable[..., Any]


def _encoded(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict or kind is OrderedDict:
        return _encoded_mapping(value)
    if kind is list or kind is tuple:
        items = [_encoded(item) for item in value]
        return value if _same(items, value) else kind(items)
    form = _FORMS.get(kind) or _numpy_form(value) or _tensor_form(value)
    if form is None:
        return value
    parts = form.parts(value)
    return value if parts is None else {VALUE: [form.name, *[_encoded(part) for part in parts]]}


def _encoded_mapping(value: Any) -> Any:
    keys = [_encoded(key) for key in value]
    items = [_encoded(item) for item in value.values()]
    if VALUE not in value and _same(keys, value):
        if _same(items, value.values()):
            return value
        return _ordered(value, zip(value, items)) if type(value) is OrderedDict else dict(zip(value, items))
    return {VALUE: [type(value).__name__, [list(pair) for pair in zip(keys, items)]]}


def _same(new: Any, old: Any) -> bool:
    return all(one is other for one, other in zip(new, old))


def _ordered(like: Any, pairs: Any) -> OrderedDict[Any, Any]:
    """Return an OrderedDict with the attributes of another: a model's state has the versions of its modules so."""
    taken = OrderedDict(pairs)
    taken.__dict__.update(like.__dict__)
    return taken


def _made(document: Any) -> Any:
    """Return the value that a dict stands for.

    :param document: item of the dict
    """
    if type(document) is not list or not document or type(document[0]) is not str:
        raise CheckpointError(f"A value of the checkpoint must be a list with the name of its type. {_STRANGE}")
    name, *parts = document
    form = _BY_NAME.get(name)
    if form is None:
        raise CheckpointError(
            f"The checkpoint has a value of the type {name[:50]!r}, which this version does not know. {_STRANGE}"
        )
    parts = [decode(part) for part in parts]
    try:
        return form.value(*parts)
    except ImportError as error:
        raise CheckpointError(
            f"The checkpoint has a value of the type {name!r}, which needs {error.name}. Install it where the "
            f"ranks run: {sys.executable} -m pip install {error.name}"
        ) from error
    except (TypeError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise CheckpointError(
            f"The checkpoint has a value of the type {name!r} that cannot be made: {str(error)[:200]}. {_STRANGE}"
        ) from error


_STRANGE = "It was written by a newer version of airflow-provider-dtrain, or by another program."


def _is(value: Any, kind: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, got {type(value).__name__}")
    return value


# -- containers ----------------------------------------------------------------------------------------------------


def _deque(items: Any, most: Any) -> deque[Any]:
    return deque(_is(items, list), None if most is None else _is(most, int))


def _in_order(value: Any) -> list[Any]:
    """Return the elements of a set in an order that is the same on all ranks."""
    return [sorted(value, key=lambda item: (type(item).__name__, repr(item)))]


def _factory_parts(value: Any) -> list[Any] | None:
    name = next((name for name, factory in FACTORIES.items() if factory is value.default_factory), None)
    return None if name is None else [name, _pairs(value)]


def _pairs(value: Any) -> list[Any]:
    return [list(pair) for pair in value.items()]


# -- bytes and numbers ---------------------------------------------------------------------------------------------


def _tensor(content: Any) -> Any:
    import torch

    return torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)


def _bytes(tensor: Any) -> bytes:
    return bytes(memory(_checked(tensor)))


def _checked(tensor: Any) -> Any:
    import torch

    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        raise TypeError("a tensor of bytes is expected")
    return tensor.contiguous()


def _numpy_form(value: Any) -> _Form | None:
    numpy = imported("numpy")
    if numpy is None:
        return None
    if type(value) is numpy.ndarray:
        return _BY_NAME["ndarray"]
    if isinstance(value, numpy.generic) and type(value) is value.dtype.type:
        return _BY_NAME["numpy number"]
    return None


def _tensor_form(value: Any) -> _Form | None:
    """Return the form of a tensor that is made of others, such as a quantized one, None for anything else."""
    return _BY_NAME["tensor"] if is_wrapped(value) and not is_unknown(value) else None


def _wrapped_parts(value: Any) -> list[Any]:
    parts, context = taken_apart(value.detach())
    return [name_of(type(value)), parts, context, list(value.shape), list(value.stride())]


def _wrapped(name: Any, parts: Any, context: Any, shape: Any, strides: Any) -> Any:
    for number in (*_is(shape, list), *_is(strides, list)):
        _is(number, int)
    return made(_is(name, str), _is(parts, dict), context, shape, strides)


def _array_parts(value: Any) -> list[Any] | None:
    import numpy

    if value.dtype.kind not in _NUMPY_KINDS or value.dtype.itemsize == 0:
        return None
    # As a pickle of it does, the copy of an array has its numbers column by column or row by row.
    order = "F" if value.flags.fnc else "C"
    # torch warns about memory that is read only.
    flat = numpy.require(value.T if order == "F" else value, requirements=["C", "W"]).reshape(-1)
    return [value.dtype.str, list(value.shape), order, _tensor(flat.view(numpy.uint8))]


def _array(dtype: Any, shape: Any, order: Any, tensor: Any) -> Any:
    import numpy

    kind = _dtype(dtype)
    size_bytes = count(_is(size, int) for size in _is(shape, list)) * kind.itemsize
    if any(size < 0 for size in shape) or size_bytes != _checked(tensor).numel():
        raise ValueError(f"the shape {shape} of {dtype} has not the size of its {tensor.numel()} bytes")
    if size_bytes == 0:
        return numpy.empty(shape, kind)
    return numpy.frombuffer(memory(_checked(tensor)), kind).reshape(shape, order=_is(order, str))


def _number_parts(value: Any) -> list[Any] | None:
    return [value.dtype.str, value.tobytes().hex()] if value.dtype.kind in _NUMPY_KINDS else None


def _number(dtype: Any, content: Any) -> Any:
    import numpy

    kind = _dtype(dtype)
    data = bytes.fromhex(_is(content, str))
    if len(data) != kind.itemsize:
        raise ValueError(f"{dtype} has {kind.itemsize} bytes, got {len(data)}")
    # Text of length 0 has no bytes.
    return numpy.frombuffer(data, kind)[0] if data else kind.type()


def _dtype(name: Any) -> Any:
    """Return the ``numpy.dtype`` of a name, which must be the one that NumPy itself gives it."""
    import numpy

    dtype = numpy.dtype(_is(name, str))
    if dtype.kind not in _NUMPY_KINDS or dtype.str != name:
        raise ValueError(f"{name[:50]!r} is no type of numbers")
    return dtype


# -- times ---------------------------------------------------------------------------------------------------------


def _moment_parts(value: datetime.datetime) -> list[Any] | None:
    numbers = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
    return [numbers, value.fold, value.tzinfo] if _is_known_zone(value.tzinfo) else None


def _moment(numbers: Any, fold: Any, zone: Any) -> datetime.datetime:
    year, month, day, hour, minute, second, microsecond = _is(numbers, list)
    return datetime.datetime(year, month, day, hour, minute, second, microsecond, fold=fold, tzinfo=zone)


def _clock_parts(value: datetime.time) -> list[Any] | None:
    numbers = [value.hour, value.minute, value.second, value.microsecond]
    return [numbers, value.fold, value.tzinfo] if _is_known_zone(value.tzinfo) else None


def _clock(numbers: Any, fold: Any, zone: Any) -> datetime.time:
    hour, minute, second, microsecond = _is(numbers, list)
    return datetime.time(hour, minute, second, microsecond, fold=fold, tzinfo=zone)


def _is_known_zone(zone: Any) -> bool:
    return zone is None or type(zone) is datetime.timezone or (type(zone) is zoneinfo.ZoneInfo and zone.key is not None)


def _zone(offset: Any, *name: Any) -> datetime.timezone:
    return datetime.timezone(offset, *name)


def _named_zone(key: Any) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(_is(key, str))
    except zoneinfo.ZoneInfoNotFoundError as error:
        raise ValueError(f"this machine does not know the time zone {key[:50]!r}") from error


_FORMS: Mapping[type, _Form] = {
    Counter: _Form("Counter", lambda value: [_pairs(value)], lambda pairs: Counter(dict(_is(pairs, list)))),
    deque: _Form("deque", lambda value: [list(value), value.maxlen], _deque),
    set: _Form("set", _in_order, lambda items: set(_is(items, list))),
    frozenset: _Form("frozenset", _in_order, lambda items: frozenset(_is(items, list))),
    defaultdict: _Form("defaultdict", _factory_parts, lambda name, pairs: defaultdict(FACTORIES[name], pairs)),
    bytes: _Form("bytes", lambda value: [_tensor(bytearray(value))], _bytes),
    bytearray: _Form("bytearray", lambda value: [_tensor(value[:])], lambda tensor: bytearray(_bytes(tensor))),
    complex: _Form("complex", lambda value: [value.real, value.imag], complex),
    type(Path()): _Form("Path", lambda value: [str(value)], Path),
    PurePosixPath: _Form("PurePosixPath", lambda value: [str(value)], PurePosixPath),
    PureWindowsPath: _Form("PureWindowsPath", lambda value: [str(value)], PureWindowsPath),
    datetime.datetime: _Form("datetime", _moment_parts, _moment),
    datetime.date: _Form("date", lambda value: [value.year, value.month, value.day], datetime.date),
    datetime.time: _Form("time", _clock_parts, _clock),
    datetime.timedelta: _Form(
        "timedelta", lambda value: [value.days, value.seconds, value.microseconds], datetime.timedelta
    ),
    datetime.timezone: _Form("timezone", lambda value: list(value.__getinitargs__()), _zone),
    zoneinfo.ZoneInfo: _Form("ZoneInfo", lambda value: None if value.key is None else [value.key], _named_zone),
}
_BY_NAME: Mapping[str, _Form] = {
    **{form.name: form for form in _FORMS.values()},
    # A dict with keys of these types, or with the key that stands for a value.
    "dict": _Form("dict", lambda value: [_pairs(value)], lambda pairs: dict(_is(pairs, list))),
    "OrderedDict": _Form("OrderedDict", lambda value: [_pairs(value)], lambda pairs: OrderedDict(_is(pairs, list))),
    "ndarray": _Form("ndarray", _array_parts, _array),
    "numpy number": _Form("numpy number", _number_parts, _number),
    "tensor": _Form("tensor", _wrapped_parts, _wrapped),
}
#: Forms that are made of the numbers of tensors on the CPU.
_OF_TENSORS = frozenset({"bytes", "bytearray", "ndarray", "tensor"})
