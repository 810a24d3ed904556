"""Places of fields in YAML texts: of problems in a text that a user types, and of origins in a rendered document."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import yaml

from airflow_provider_dtrain.core.config.merge import join_path, origin_of, path_above
from airflow_provider_dtrain.core.config.yaml_reader import MAX_DEPTH, MAX_PATH, MAX_VALUES
from airflow_provider_dtrain.errors import Problem

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MARK = re.compile(r" \(line (\d{1,7}), column (\d{1,7})\)")


class TextPosition(NamedTuple):
    """Place in a text, both numbers from 1."""

    line: int
    column: int


START: Final = TextPosition(1, 1)


@dataclass(frozen=True)
class DocumentLine:
    """One line of a rendered document."""

    text: str
    #: Dotted path of the value that begins or continues on the line; empty: none.
    path: str
    #: Origin of the value; empty for a line without one.
    origin: str


def positions(text: str) -> dict[str, TextPosition]:
    """Return the place of each field and each item of a list, as far as a document may have them.

    :param text: YAML; its size bounds the cost
    """
    return {path: at for path, at, _ in _nodes(text)}


def places_of(text: str, problems: Sequence[Problem]) -> list[TextPosition]:
    """Return the places of problems in a text.

    :param text: any text; a problem of one that cannot be read names its place itself
    """
    known: Mapping[str, TextPosition] = {}
    if any(_MARK.search(one.message) is None for one in problems):
        with contextlib.suppress(yaml.YAMLError, UnicodeError):
            known = positions(text)
    return [_place_of(one.path, one.message, known) for one in problems]


def _nodes(text: str) -> list[tuple[str, TextPosition, Any]]:
    """Return path, place and node of each field, in the order of the text."""
    root = yaml.compose(text, Loader=_LOADER)
    found: list[tuple[str, TextPosition, Any]] = []
    stack: list[tuple[str, Any, int]] = [] if root is None else [("", root, 0)]
    while stack and len(found) <= MAX_VALUES:
        path, node, depth = stack.pop()
        if depth > MAX_DEPTH:
            continue
        below: list[tuple[str, Any, int]] = []
        for name, at, value in _children(node):
            own = join_path(path, name)
            if len(own) > MAX_PATH:
                # No document with such a field is accepted.
                continue
            found.append((own, TextPosition(at.start_mark.line + 1, at.start_mark.column + 1), value))
            below.append((own, value, depth + 1))
        stack.extend(reversed(below))
    return found


def _children(node: Any) -> list[tuple[str, Any, Any]]:
    """Return (name, node of the place, node of the value) of the entries of a map or list."""
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
    if isinstance(node, yaml.SequenceNode):
        return [(str(index), item, item) for index, item in enumerate(node.value)]
    return []


def _place_of(path: str, message: str, known: Mapping[str, TextPosition]) -> TextPosition:
    """Return the place of a problem: the one that its message names, else its field's, else the nearest field above.

    :param known: see :func:`positions`
    """
    if (mark := _MARK.search(message)) is not None:
        return TextPosition(int(mark[1]), int(mark[2]))
    while path:
        if path in known:
            return known[path]
        path = path_above(path)
    return START


def without_place(message: str) -> str:
    """Return the message of a problem without the line and column in it."""
    return _MARK.sub("", message)


def rendered(document: Mapping[str, Any], origins: Mapping[str, str]) -> list[DocumentLine]:
    """Return an effective document as lines of YAML, each with the path and origin of its value.

    :param document: plain data, secrets masked
    :param origins: dotted path of each leaf -> its origin; values without one are defaults
    """
    text = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)
    at: dict[int, tuple[str, bool]] = {}
    for path, place, node in _nodes(text):
        is_leaf = isinstance(node, yaml.ScalarNode) or not node.value
        at[place.line] = (path, is_leaf)
    lines = []
    path, is_leaf = "", False
    for number, line in enumerate(text.splitlines(), 1):
        path, is_leaf = at.get(number, (path, is_leaf))
        lines.append(DocumentLine(line, path, origin_of(path, origins) if is_leaf else ""))
    return lines
