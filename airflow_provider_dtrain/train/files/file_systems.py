"""File systems of fsspec, with options from ``checkpoint_storage`` of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.values import Options

#: type -> (protocol of fsspec, module that implements it)
PROTOCOLS = {"s3": ("s3", "s3fs"), "gcs": ("gcs", "gcsfs"), "azure": ("abfs", "adlfs")}
#: Retries that keep a busy or absent server from failing a save.
S3_RETRIES = {"max_attempts": 8, "mode": "standard"}
#: Options of a client that a user waits for: a server that does not answer fails within a minute.
S3_IMPATIENT = {"connect_timeout": 5, "read_timeout": 15, "retries": {"max_attempts": 2, "mode": "standard"}}


def is_url(text: Any) -> bool:
    """Return whether a text is a URL, which fsspec reaches."""
    return isinstance(text, str) and "://" in text


def options_for(protocol: str, config: Mapping[str, Any]) -> Options:
    """Return the keyword arguments of ``fsspec.filesystem(protocol, ...)``.

    :param config: ``checkpoint_storage`` with its secrets; for another type of storage, no credentials are returned
    """
    kind = str(config.get("type") or "")
    if PROTOCOLS.get(kind, ("", ""))[0] != protocol:
        return {}
    return {"s3": _s3, "gcs": _gcs, "azure": _azure}[kind](config)


def file_system(url: str, config: Mapping[str, Any], *, is_patient: bool = True, purpose: str = "Checkpoints") -> Any:
    """Return the fsspec file system that reaches a URL.

    :param is_patient: retry a busy server for minutes, as a save should; False: fail soon (S3)
    :param purpose: subject of the errors' messages
    :raises SetupError: fsspec, or the module for this kind of storage, is not installed
    """
    protocol = url.partition("://")[0]
    protocol = {"s3a": "s3", "gs": "gcs", "az": "abfs"}.get(protocol, protocol)
    module = next((module for name, module in PROTOCOLS.values() if name == protocol), "fsspec")
    try:
        import fsspec

        # A cached listing would hide what another process wrote.
        options = {"use_listings_cache": False, **options_for(protocol, config)}
        if not is_patient and "config_kwargs" in options:
            options["config_kwargs"] = dict(S3_IMPATIENT)
        # Its own instance: no other code changes or sees its credentials.
        return fsspec.filesystem(protocol, **options, skip_instance_cache=True)
    except ImportError as error:
        raise SetupError(
            f"{purpose} at {url} need the module {module}, which is not installed ({error}). "
            f"Install it where the ranks run: python -m pip install {module}"
        ) from error
    except ValueError as error:
        raise SetupError(f"{purpose} at {url} cannot be reached: {error}") from error


def _s3(config: Mapping[str, Any]) -> Options:
    named = {
        "key": config.get("access_key"),
        "secret": config.get("secret_key"),
        "token": config.get("session_token"),
        "endpoint_url": config.get("endpoint_url"),
    }
    options = {name: value for name, value in named.items() if value}
    region = config.get("region_name")
    client = {"client_kwargs": {"region_name": region}} if region else {}
    # A cached listing would hide what another process wrote.
    return {**options, **client, "use_listings_cache": False, "config_kwargs": {"retries": dict(S3_RETRIES)}}


def _gcs(config: Mapping[str, Any]) -> Options:
    named = {"token": config.get("token"), "project": config.get("project"), "endpoint_url": config.get("endpoint_url")}
    return {**{name: value for name, value in named.items() if value}, "use_listings_cache": False}


def _azure(config: Mapping[str, Any]) -> Options:
    options: Options = {}
    if config.get("connection_string"):
        options["connection_string"] = config["connection_string"]
    else:
        host = str(config.get("account_url") or "").partition("://")[2].partition("/")[0]
        options["account_name"] = host.partition(".")[0] or None
        options["account_host"] = host or None
        options["credential"] = config.get("credential")
    return {**{name: value for name, value in options.items() if value}, "use_listings_cache": False}
