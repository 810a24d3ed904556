"""YAML reader with the rules of the control side: plain data, scalars of YAML 1.2. Needs PyYAML."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import yaml

_CORE = "tag:yaml.org,2002:"

# Source: YAML 1.2.2, 10.3.2 (core schema, tag resolution).
_NULL = re.compile(r"(?:null|Null|NULL|~|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_SPECIAL = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


def load(text: str) -> Any:
    """Return the only document of the text, or None if it is empty.

    :raises ValueError: the text is not YAML, or holds several documents, or a tag that is not accepted
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # the loader is a safe one
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


class _Loader(yaml.SafeLoader):
    """Loader in which ``1e-3`` and ``010`` are numbers, and ``on``, ``yes``, ``12:30``, ``2024-01-01`` strings."""

    # In this order, because an integer also matches the pattern of floats.
    yaml_implicit_resolvers: Any = {
        None: [
            (_CORE + "merge", re.compile(r"<<\Z")), (_CORE + "null", _NULL), (_CORE + "bool", _BOOL),
            (_CORE + "int", _INT), (_CORE + "float", _FLOAT), (_CORE + "float", _SPECIAL),
        ],
    }  # fmt: skip
    yaml_constructors: ClassVar[Any] = {
        name: yaml.SafeLoader.yaml_constructors[name] for name in (_CORE + "str", _CORE + "seq", _CORE + "map", None)
    }


def _value(text: str) -> bool | int | float | str | None:
    """Return the value of an unquoted scalar."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text[0] in "tT"
    if _INT.match(text):
        return int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    if _FLOAT.match(text):
        return float(text)
    special = _SPECIAL.match(text)
    if special:
        return math.nan if special.group(1) is None else float(special.group(1) + "inf")
    return text


def _typed(kinds: tuple[type, ...]) -> Any:
    """Return a constructor for scalars that have one of these types, by an explicit tag or by their form."""

    def build(loader: Any, node: Any) -> Any:
        text = loader.construct_scalar(node)
        value = _value(text)
        if type(value) not in kinds:
            name = node.tag[len(_CORE) :]
            raise yaml.constructor.ConstructorError(None, None, f"{text[:40]!r} is not a valid {name}", node.start_mark)
        return float(value) if kinds == (float, int) and type(value) is int else value

    return build


def _same(loader: Any, node: Any) -> Any:
    """Build the value below ``!override``. Without a template below, the tag has no effect."""
    if isinstance(node, yaml.ScalarNode):
        return _value(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True)


for _name, _kinds in (("null", (type(None),)), ("bool", (bool,)), ("int", (int,)), ("float", (float, int))):
    _Loader.add_constructor(_CORE + _name, _typed(_kinds))
_Loader.add_constructor("!override", _same)
_Loader.add_constructor("!reset", lambda loader, node: None)
