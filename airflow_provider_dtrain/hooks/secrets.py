"""Secrets of a configuration: encrypted with Airflow's Fernet key before they reach the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.errors import ConfigError, Problem

#: Variable of the ranks that holds the secrets: a JSON object, dotted path -> value.
VARIABLE = "DTRAIN_SECRETS"


def seal(document: Mapping[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """Return the document with its secrets masked, and the secrets encrypted (None when it has none).

    :param document: effective configuration
    :raises ConfigError: there are secrets and Airflow has no Fernet key
    """
    from airflow_provider_dtrain.core.config import take_secrets

    public, secrets = take_secrets(document)
    if not secrets:
        return public, None
    from airflow.sdk.configuration import conf
    from airflow.sdk.crypto import get_fernet
    from airflow.sdk.log import mask_secret

    if not conf.get("core", "fernet_key", fallback=""):
        message = "a literal secret needs Airflow's [core] fernet_key; set one, or name an Airflow connection instead"
        raise ConfigError([Problem(path=path, message=message) for path in secrets])
    for value in secrets.values():
        mask_secret(value)
    return public, get_fernet().encrypt(json.dumps(secrets).encode())


def as_variables(sealed: bytes | None) -> dict[str, str]:
    """Return the environment variables that carry the secrets to the ranks.

    :param sealed: what :func:`seal` returned
    """
    if sealed is None:
        return {}
    from airflow.sdk.crypto import get_fernet

    return {VARIABLE: get_fernet().decrypt(sealed).decode()}
