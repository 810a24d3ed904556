"""What is secret in a configuration: masked where it is shown, taken out before it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.merge import Override, join_path

MASK: Final = "********"
SECRET_KEYS: Final = frozenset({"access_key", "secret_key", "connection_string", "credential"})
_HIDDEN_TREE: Final = "data.secrets"
_VARIABLES: Final = ("environment.variables.", "environment.environment_variables.")
_SECRET_VARIABLE: Final = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRETS|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)(_|$)",
    re.IGNORECASE,
)


def is_secret(path: str) -> bool:
    """Return whether the value at a dotted path is a secret: masked, and encrypted in the store.

    Hyperparameters are none: they reach the code, the store and the curves as they are.
    """
    return not path.startswith("hyperparameters.") and _names_secret(path)


def _names_secret(path: str) -> bool:
    in_tree = path == _HIDDEN_TREE or path.startswith(_HIDDEN_TREE + ".")
    return in_tree or not SECRET_KEYS.isdisjoint(path.split("."))


def hides(path: str) -> bool:
    """Return whether a value is not shown: secrets, and variables whose name says that they hold one."""
    if path.startswith(_VARIABLES):
        return bool(_SECRET_VARIABLE.search(path.rpartition(".")[2]))
    return _names_secret(path)


def mask(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a document that may be shown or logged.

    :param document: as written or effective
    """
    masked: dict[str, Any] = _mask(document, "")
    return masked


def take_secrets(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the document with secrets masked, and the secrets by path; see :func:`put_secrets`.

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
        return [_mask(_entry(item, path), join_path(path, str(index))) for index, item in enumerate(value)]
    return MASK if value is not None and hides(path) else value


def _entry(item: Any, path: str) -> Any:
    """Return an entry ``K=V`` of a list of variables with its value masked when its name asks for it."""
    if path + "." not in _VARIABLES or not isinstance(item, str):
        return item
    name, equals, _ = item.partition("=")
    return f"{name}={MASK}" if equals and hides(f"{path}.{name}") else item


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
