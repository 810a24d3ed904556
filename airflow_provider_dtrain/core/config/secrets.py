"""Secrets of a configuration: masked in output, and removed before a document is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.config.merge import Override, join_path
from airflow_provider_dtrain.core.safe_repr import may_be_secret, names_secret

MASK: Final = "********"
SECRET_KEYS: Final = frozenset({"access_key", "secret_key", "connection_string", "credential"})
_HIDDEN_TREE: Final = "data.secrets"
_VARIABLES: Final = ("environment.variables.", "environment.environment_variables.")
#: Sections whose value is hidden when it is not a map, because it may be one of the section's entries.
_SECTIONS: Final = frozenset({"environment", "data", "checkpoint_storage"})


def is_secret(path: str) -> bool:
    """Return whether the value at a dotted path is a secret: masked, and encrypted in the store.

    Hyperparameters are never secrets: the code, the store and the curves get them unchanged.
    """
    return not path.startswith("hyperparameters.") and _names_secret(path)


def _names_secret(path: str) -> bool:
    in_tree = path == _HIDDEN_TREE or path.startswith(_HIDDEN_TREE + ".")
    return in_tree or not SECRET_KEYS.isdisjoint(path.split("."))


def hides(path: str) -> bool:
    """Return whether a value is hidden: a secret, or a variable whose name indicates one."""
    if path.startswith(_VARIABLES):
        return names_secret(path.rpartition(".")[2])
    return _names_secret(path)


def hides_in_message(path: str) -> bool:
    """Return whether error messages omit the value at a path."""
    is_open = path.startswith(("data.", *_VARIABLES)) or path + "." in _VARIABLES
    return is_open or path in _SECTIONS or hides(path) or names_secret(path.rpartition(".")[2])


def mask(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a document that may be shown or logged.

    :param document: as written or effective
    """
    masked: dict[str, Any] = _mask(document, "")
    return masked


def literal_secrets(document: Mapping[str, Any]) -> list[str]:
    """Return the paths of the values that :func:`mask` hides.

    :param document: as written
    """
    return list(_differences(document, mask(document), ""))


def _differences(value: Any, masked: Any, path: str) -> Iterator[str]:
    if isinstance(value, Override):
        yield from _differences(value.value, masked.value, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _differences(item, masked[key], join_path(path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _differences(item, masked[index], join_path(path, str(index)))
    elif value != masked:
        yield path


def take_secrets(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the document with secrets masked, and the secrets by path.

    :func:`put_secrets` is the inverse.

    :param document: effective, without tags
    """
    secrets: dict[str, Any] = {}
    public: dict[str, Any] = _take(document, "", secrets)
    return public, secrets


def put_secrets(document: Mapping[str, Any], secrets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document as it was before :func:`take_secrets`."""
    whole: dict[str, Any] = _put(document, "", secrets)
    return whole


def _mask(value: Any, path: str) -> Any:
    if isinstance(value, Override):
        return Override(_mask(value.value, path))
    if isinstance(value, Mapping):
        return {key: _mask(item, join_path(path, str(key))) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if path + "." in _VARIABLES:
            return [_entry(item, path) for item in value]
        return [_mask(item, join_path(path, str(index))) for index, item in enumerate(value)]
    if value is None or hides(path):
        return value if value is None else MASK
    is_variable = path.startswith(_VARIABLES) and isinstance(value, str)
    return MASK if is_variable and may_be_secret(value) else value


def _entry(item: Any, path: str) -> Any:
    """Return an entry ``K=V`` of a list of variables, with its value masked when it may be a secret."""
    if not isinstance(item, str):
        return None if item is None else MASK
    name, equals, value = item.partition("=")
    return f"{name}={MASK}" if equals and (hides(f"{path}.{name}") or may_be_secret(value)) else item


def _take(value: Any, path: str, secrets: dict[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _take(item, join_path(path, str(key)), secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_take(item, join_path(path, str(index)), secrets) for index, item in enumerate(value)]
    if value is None or not is_secret(path):
        return value
    secrets[path] = value
    return MASK


def _put(value: Any, path: str, secrets: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _put(item, join_path(path, str(key)), secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_put(item, join_path(path, str(index)), secrets) for index, item in enumerate(value)]
    return secrets.get(path, value)


def masked_paths(document: Mapping[str, Any]) -> list[str]:
    """Return the paths of masked values in a document."""
    return list(_masked(document, ""))


def _masked(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Override):
        yield from _masked(value.value, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _masked(item, join_path(path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _masked(item, join_path(path, str(index)))
    elif isinstance(value, str) and (value == MASK or value.endswith(f"={MASK}")):
        yield path


def unmasked(document: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the values of another one in place of masked values at the same paths.

    :param document: as a user edited it
    :param whole: with its secrets
    """
    found: dict[str, Any] = _unmasked(document, whole)
    return found


def _unmasked(value: Any, whole: Any) -> Any:
    if isinstance(value, Override):
        return Override(_unmasked(value.value, whole))
    if isinstance(value, Mapping):
        known = whole if isinstance(whole, Mapping) else {}
        return {key: _unmasked(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        entries = list(whole) if isinstance(whole, (list, tuple)) else []
        return [_entry_unmasked(item, index, entries) for index, item in enumerate(value)]
    return whole if value == MASK and isinstance(whole, (str, int, float)) else value


def _entry_unmasked(item: Any, index: int, entries: list[Any]) -> Any:
    """Return an entry of a list: ``K=********`` becomes the entry of the same name."""
    if isinstance(item, str) and item.endswith(f"={MASK}"):
        name = item.removesuffix(MASK)
        return next((one for one in entries if isinstance(one, str) and one.startswith(name)), item)
    return _unmasked(item, entries[index] if index < len(entries) else None)
