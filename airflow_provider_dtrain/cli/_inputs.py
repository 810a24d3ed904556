"""Configurations and templates from a file, from standard input, or from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.errors import ConfigError, NotFoundError
from airflow_provider_dtrain.terminal.input_text import InputText, read_input
from airflow_provider_dtrain.terminal.output import note

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.submission.assembly import Assembled
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


@dataclass(frozen=True, kw_only=True)
class InputDocument(InputText):
    """A document as the user gave it."""

    document: dict[str, Any]


def read(path: str, *, what: str) -> InputDocument:
    """Return the YAML document of a file, or of standard input for ``-``.

    :param what: kind of document, for messages
    :raises ConfigError: it cannot be read, or is not acceptable YAML
    """
    return parsed(read_input(path, what=what))


def parsed(given: InputText) -> InputDocument:
    """Return the YAML document in a text.

    :raises ConfigError: it is not acceptable YAML
    """
    document = load_yaml(given.text, source=given.name)
    return InputDocument(name=given.name, folder=given.folder, text=given.text, document=document)


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
    """Validate a template or the defaults of a pool, and print its warnings.

    :raises ConfigError: all problems at once
    """
    from airflow_provider_dtrain.core.config.partial import checked_partial

    for warning in checked_partial(source.document, source.name):
        note(f"Warning: {warning}")
