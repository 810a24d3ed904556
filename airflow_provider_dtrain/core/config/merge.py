"""Merge of a template and a configuration into one document, with the origin of each leaf.

Rules: A field that only one side has keeps its value. The configuration's scalar wins. Maps are merged
recursively. Lists are concatenated, the template's items first. For values of different shape, the
configuration's wins. ``None`` is the same as absent, except below ``hyperparameters`` (there it is a
constant), in lists, and in ``data`` (there it is kept, but a value of the other side wins). The exceptions
are the rules in :data:`_RULES`.

Each side becomes a tree of nodes with origins. The merge works on nodes, and a last walk yields plain data
and origins. Inputs are never changed and share nothing with the result.

Paths are dotted, list items by index (``bind_mounts.0.host_path``); a key that has a dot of its own
is quoted. A hyperparameter leaf is one path. An empty map or list is a leaf of its own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.core.hyperparameters.space import is_leaf, present_fields
from airflow_provider_dtrain.errors import ConfigError, Problem

MAX_DEPTH: Final = 100

#: The fields that every member of a union has, and the field that names the member.
UNION_COMMON: Final[dict[str, frozenset[str]]] = {
    "checkpoint_storage": frozenset({"save_experiment_best", "save_trial_best", "save_trial_latest"}),
    "searcher": frozenset(
        {"metric", "smaller_is_better", "max_length", "max_time", "time_metric", "source_checkpoint"}
    ),
}
UNION_TAG: Final[dict[str, str]] = {"checkpoint_storage": "type", "searcher": "name"}
#: Rule -> groups of fields. A field of one group in the stronger document removes the other groups' weaker fields.
_EXCLUSIVE: Final[dict[str, tuple[frozenset[str], ...]]] = {
    "period": (frozenset({"batches"}), frozenset({"records"}), frozenset({"epochs"})),
    "searcher": (frozenset({"max_length"}), frozenset({"max_time"})),
    "checkpoint_storage": (frozenset({"connection_string"}), frozenset({"account_url", "credential"})),
    "weights": (frozenset({"experiment"}), frozenset({"trial", "which"}), frozenset({"checkpoint"})),
}


@dataclass(frozen=True, slots=True)
class Override:
    """A value that replaces the template's instead of merging with it (YAML tag ``!override``)."""

    value: Any


class _Reset:
    """Type of :data:`RESET`, which removes the template's field (YAML tag ``!reset``)."""

    def __repr__(self) -> str:
        return "RESET"

    def __copy__(self) -> _Reset:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reset:
        return self

    def __reduce__(self) -> str:
        return "RESET"


#: Removes the field, regardless of the template.
RESET: Final = _Reset()


def merge_config(template: Mapping[str, Any], config: Mapping[str, Any]) -> ConfigDocument:
    """Return the configuration merged over the template as plain data, without defaults.

    :param template: without :class:`Override` and :data:`RESET`
    :param config: may hold :class:`Override` and :data:`RESET` as values of fields
    :raises ConfigError: a tag where it has no meaning, or too many nested levels
    """
    value: ConfigDocument = _value(_merged([("template", template), ("config", config)]))
    return value


def merge_layers(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[ConfigDocument, dict[str, str]]:
    """Return several documents merged, the last one strongest, and the origin of each leaf.

    :param layers: (origin, document), weakest first; tags only in the last one
    :raises ConfigError: a tag where it has no meaning, or too many nested levels
    """
    merged = _merged(layers)
    origins: dict[str, str] = {}
    _note_origins(merged, "", origins)
    return _value(merged), origins


def join_path(path: str, key: str) -> str:
    """Return the dotted path of a field one level down."""
    if "." in key or not key:
        key = '"' + key.replace('"', '\\"') + '"'
    return f"{path}.{key}" if path else key


def path_above(path: str) -> str:
    """Return the path one level up. A quoted name may contain dots."""
    if path.endswith('"'):
        opening = path.rfind('"', 0, -1)
        while opening > 0 and path[opening - 1] == "\\":
            opening = path.rfind('"', 0, opening)
        return path[: max(opening - 1, 0)]
    return path.rpartition(".")[0]


def origin_of(path: str, origins: Mapping[str, str]) -> str:
    """Return the layer that set a value: ``default``, or that of the nearest value above that has one.

    A hyperparameter, a map, or a period that was given as a number has one origin as a whole.

    :param origins: dotted path of each leaf -> its origin
    """
    while path:
        if path in origins:
            return origins[path]
        path = path_above(path)
    return "default"


class _Node:
    __slots__ = ("origin", "value")

    def __init__(self, value: Any, origin: str) -> None:
        self.value = value
        self.origin = origin


class _Leaf(_Node):
    __slots__ = ()


class _Seq(_Node):
    """Node of a list. ``value`` is a list of nodes."""

    __slots__ = ()


class _Map(_Node):
    """Node of a map. ``value`` is a dict of nodes."""

    __slots__ = ()


class _Replace(_Node):
    """Node of an override. ``value`` is a node, or None to drop the field."""

    __slots__ = ()


#: Field -> rules of the fields below it, or the name of its merge rule.
_RULES: Final[dict[str, Any]] = {
    "environment": {"variables": "variables", "environment_variables": "variables"},
    "resources": {"devices": "mounts"},
    "bind_mounts": "mounts",
    "labels": "labels",
    "log_policies": "policies",
    "checkpoint_storage": "checkpoint_storage",
    "searcher": "searcher",
    "min_validation_period": "period",
    "min_checkpoint_period": "period",
    "entrypoint": "atomic",
    "inference": {
        "inputs": {"path": "atomic", "columns": "atomic"},
        "outputs": {"columns": "atomic"},
        "weights": "weights",
    },
    "hyperparameters": "space",
    "data": "data",
}
#: Named rule -> rule of the fields below it. Below ``space`` and ``data``, None is a value.
_BELOW: Final[dict[str, str]] = {
    "space": "hyperparameter",
    "hyperparameter": "hyperparameter",
    "data": "datum",
    "datum": "datum",
}
_KEEPS_NULL: Final = ("hyperparameter", "datum")
_SCALARS: Final = frozenset({str, int, float, bool})


def _rule(above: Any, key: str) -> Any:
    if above is None:
        return None
    if above == "searcher" and key == "max_length":
        return "period"
    return above.get(key) if isinstance(above, dict) else _BELOW.get(above)


class _LayerReader:
    """Converts a document to nodes.

    :param origin: label of its leaves
    :param tags: whether overrides and resets are allowed in it
    """

    def __init__(self, origin: str, *, tags: bool) -> None:
        self.origin = origin
        self.tags = tags
        self.depth = 0
        #: Number of lists around the value that is being read.
        self.lists = 0
        self.problems: list[Problem] = []

    def map(self, value: Mapping[str, Any], path: str, rule: Any) -> _Map:
        """Return the node of a map. Fields that are None are absent."""
        self._enter(path)
        nodes: dict[str, _Node] = {}
        for key, item in value.items():
            if type(item) in _SCALARS:
                nodes[key] = _Leaf(item, self.origin)
                continue
            node = self.node(item, join_path(path, str(key)), _rule(rule, key))
            if node is not None:
                nodes[key] = node
        self.depth -= 1
        return _Map(nodes, self.origin)

    def node(self, value: Any, path: str, rule: Any) -> _Node | None:
        if isinstance(value, Override) or value is RESET:
            return self._tag(value, path, rule)
        if rule == "hyperparameter" and is_leaf(value):
            atom = self._atom(value, path)
            return _Leaf(present_fields(atom) if isinstance(atom, dict) else atom, self.origin)
        if isinstance(value, Mapping):
            return self.map(value, path, rule)
        if isinstance(value, (list, tuple)):
            return self._list(value, path, rule)
        return None if value is None and rule not in _KEEPS_NULL else _Leaf(value, self.origin)

    def _tag(self, value: Any, path: str, rule: Any) -> _Node | None:
        if self.lists:
            # Lists are merged by whole items, so inside an item a tag has no effect on the template.
            self.problems.append(Problem(path=path, message="!override and !reset cannot be used inside a list item"))
            return None
        if not self.tags:
            name = "!reset" if value is RESET else "!override"
            message = f"{name} has no effect here; use it in a configuration that has a template"
            self.problems.append(Problem(path=path, message=message))
            return None
        inner = None if value is RESET else self.node(value.value, path, rule)
        return _Replace(inner, self.origin)

    def _list(self, value: Sequence[Any], path: str, rule: Any) -> _Seq:
        self._enter(path)
        self.lists += 1
        below = "datum" if rule in ("data", "datum") else None
        nodes = [
            _Leaf(item, self.origin)
            if type(item) in _SCALARS or item is None
            else self._item(item, join_path(path, str(index)), below)
            for index, item in enumerate(value)
        ]
        self.depth -= 1
        self.lists -= 1
        return _Seq(nodes, self.origin)

    def _item(self, item: Any, path: str, rule: Any) -> _Node | None:
        if isinstance(item, Override) or item is RESET:
            self.problems.append(Problem(path=path, message="!override and !reset are for fields, not for list items"))
            return None
        return self.node(item, path, rule)

    def _atom(self, value: Any, path: str) -> Any:
        """Return a copy of a hyperparameter leaf. Inside it, an override is its value and a reset is dropped."""
        if isinstance(value, Override):
            return self._atom(value.value, path)
        if isinstance(value, Mapping):
            self._enter(path)
            copy: Any = {key: self._atom(item, path) for key, item in value.items() if item is not RESET}
        elif isinstance(value, (list, tuple)):
            self._enter(path)
            copy = [self._atom(item, path) for item in value if item is not RESET]
        else:
            return value
        self.depth -= 1
        return copy

    def _enter(self, path: str) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConfigError([Problem(path=path[:80], message=f"nested deeper than {MAX_DEPTH}")], source=self.origin)


def _merged(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> _Node:
    merged: _Node = _Map({}, "")
    for index, (origin, document) in enumerate(layers):
        reader = _LayerReader(origin, tags=index == len(layers) - 1)
        node = reader.map(document, "", _RULES)
        if reader.problems:
            raise ConfigError(reader.problems, source=origin)
        merged = _merge(merged, node, _RULES) or merged
    return merged


def _merge(below: _Node | None, above: _Node, rule: Any) -> _Node | None:
    """Return ``above`` merged over ``below``. None drops the field."""
    kind = type(above)
    if kind is _Replace:
        return None if above.value is None else _merge(None, above.value, rule)
    if kind is _Map:
        return _merge_maps(_lower(below, above, rule), above, rule)
    if below is None or rule == "atomic":
        return above
    if rule == "datum" and kind is _Leaf and above.value is None:
        return below
    if kind is _Seq and rule == "variables":
        named = _variables(above)
        return _merge(below, named, rule) if type(named) is _Map else above
    if kind is _Seq and type(below) is _Seq:
        how = _LISTS.get(rule) if isinstance(rule, str) else None
        return _Seq((how or _concatenate)(below.value, above.value), above.origin)
    return above


def _lower(below: _Node | None, above: _Node, rule: Any) -> dict[str, _Node]:
    """Return the fields of the weaker side that take part in the merge."""
    if type(below) is _Seq and rule == "variables":
        below = _variables(below)
    if type(below) is not _Map:
        return {}
    fields: dict[str, _Node] = below.value
    if not isinstance(rule, str):
        return fields
    fields = _without_excluded(fields, above.value, rule)
    if rule not in UNION_TAG:
        return fields
    named = above.value.get(UNION_TAG[rule])
    if type(named) is _Replace:
        named = named.value or _Leaf(None, named.origin)
    member = fields.get(UNION_TAG[rule])
    if named is None or (member is not None and named.value == member.value):
        return fields
    return {key: node for key, node in fields.items() if key in UNION_COMMON[rule]}


def _without_excluded(fields: dict[str, _Node], stronger: dict[str, _Node], rule: str) -> dict[str, _Node]:
    for group in _EXCLUSIVE.get(rule, ()):
        if any(_is_given(stronger.get(name)) for name in group):
            excluded = frozenset().union(*(other for other in _EXCLUSIVE[rule] if other is not group))
            fields = {name: node for name, node in fields.items() if name not in excluded}
    return fields


def _is_given(node: _Node | None) -> bool:
    return node is not None and not (type(node) is _Replace and node.value is None)


def _merge_maps(lower: dict[str, _Node], above: _Node, rule: Any) -> _Map:
    result = dict(lower)
    for key, node in above.value.items():
        merged = node if type(node) is _Leaf and rule is None else _merge(lower.get(key), node, _rule(rule, key))
        if merged is None:
            result.pop(key, None)
        else:
            result[key] = merged
    return _Map(result, above.origin)


def _variables(nodes: _Node) -> _Node:
    """Return a list of ``K=V`` as a map, or the list itself when an entry has another form."""
    texts = [node.value for node in nodes.value]
    if not all(isinstance(text, str) and "=" in text for text in texts):
        return nodes
    pairs = (text.split("=", 1) for text in texts)
    return _Map({key: _Leaf(value, nodes.origin) for key, value in pairs}, nodes.origin)


def _concatenate(below: list[_Node], above: list[_Node]) -> list[_Node]:
    return below + above


def _union_of_labels(below: list[_Node], above: list[_Node]) -> list[_Node]:
    """Return each label once, the weaker side's first. A label of both sides has the stronger side's origin."""
    found: dict[str, _Node] = {}
    for node in below + above:
        found[f"{type(node.value).__name__} {node.value!r}"] = node
    return list(found.values())


def _by_container_path(below: list[_Node], above: list[_Node]) -> list[_Node]:
    result = list(above)
    used = {_container_path(node) for node in above}
    for node in below:
        where = _container_path(node)
        if where is None or where not in used:
            result.append(node)
            used.add(where)
    return result


def _container_path(node: _Node) -> str | None:
    """Return the normalized path of a mount or device in the container: ``/data/`` equals ``/data``."""
    where: Any = None
    if isinstance(node, _Map):
        where = getattr(node.value.get("container_path"), "value", None)
    elif isinstance(node.value, str):
        parts = node.value.split(":")
        where = parts[1] if len(parts) > 1 else parts[0]
    return posixpath.normpath(where) if isinstance(where, str) else None


def _by_policy(below: list[_Node], above: list[_Node]) -> list[_Node]:
    """Return all policies. One of the stronger side replaces those of the weaker side with the same identity."""
    stronger: dict[Any, list[_Node]] = {}
    for node in above:
        stronger.setdefault(_identity(node), []).append(node)
    places: dict[Any, list[_Node]] = {}
    for node in below:
        key = _identity(node)
        if key in stronger:
            places[key] = stronger[key]
        else:
            places.setdefault(key, []).append(node)
    return [node for nodes in (places | stronger).values() for node in nodes]


def _identity(node: _Node) -> tuple[Any, ...]:
    """Return the identity of a policy: its name, or else its pattern and action."""
    fields = node.value if isinstance(node, _Map) else {}
    name, pattern, action = (getattr(fields.get(key), "value", None) for key in ("name", "pattern", "action"))
    if isinstance(name, str):
        return ("name", name)
    if isinstance(pattern, str) and (action is None or isinstance(action, str)):
        return ("unnamed", pattern, action)
    return ("unlike", id(node))


_LISTS: Final[dict[str, Callable[[list[_Node], list[_Node]], list[_Node]]]] = {
    "labels": _union_of_labels,
    "mounts": _by_container_path,
    "policies": _by_policy,
}


def _value(node: _Node) -> Any:
    kind = type(node)
    if kind is _Leaf:
        return node.value
    if kind is _Map:
        return {key: item.value if type(item) is _Leaf else _value(item) for key, item in node.value.items()}
    return [item.value if type(item) is _Leaf else _value(item) for item in node.value]


def _note_origins(node: _Node, path: str, origins: dict[str, str]) -> None:
    if type(node) is _Map and (node.value or not path):
        for key, item in node.value.items():
            _note_origins(item, join_path(path, str(key)), origins)
    elif type(node) is _Seq and node.value:
        for index, item in enumerate(node.value):
            _note_origins(item, f"{path}.{index}", origins)
    else:
        origins[path] = node.origin
