"""Secrets of a configuration: encrypted with Airflow's Fernet key, or taken from an Airflow connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_provider_dtrain.core.config.secrets import PUBLIC, REGISTRY, VARIABLES
from airflow_provider_dtrain.core.documents import ConfigDocument, JsonObject
from airflow_provider_dtrain.core.launch.registry import registry_of, server_name
from airflow_provider_dtrain.core.redaction import Redactor, secret_texts
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, Problem
from airflow_provider_dtrain.store.configs import model_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.store.records.trials import Config

_PREFIX = f"{VARIABLES}."
#: Variable of the ranks that holds the secrets: a JSON object, dotted path -> value.
VARIABLE = "DTRAIN_SECRETS"
#: ``checkpoint_storage.type`` -> type of the Airflow connection with its credentials.
_CONNECTION_TYPES = {"s3": "aws", "gcs": "google_cloud_platform", "azure": "wasb"}
#: Names of bucket settings that are secrets.
_SECRET_NAMES = ("access_key", "secret_key", "session_token", "connection_string", "credential", "token")


def seal(document: Mapping[str, Any]) -> tuple[ConfigDocument, bytes | None]:
    """Return the document with its secrets masked, and the encrypted secrets (None without any).

    :param document: effective configuration
    :raises ConfigError: the document has secrets, but Airflow has no Fernet key
    """
    from airflow_provider_dtrain.core.config import take_secrets

    public, secrets = take_secrets(document)
    if not secrets:
        return public, None
    from airflow.sdk.configuration import conf
    from airflow.sdk.crypto import get_fernet

    if not conf.get("core", "fernet_key", fallback=""):
        raise ConfigError([Problem(path=path, message=_needs_key(path)) for path in secrets])
    for path, value in secrets.items():
        if not _is_variable(path):
            mask_secret(value)
    return public, get_fernet().encrypt(json.dumps(secrets).encode())


def as_variables(sealed: bytes | None) -> dict[str, str]:
    """Return the environment variable that carries the secrets to the ranks.

    Private variables and the credentials of a registry, which ranks do not need, are not part of it.

    :param sealed: encrypted secrets from :func:`seal`
    """
    found = {
        path: value
        for path, value in opened(sealed).items()
        if not _is_variable(path) and not path.startswith(f"{REGISTRY}.")
    }
    return {VARIABLE: json.dumps(found)} if found else {}


def private_variables(sealed: bytes | None) -> dict[str, str]:
    """Return the private variables of ``environment.variables`` by name.

    :param sealed: encrypted secrets from :func:`seal`
    """
    found = opened(sealed)
    return {path.removeprefix(_PREFIX): str(value) for path, value in found.items() if _is_variable(path)}


def _is_variable(path: str) -> bool:
    return path.startswith(_PREFIX)


def _needs_key(path: str) -> str:
    if _is_variable(path):
        name = path.removeprefix(_PREFIX)
        return f"a private variable needs Airflow's [core] fernet_key. Set one, or add {name} to {PUBLIC}"
    return "a literal secret needs Airflow's [core] fernet_key. Set one, or name an Airflow connection instead"


def opened(sealed: bytes | None) -> JsonObject:
    """Return the secrets by dotted path."""
    if sealed is None:
        return {}
    from airflow.sdk.crypto import get_fernet

    return dict(json.loads(get_fernet().decrypt(sealed).decode()))


async def with_connection(config: ExperimentConfig, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the ranks' secrets together with the credentials of the storage's Airflow connection.

    :param variables: environment variables from :func:`as_variables`
    :raises NotFoundError: Airflow has no such connection
    """
    conn_id = getattr(config.checkpoint_storage, "conn_id", None)
    if conn_id is None:
        return dict(variables)
    try:
        connection = await BaseHook.aget_connection(conn_id)
    except Exception as error:
        raise _no_connection(config, error) from error
    return _added(config, connection, variables)


async def package_index(config: ExperimentConfig) -> dict[str, Any] | None:
    """Return the package index of ``environment.index_conn_id`` with its credentials, None without one.

    Never store or show the result.

    :raises NotFoundError: Airflow has no such connection
    :raises ConfigError: it names no index
    """
    conn_id = config.environment.index_conn_id
    if conn_id is None:
        return None
    connection = await _fetched("index_conn_id", conn_id, "--conn-type http --conn-host https://INDEX/simple")
    extra = (connection.extra_dejson or {}).get("extra_index_urls") or []
    urls = [connection.host or "", *([extra] if isinstance(extra, str) else extra)]
    if not all(isinstance(url, str) and url.startswith(("http://", "https://")) for url in urls):
        message = (
            f"the host of connection '{conn_id}' must be the URL of an index, such as https://packages.example/simple"
        )
        raise ConfigError([Problem(path="environment.index_conn_id", message=message)])
    if connection.password:
        mask_secret(connection.password)
    return {"urls": urls, "login": connection.login, "password": connection.password}


async def registry_login(config: ExperimentConfig, sealed: bytes | None, image: str) -> dict[str, str] | None:
    """Return registry, user name and password for the download of an image, None without credentials.

    Never store or show the result.

    :param sealed: encrypted secrets from :func:`seal`
    :raises NotFoundError: Airflow has no such connection
    :raises ConfigError: it names no registry, or has no credentials
    """
    auth, conn_id = config.environment.registry_auth, config.environment.registry_conn_id
    if auth is not None:
        password = opened(sealed).get(f"{REGISTRY}.password", auth.password)
        server = registry_of(image) if auth.server is None else server_name(auth.server)
        return {"server": server, "username": auth.username, "password": str(password)}
    if conn_id is None:
        return None
    connection = await _fetched("registry_conn_id", conn_id, "--conn-type docker --conn-host registry.example.com")
    if not (connection.host and connection.login and connection.password):
        # Without a host, the image would decide who gets the credentials.
        message = f"connection '{conn_id}' must have the name of a registry as its host, a login and a password"
        raise ConfigError([Problem(path="environment.registry_conn_id", message=message)])
    mask_secret(connection.password)
    server = server_name(f"{connection.host}:{connection.port}" if connection.port else connection.host)
    return {"server": server, "username": connection.login, "password": connection.password}


async def _fetched(field: str, conn_id: str, options: str) -> Any:
    """Return the connection that a field of the environment names.

    :param options: of the command that adds such a connection
    :raises NotFoundError: Airflow has no such connection
    """
    try:
        return await BaseHook.aget_connection(conn_id)
    except Exception as error:
        message = (
            f"environment.{field} names connection '{conn_id}', which cannot be fetched: {error}. Add it with: airflow "
            f"connections add {conn_id} {options} ..."
        )
        raise NotFoundError(message) from error


def _added(config: ExperimentConfig, connection: Any, variables: Mapping[str, str]) -> dict[str, str]:
    known = json.loads(variables.get(VARIABLE) or "{}")
    given = config.checkpoint_storage.model_dump(exclude_none=True)
    found = {
        f"checkpoint_storage.{name}": value
        for name, value in credentials(str(config.checkpoint_storage.type), connection).items()
        if name not in given
    }
    return {**variables, VARIABLE: json.dumps({**found, **known})}


async def redactor(stored: Config) -> Redactor:
    """Return the mask for the secrets and private variables of a stored configuration."""
    try:
        return _redactor(stored.secrets, await with_connection(model_of(stored), {}))
    except Exception as error:
        return _withheld(stored.secrets, error)


def redactor_now(stored: Config) -> Redactor:
    """Return the same as :func:`redactor`, for synchronous code."""
    try:
        return _redactor(stored.secrets, _with_connection_now(model_of(stored), {}))
    except Exception as error:
        return _withheld(stored.secrets, error)


async def storage_config(config: ExperimentConfig, sealed: bytes | None) -> ConfigDocument:
    """Return ``checkpoint_storage`` with its credentials, for the control side.

    Never store or show the result.
    """
    return _storage_config(config, await with_connection(config, as_variables(sealed)))


def storage_config_now(config: ExperimentConfig, sealed: bytes | None) -> ConfigDocument:
    """Return the same as :func:`storage_config`, for synchronous code."""
    return _storage_config(config, _with_connection_now(config, as_variables(sealed)))


def _with_connection_now(config: ExperimentConfig, variables: Mapping[str, str]) -> dict[str, str]:
    conn_id = getattr(config.checkpoint_storage, "conn_id", None)
    if conn_id is None:
        return dict(variables)
    try:
        connection = BaseHook.get_connection(conn_id)
    except Exception as error:
        raise _no_connection(config, error) from error
    return _added(config, connection, variables)


def _redactor(sealed: bytes | None, of_connection: Mapping[str, str]) -> Redactor:
    own = [value for path, value in opened(sealed).items() if not _is_variable(path)]
    fetched = json.loads(of_connection.get(VARIABLE) or "{}")
    values = {path.rpartition(".")[2]: value for path, value in fetched.items()}
    secret = [values[name] for name in _SECRET_NAMES if name in values]
    texts = [text for value in (*own, *secret) for text in secret_texts(value)]
    return Redactor(texts, private_variables(sealed).values())


def _withheld(sealed: bytes | None, error: Exception) -> Redactor:
    """Return a mask for all text of ranks, because not all of their secrets are known."""
    message = f"withheld, because the secrets in it are not known: {error}"
    try:
        known = [text for value in opened(sealed).values() for text in secret_texts(value)]
    except Exception:
        known = []
    return Redactor(known, withheld=message)


def _storage_config(config: ExperimentConfig, variables: Mapping[str, str]) -> ConfigDocument:
    from airflow_provider_dtrain.train.environment import put_secrets

    document = {"checkpoint_storage": config.checkpoint_storage.model_dump(mode="json", exclude_none=True)}
    secrets = json.loads(variables.get(VARIABLE) or "{}")
    own = {path: value for path, value in secrets.items() if path.startswith("checkpoint_storage.")}
    return dict(put_secrets(document, own)["checkpoint_storage"])


def credentials(kind: str, connection: Any) -> ConfigDocument:
    """Return the bucket settings of a connection under the names of ``checkpoint_storage``.

    :param kind: ``s3`` (connection of type aws), ``gcs`` (google_cloud_platform) or ``azure`` (wasb)
    """
    extra = connection.extra_dejson or {}
    found = {"s3": _aws, "gcs": _google, "azure": _azure}[kind](connection, extra)
    given = {name: value for name, value in found.items() if value}
    for name in _SECRET_NAMES:
        if name in given and name != "access_key":
            # Airflow does not mask single values in a connection's extra.
            mask_secret(given[name])
    return given


def _aws(connection: Any, extra: Mapping[str, Any]) -> ConfigDocument:
    return {
        "access_key": connection.login or extra.get("aws_access_key_id"),
        "secret_key": connection.password or extra.get("aws_secret_access_key"),
        "session_token": extra.get("aws_session_token"),
        "endpoint_url": extra.get("endpoint_url"),
        "region_name": extra.get("region_name"),
    }


def _google(connection: Any, extra: Mapping[str, Any]) -> ConfigDocument:
    keyfile = extra.get("keyfile_dict")
    if keyfile is None and extra.get("key_path"):
        keyfile = Path(extra["key_path"]).read_text(encoding="utf-8")
    token = json.loads(keyfile) if isinstance(keyfile, str) and keyfile else keyfile
    return {"token": token, "project": extra.get("project")}


def _azure(connection: Any, extra: Mapping[str, Any]) -> ConfigDocument:
    if extra.get("connection_string"):
        return {"connection_string": extra["connection_string"]}
    host = connection.host or (f"{connection.login}.blob.core.windows.net" if connection.login else "")
    url = host if not host or "://" in host else f"https://{host}"
    return {"account_url": url, "credential": connection.password or extra.get("sas_token")}


def _no_connection(config: ExperimentConfig, error: Exception) -> NotFoundError:
    storage = config.checkpoint_storage
    conn_id = getattr(storage, "conn_id", None)
    kind = _CONNECTION_TYPES.get(str(storage.type))
    return NotFoundError(
        f"checkpoint_storage.conn_id names connection '{conn_id}', which cannot be fetched: {error}. "
        f"Add it with: airflow connections add {conn_id} --conn-type {kind} ..."
    )
