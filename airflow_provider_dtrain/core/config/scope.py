"""Fields of a document that cross-field rules may rely on, and repair of documents with invalid fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_dtrain.core.config.merge import join_path
from airflow_provider_dtrain.core.config.unions import MEMBERS
from airflow_provider_dtrain.core.documents import ConfigDocument

#: Valid values for missing required fields. They are unrelated to other fields.
_STAND_INS: Final[dict[str, Any]] = {
    "metric": "metric",
    "max_trials": 1,
    "num_rungs": 1,
    "host_path": "/",
    "bucket": "stand-in",
    "container": "stand-in",
    "outputs": {"path": "/stand-in"},
    "path": "/stand-in",
}
_DROPPED: Final = object()


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The fields of a document that rules may compare."""

    #: Paths that hold a stand-in, or were left out because their value is wrong.
    repaired: frozenset[str] = frozenset()
    #: A document that may be partial: only fields written in it count. None: defaults count as well.
    written: Mapping[str, Any] | None = None

    @property
    def is_partial(self) -> bool:
        """Return True when fields may be missing."""
        return self.written is not None

    def knows(self, *paths: str) -> bool:
        """Return whether rules may rely on the values at all of these dotted paths."""
        return all(not self._is_repaired(path) and self._is_written(path) for path in paths)

    def _is_repaired(self, path: str) -> bool:
        return any(f"{path}.".startswith(f"{other}.") or other.startswith(f"{path}.") for other in self.repaired)

    def _is_written(self, path: str) -> bool:
        part: Any = self.written
        if part is None:
            return True
        for name in path.split("."):
            if not isinstance(part, Mapping) or part.get(name) is None:
                return False
            part = part[name]
        return True


#: A complete document without errors.
WHOLE: Final = Scope()


class Repair:
    """A copy of a document in which missing fields have stand-ins and wrong ones are left out.

    :param document: plain, without tags
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: ConfigDocument = _copy(document)
        self.repaired: set[str] = set()

    def apply(self, errors: Sequence[Any]) -> bool:
        """Repair the fields that the errors name, and return whether every error could be handled.

        :param errors: from ``ValidationError.errors()``
        """
        lists: dict[int, list[Any]] = {}
        for error in errors:
            if not self._mend(error, lists):
                return False
        for items in lists.values():
            items[:] = [item for item in items if item is not _DROPPED]
        return True

    def _mend(self, error: Any, lists: dict[int, list[Any]]) -> bool:
        location = [part for index, part in enumerate(error["loc"]) if not _is_mark(index, part, error["loc"])]
        if not location:
            return False
        part: Any = self.document
        for name in location[:-1]:
            try:
                part = part[name]
            except (KeyError, IndexError, TypeError):
                return False
        self.repaired.add(_dotted(location))
        return _replace(part, location[-1], _stand_in(error, len(self.repaired)), lists)


def _is_mark(index: int, part: Any, location: Sequence[Any]) -> bool:
    """Return whether a part of a location is pydantic's own: the member of a union, or the mark of a key."""
    return part == "[key]" or (index == 1 and location[0] in MEMBERS)


def _dotted(location: Sequence[Any]) -> str:
    path = ""
    for part in location:
        path = join_path(path, str(part))
    return path


def _stand_in(error: Any, number: int) -> Any:
    if error["type"] != "missing":
        return _DROPPED
    name = error["loc"][-1]
    return f"/stand-in/{number}" if name == "container_path" else _STAND_INS.get(name, _DROPPED)


def _replace(part: Any, key: Any, value: Any, lists: dict[int, list[Any]]) -> bool:
    if isinstance(part, dict) and isinstance(key, str):
        if value is _DROPPED:
            part.pop(key, None)
        else:
            part[key] = value
        return True
    if isinstance(part, list) and isinstance(key, int) and key < len(part):
        part[key] = value
        lists[id(part)] = part
        return True
    return False


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value
