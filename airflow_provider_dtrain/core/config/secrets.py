"""Secrets of a configuration: masked in output, and removed before a document is stored.

A secret is a credential of the checkpoint storage or of a registry, a value below ``data.secrets``, or an environment
variable that ``environment.public_variables`` does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.config.merge import RESET, Override, join_path
from airflow_provider_dtrain.core.documents import ConfigDocument, JsonObject
from airflow_provider_dtrain.core.safe_repr import names_secret

MASK: Final = "********"
SECRET_KEYS: Final = frozenset({"access_key", "secret_key", "connection_string", "credential"})
#: Secrets and private variables of one configuration. All text of its ranks is searched for each of them.
MOST_SECRETS: Final = 200
#: Path of the variables in an effective document, and both paths in a document as written.
VARIABLES: Final = "environment.variables"
PUBLIC: Final = "environment.public_variables"
_VARIABLES: Final = ("variables", "environment_variables")
_OPEN: Final = tuple(f"environment.{name}" for name in _VARIABLES)
#: Credentials of a registry. All but these keys are secret, also in a document of Determined.
REGISTRY: Final = "environment.registry_auth"
_REGISTRY: Final = ("environment", "registry_auth")
_OPEN_OF_REGISTRY: Final = frozenset({"username", "server", "serveraddress", "email"})
#: Sections whose value is hidden when it is not a map, because it may be one of the section's entries.
_SECTIONS: Final = frozenset({"environment", "data", "checkpoint_storage"})
NONE: Final[frozenset[str]] = frozenset()
Keys = tuple[str, ...]


def hides_in_message(path: str) -> bool:
    """Return whether error messages omit the value at a path."""
    is_open = path.startswith(("data.", *(f"{one}." for one in _OPEN))) or path in _OPEN
    is_named = names_secret(path.rpartition(".")[2]) or not SECRET_KEYS.isdisjoint(path.split("."))
    is_login = path == REGISTRY or path.startswith(f"{REGISTRY}.")
    return is_open or path in _SECTIONS or is_named or is_login


def public_variables(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the variables that a document marks as public.

    :param document: as written or effective
    """
    section = _plain(document.get("environment"))
    names = _plain(section.get("public_variables")) if isinstance(section, Mapping) else None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, (list, tuple)) else NONE


def mask(document: Mapping[str, Any]) -> ConfigDocument:
    """Return a copy of a document that may be shown or logged.

    :param document: as written or effective
    """
    masked: ConfigDocument = _replaced(document, (), _Secrets(document), lambda *_: MASK)
    return masked


def literal_secrets(document: Mapping[str, Any]) -> list[str]:
    """Return the paths of the values that :func:`mask` hides.

    :param document: as written
    """
    found: list[str] = []

    def note(keys: Keys, _value: Any) -> str:
        found.append(_dotted(keys))
        return MASK

    _replaced(document, (), _Secrets(document), note)
    return found


def take_secrets(document: Mapping[str, Any]) -> tuple[ConfigDocument, JsonObject]:
    """Return the document with secrets masked, and the secrets by path.

    :func:`put_secrets` is the inverse. Hyperparameters are never secrets: the code, the store and the curves get them
    unchanged.

    :param document: effective, without tags
    """
    secrets: JsonObject = {}

    def take(keys: Keys, value: Any) -> Any:
        if keys[0] == "hyperparameters":
            return value
        secrets[_dotted(keys)] = value
        return MASK

    public: ConfigDocument = _replaced(document, (), _Secrets(document), take)
    return public, secrets


def put_secrets(document: Mapping[str, Any], secrets: Mapping[str, Any]) -> ConfigDocument:
    """Return the document as it was before :func:`take_secrets`."""
    whole: ConfigDocument = _put(document, (), secrets)
    return whole


class _Secrets:
    """Decides which values of one document are secrets."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._public = public_variables(document)

    def hides(self, keys: Keys) -> bool:
        """Return whether everything at and below a place is a secret."""
        last = keys[-1]
        if last in SECRET_KEYS or keys == ("data", "secrets"):
            return True
        if len(keys) == 3 and keys[:2] == _REGISTRY:
            return last not in _OPEN_OF_REGISTRY
        return len(keys) == 3 and is_variables(keys[:2]) and self.hides_variable(last)

    def hides_variable(self, name: str) -> bool:
        return name not in self._public


def is_variables(keys: Keys) -> bool:
    """Return whether a place is that of the environment variables."""
    return len(keys) == 2 and keys[0] == "environment" and keys[1] in _VARIABLES


def _replaced(
    value: Any, keys: Keys, secrets: _Secrets, replace: Callable[[Keys, Any], Any], hidden: bool = False
) -> Any:
    """Return a copy of a value with each scalar that is a secret replaced.

    :param hidden: everything in it is a secret
    """
    if isinstance(value, Override):
        return Override(_replaced(value.value, keys, secrets, replace, hidden))
    if isinstance(value, Mapping):
        return {
            key: _replaced(item, below := (*keys, str(key)), secrets, replace, hidden or secrets.hides(below))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        of_variables = is_variables(keys)
        return [
            _entry(item, (*keys, str(index)), secrets, replace)
            if of_variables
            else _replaced(item, (*keys, str(index)), secrets, replace, hidden)
            for index, item in enumerate(value)
        ]
    is_hidden = hidden or is_variables(keys) or keys == _REGISTRY or (len(keys) == 1 and keys[0] in _SECTIONS)
    return replace(keys, value) if is_hidden and value is not None and value is not RESET else value


def _entry(item: Any, keys: Keys, secrets: _Secrets, replace: Callable[[Keys, Any], Any]) -> Any:
    """Return an entry ``K=V`` of a list of variables, with its value replaced when it is a secret."""
    if item is None:
        return None
    name, equals, value = item.partition("=") if isinstance(item, str) else ("", "", item)
    if not equals:
        return replace(keys, item)
    return f"{name}={replace(keys, value)}" if secrets.hides_variable(name) else item


def _put(value: Any, keys: Keys, secrets: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _put(item, (*keys, str(key)), secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_put(item, (*keys, str(index)), secrets) for index, item in enumerate(value)]
    return secrets.get(_dotted(keys), value) if value == MASK else value


def _dotted(keys: Keys) -> str:
    path = ""
    for key in keys:
        path = join_path(path, key)
    return path


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Override) else value


def masked_paths(document: Mapping[str, Any]) -> list[str]:
    """Return the paths of masked values in a document."""
    return [_dotted(keys) for keys in _masked(document, ())]


def _masked(value: Any, keys: Keys) -> Iterator[Keys]:
    if isinstance(value, Override):
        yield from _masked(value.value, keys)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _masked(item, (*keys, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _masked(item, (*keys, str(index)))
    elif isinstance(value, str) and (value == MASK or value.endswith(f"={MASK}")):
        yield keys


def unmasked(document: Mapping[str, Any], whole: Mapping[str, Any]) -> ConfigDocument:
    """Return a document with the values of another one in place of masked values at the same paths.

    :param document: as a user edited it
    :param whole: with its secrets
    """
    found: ConfigDocument = _unmasked(document, whole)
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
