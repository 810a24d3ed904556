"""Documents that are stored as they are written: templates, and the defaults of pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.core.config.assembly import validate_partial
from airflow_provider_dtrain.core.config.secrets import literal_secrets
from airflow_provider_dtrain.errors import ConfigError, Problem

_SECRET = "a literal secret. Name an Airflow connection that holds it, or put it into the configuration"  # noqa: S105
_PRIVATE = "a private variable. Put it into the configuration, or add it to environment.public_variables here"


def checked_partial(document: Mapping[str, Any], source: str) -> list[str]:
    """Return the warnings of a template or of the defaults of a pool: types, ranges, no tags, no secrets.

    :param source: name of the document in error messages
    :raises ConfigError: all problems at once
    """
    warnings = validate_partial(document, source, template=True)
    problems = [
        Problem(path=path, message=_PRIVATE if path.startswith("environment.") else _SECRET)
        for path in literal_secrets(document)
    ]
    if problems:
        raise ConfigError(problems, source=source)
    return warnings
