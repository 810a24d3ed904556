"""Configurations and templates from a file, from standard input, or from the store."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.config.yaml_reader import MAX_BYTES, load_yaml
from airflow_provider_dtrain.core.regular_files import read_regular
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, Problem
from airflow_provider_dtrain.terminal.output import note

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.submission.assembly import Assembled
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


@dataclass(frozen=True, kw_only=True)
class InputDocument:
    """A document as the user gave it."""

    #: For messages: the path, or ``standard input``.
    name: str
    #: Base folder of relative paths in the document.
    folder: Path
    text: str
    document: dict[str, Any]


def read(path: str, *, what: str) -> InputDocument:
    """Return the YAML document of a file, or of standard input for ``-``.

    :param what: kind of document, for messages
    :raises ConfigError: it cannot be read, or is not acceptable YAML
    """
    text = read_text(path, what=what)
    name = "standard input" if path == "-" else path
    folder = Path.cwd() if path == "-" else Path(path).absolute().parent
    return InputDocument(name=name, folder=folder, text=text, document=load_yaml(text, source=name))


def read_text(path: str, *, what: str) -> str:
    """Return the text of a file, or of standard input for ``-``.

    :param what: kind of file, for messages
    :raises ConfigError: it cannot be read, is too large, or is not UTF-8
    """
    name = "standard input" if path == "-" else path
    data = _bytes(path, what)
    if len(data) > MAX_BYTES:
        raise _refusal(f"larger than {MAX_BYTES} bytes (1 MiB), the most that is accepted", name)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(f"not UTF-8: {error.reason} at byte {error.start}", name) from None


def _bytes(path: str, what: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        return read_regular(path, limit_bytes=MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refusal(f"the {what} cannot be read: {reason}. Name a file, or - for standard input", path) from None


def _refusal(message: str, source: str) -> ConfigError:
    return ConfigError([Problem(path="", message=message)], source=source)


def _refuse_secrets(source: InputDocument) -> None:
    """Raise an error if a document that is stored as it is written holds a literal secret."""
    from airflow_provider_dtrain.core.config import literal_secrets

    message = "a literal secret. Name an Airflow connection that holds it, or put it into the configuration"
    private = "a private variable. Put it into the configuration, or add it to environment.public_variables here"
    problems = [
        Problem(path=path, message=private if path.startswith("environment.") else message)
        for path in literal_secrets(source.document)
    ]
    if problems:
        raise ConfigError(problems, source=source.name)


def find_template(hook: DtrainHook, named: object, folder: Path) -> Mapping[str, Any] | None:
    """Return a template by the name of a stored one or of a ``.yaml`` file.

    :param named: None: no template
    :param folder: base folder of a relative path
    :raises NotFoundError: no stored template has this name; lists those that exist
    """
    from airflow_provider_dtrain.core.config.forms import is_path_like

    if named is None:
        return None
    name = str(named)
    if is_path_like(name):
        return read(str(folder / name), what="template").document
    stored = hook.store.templates.get(name)
    return load_yaml(stored.text, source=f"template '{stored.name}'")


def assemble(hook: DtrainHook, source: InputDocument, template: str | None) -> Assembled:
    """Return the effective configuration and the pool it would run in. Stores nothing.

    A pool that does not exist is a warning, because it may exist when the configuration starts.

    :param template: name or ``.yaml`` file from the command line; None: the one that the configuration names
    :raises ConfigError: all problems at once
    :raises NotFoundError: the documents name no pool, and there are several
    """
    from airflow_provider_dtrain.engine.submission.assembly import assembled
    from airflow_provider_dtrain.hooks.hosts import LOCAL_POOL

    if template is not None:
        base = find_template(hook, template, Path.cwd())
    else:
        base = find_template(hook, source.document.get("template"), source.folder)
    try:
        found = assembled(hook.store, source.document, base)
    except ConfigError as error:
        raise ConfigError(error.problems, source=source.name) from None
    if not found.pool:
        raise NotFoundError(found.no_pool)
    if found.no_pool is not None and found.pool != LOCAL_POOL:
        note(f"Warning: {found.no_pool}")
    return found


def check_template(source: InputDocument) -> None:
    """Validate a template or the defaults of a pool: types, ranges, no tags, no secrets.

    :raises ConfigError: all problems at once
    """
    from airflow_provider_dtrain.core.config import validate_partial

    for warning in validate_partial(source.document, source.name, template=True):
        note(f"Warning: {warning}")
    _refuse_secrets(source)
