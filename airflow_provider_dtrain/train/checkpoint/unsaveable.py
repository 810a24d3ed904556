"""Values of a state that no checkpoint holds: where they are, and what to save instead."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.checkpoint.state_values import FACTORIES
from airflow_provider_dtrain.train.errors import CheckpointError, StateError
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.process.imported import imported

_ANY = (
    "Keep tensors, NumPy arrays, numbers, strings, dates, paths, lists, dicts and sets in it, and rebuild the object "
    "in load_state_dict."
)


class UnsaveableError(CheckpointError):
    """Raised for a value that only a pickle could load.

    :param why: reason, which continues the sentence
    """

    def __init__(self, value: Any, why: str) -> None:
        self.value = value
        self.why = why
        super().__init__(self.text("a prepared object", ""))

    def text(self, owner: str, path: str) -> str:
        """Return the message.

        :param owner: object whose state it is
        :param path: subscripts of the value in the state
        """
        place = f" at state_dict(){path}" if path else ""
        return f"The state of {owner} holds {_name(self.value)}{place}, {self.why}. {remedy(self.value)}"


def _name(value: Any) -> str:
    named = value if isinstance(getattr(value, "__qualname__", None), str) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


@contextlib.contextmanager
def located(state: Mapping[str, Any], prepared: Prepared) -> Iterator[None]:
    """Add the object and the path to the error about a value in the state of the prepared objects.

    :param state: kind of the objects -> their states
    """
    try:
        yield
    except UnsaveableError as error:
        path = _path(state, error.value)
        if path is None:
            raise StateError(str(error)) from None
        owner, inner = _owner(path, prepared)
        raise StateError(error.text(owner, "".join(inner))) from None


def _owner(path: list[str], prepared: Prepared) -> tuple[str, list[str]]:
    """Return the name of the object that has a path in its state, and the rest of the path."""
    for kind, items in prepared.groups().items():
        for index, item in enumerate(items):
            if path[:2] == [f"[{kind!r}]", f"[{index}]"]:
                name = prepared.names.get(index) if kind == "others" else None
                shown = f"{kind}[{index}]" if name is None else repr(name)
                return f"{shown} ({type(item).__name__})", path[2:]
    return "the training", path


def _path(state: Any, value: Any) -> list[str] | None:
    """Return the subscripts that lead to a value in nested containers, or None if it is not there."""
    if state is value:
        return []
    for step, item in _items(state):
        rest = _path(item, value)
        if rest is not None:
            return [step, *rest]
    return None


def _items(state: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        for key, item in state.items():
            yield f"[{key!r}]", item
            yield f" (key {key!r})", key
    elif isinstance(state, (list, tuple, deque)):
        for index, item in enumerate(state):
            yield f"[{index}]", item
    elif isinstance(state, (set, frozenset)):
        for item in state:
            yield " (in the set)", item


def remedy(value: Any) -> str:
    """Return what a program saves instead of a value."""
    numpy = imported("numpy")
    if isinstance(value, enum.Enum):
        return "Save its value: member.value."
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return "Save a named tuple as a dict: value._asdict()."
    if dataclasses.is_dataclass(value):
        return "Save a data class as a dict: dataclasses.asdict(value)."
    if type(value) is defaultdict:
        return f"Save it as dict(value), or take one of {', '.join(FACTORIES)} as its factory."
    if numpy is not None and isinstance(value, numpy.ndarray):
        if type(value) is not numpy.ndarray:
            return "Save it as a plain array: numpy.asarray(value)."
        return "Save an array of objects as a list, value.tolist(), and one of records as an array per field."
    for kind in (OrderedDict, dict, list, tuple, set, frozenset, deque, str, int, float, bytes):
        if isinstance(value, kind):
            return f"Save it as a plain {kind.__name__}: {kind.__name__}(value)."
    return _ANY
