"""Conversion of pydantic errors to problems with a dotted path, the value, and the accepted values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel

from airflow_provider_dtrain.core.config.determined_compat import INSTEAD, REPLACED, SYNONYMS
from airflow_provider_dtrain.core.config.inference import MODEL_PARALLEL
from airflow_provider_dtrain.core.config.merge import UNION_TAG, join_path
from airflow_provider_dtrain.core.config.secrets import hides_in_message
from airflow_provider_dtrain.core.config.unions import MEMBERS
from airflow_provider_dtrain.core.safe_repr import JINJA, LIMIT, is_jinja, shown
from airflow_provider_dtrain.errors import Problem

_TYPES: Final[dict[str, str]] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of 64 bits",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map of fields",
    "model_attributes_type": "a map of fields",
}
_LIMITS: Final[dict[str, tuple[str, str]]] = {
    "greater_than_equal": ("is below", "ge"),
    "greater_than": ("is not above", "gt"),
    "less_than_equal": ("is above", "le"),
    "less_than": ("is not below", "lt"),
}
Location = tuple[int | str, ...]
#: Maximum number of unknown fields in a document for which a similar known field is suggested.
GUIDED: Final = 50


def problems_of(
    errors: Sequence[Any], model: type[BaseModel], document: Mapping[str, Any], *, partial: bool
) -> list[Problem]:
    """Return one problem per error, without repetition, in the order of the fields.

    :param errors: from ``ValidationError.errors()``
    :param model: the model of the whole document
    :param document: the document with the errors
    :param partial: whether fields may be missing
    """
    found: dict[Problem, None] = {}
    guide = _Guide(model)
    for error in errors:
        if partial and error["type"] == "missing":
            continue
        unnamed = _unnamed(error, document)
        found.update(dict.fromkeys(_problems(error, guide) if unnamed is None else [unnamed]))
    return list(found)


def _owners(location: Location) -> list[str]:
    """Return the members of a union that define a field which is unknown to the named member."""
    members = MEMBERS.get(str(location[0]), {}).items()
    return [name for name, member in members if location[-1] in member.model_fields]


def _unnamed(error: Any, document: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a section that does not name its member, or None for any other error."""
    location: Location = error["loc"]
    if error["type"] != "extra_forbidden" or location[0] not in UNION_TAG or not (owners := _owners(location)):
        return None
    union = str(location[0])
    tag = UNION_TAG[str(location[0])]
    section = document.get(union)
    if not isinstance(section, Mapping) or section.get(tag) is not None:
        return None
    return Problem(path=f"{union}.{tag}", message=f"missing; {location[-1]} is a field of {', '.join(owners)}")


def _problems(error: Any, guide: _Guide) -> Iterator[Problem]:
    kind = error["type"]
    location = error["loc"]
    context = error.get("ctx", {})
    path = _path(location)
    if kind == "dtrain" and "problems" in context:
        yield from context["problems"]
    elif kind == "union_tag_not_found":
        yield _unknown_member(path, error["input"])
    elif kind == "extra_forbidden":
        yield Problem(path=path, message=guide.unknown_field(location))
    else:
        yield Problem(path=path, message=_message(kind, path, error, context))


def _message(kind: str, path: str, error: Any, context: Any) -> str:
    if kind == "dtrain":
        return str(context["words"]) + _jinja_hint(error)
    return _about(kind, path, error, context) + _jinja_hint(error)


def _jinja_hint(error: Any) -> str:
    return f". {JINJA}" if is_jinja(error["input"]) else ""


def _about(kind: str, path: str, error: Any, context: Any) -> str:
    value = "the value" if hides_in_message(path) else shown(error["input"])
    if kind == "missing":
        return "missing; it is required here"
    if kind in _LIMITS:
        phrase, limit = _LIMITS[kind]
        return f"{value} {phrase} {context[limit]:g}" if context[limit] < 1e6 else f"{value} {phrase} {context[limit]}"
    if kind in _TYPES:
        return f"{value} is not {_TYPES[kind]}"
    if kind == "finite_number":
        return f"{value} is not a finite number"
    if kind == "literal_error":
        return f"{value} is not one of {context['expected'].replace(' or ', ', ')}"
    return f"{value}: {error['msg']}"


def _path(location: Location) -> str:
    """Return the dotted path, without the union members and the marks of keys that pydantic adds."""
    path = ""
    for index, part in enumerate(location):
        is_member = index == 1 and location[0] in MEMBERS
        if not is_member and part != "[key]":
            path = join_path(path, str(part))
    return path


def _unknown_member(union: str, value: Any) -> Problem:
    if not isinstance(value, dict):
        return Problem(path=union, message=f"{shown(value)} is not a map of fields")
    tag = UNION_TAG[union]
    names = [name for name in MEMBERS[union] if " " not in name]
    message = f"{shown(value[tag])} is not one of {', '.join(names)}"
    instead = INSTEAD[union].get(value[tag]) if isinstance(value[tag], str) else None
    hint = f"; {instead}" if instead else _nearest(value[tag], names)
    return Problem(path=f"{union}.{tag}", message=message + hint)


class _Guide:
    """Suggests known fields for unknown ones.

    :param model: the model of the whole document
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        self.paths = list(_all_paths(model))
        self.left = GUIDED

    def unknown_field(self, location: Location) -> str:
        key = str(location[-1])
        if location[0] == "inference" and key in MODEL_PARALLEL:
            return "a model that needs several slots for one replica is not supported: each slot holds a whole replica"
        if location == ("defaults",):
            return (
                "a list of Hydra, which is not read here. Give the composed file, as Hydra's option --cfg job prints it"
            )
        if instead := REPLACED.get(f"{location[0]}.{key}"):
            return f"a field of Determined without a counterpart here; set {instead}"
        if owners := _owners(location):
            verb = "does" if len(owners) == 1 else "do"
            return f"'{location[1]}' does not have this field; {', '.join(owners)} {verb}"
        self.left -= 1
        if self.left < 0 or len(key) > LIMIT:
            return "unknown field"
        here = _fields_at(location[:-1], self.model)
        section = str(location[0]) if len(location) == 2 else ""
        synonyms = [old for part, old in SYNONYMS if part == section]
        if near := _begins(key, here) or _nearest(key, [*here, *synonyms]) or self._elsewhere(key):
            return f"unknown field{near}"
        return f"unknown field; known here: {', '.join(sorted(here))}"

    def _elsewhere(self, key: str) -> str:
        by_name = {path.rpartition(".")[2]: path for path in reversed(self.paths)}
        near = [key] if key in by_name else [name for name in by_name if name.startswith(f"{key}_")]
        near = near or difflib.get_close_matches(key, by_name, n=1, cutoff=0.8)
        return f"; did you mean {by_name[near[0]]}?" if near else ""


def _begins(key: str, known: Sequence[str]) -> str:
    """Return a suggestion when the key begins one field name, such as ``slots`` for ``slots_per_trial``."""
    near = [name for name in known if name.startswith(f"{key}_")]
    return f"; did you mean {near[0]}?" if len(near) == 1 else ""


def _nearest(key: object, known: Sequence[str]) -> str:
    if not isinstance(key, str) or len(key) > LIMIT:
        return ""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _fields_at(location: Location, model: type[BaseModel]) -> list[str]:
    current: type[BaseModel] = model
    for index, part in enumerate(location):
        if index == 1 and location[0] in MEMBERS:
            current = MEMBERS[str(location[0])][str(part)]
        elif isinstance(part, str) and (field := _named_fields(current).get(part)) is not None:
            models = list(_models(field.annotation))
            current = models[0] if models else current
    return list(_named_fields(current))


def _named_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a model by the names that documents use."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _all_paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in _named_fields(model).items():
        path = join_path(above, name)
        yield path
        for inner in _models(field.annotation):
            yield from _all_paths(inner, path)
