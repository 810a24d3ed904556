"""Object storage that the API server contacts for a download."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.core.checkpoint_location import SCHEMES

#: Field of ``checkpoint_storage`` that names a server, by its type.
_SERVERS = {"s3": "endpoint_url", "azure": "account_url"}
OPTION = "[dtrain] download_storage"
#: Other addresses and buckets are never allowed: a path or a user in them would make a prefix match elsewhere.
_PLAIN = re.compile(r"[a-z0-9]+://[A-Za-z0-9._-]+|https?://[A-Za-z0-9.:\[\]-]+/[A-Za-z0-9._-]+", re.ASCII)


def storage_refusal(storage: Mapping[str, Any], allowed: Sequence[str]) -> str:
    """Return why the API server does not contact a storage, empty if it does.

    The author of a configuration is not an administrator of Airflow. Without this rule, a configuration could send the
    API server to any address, or read any bucket with the identity of its machine.

    :param storage: ``checkpoint_storage`` of the configuration; its secrets may be masked
    :param allowed: places that the administrator lists: see :func:`place_of`
    """
    kind = str(storage.get("type") or "")
    place = place_of(storage)
    if storage.get("connection_string"):
        return "Its configuration has a connection string, which may name any server. Use checkpoint_storage.conn_id."
    if _PLAIN.fullmatch(place) is None or ".." in place:
        return "The address of its server or the name of its bucket is not plain."
    if any(_is_below(place, one) for one in allowed):
        return ""
    only = f"An administrator can allow it in {OPTION}: {place}"
    if (field := _SERVERS.get(kind)) and storage.get(field):
        return f"Its configuration names the server ({field}). {only}"
    if not (storage.get("conn_id") or storage.get("access_key")):
        return f"Its configuration has no credentials, and the API server does not use its own. {only}"
    return ""


def place_of(storage: Mapping[str, Any]) -> str:
    """Return the place of a configuration as an administrator writes it: server or scheme, then bucket."""
    kind = str(storage.get("type") or "")
    bucket = str(storage.get("bucket") or storage.get("container") or "").strip("/")
    server = storage.get(_SERVERS.get(kind, ""))
    return f"{str(server).rstrip('/')}/{bucket}" if server else f"{SCHEMES.get(kind, kind)}://{bucket}"


def _is_below(place: str, allowed: str) -> bool:
    """Return whether a place is an allowed one, or a bucket of an allowed server."""
    wanted = allowed.strip().rstrip("/")
    return bool(wanted) and (place == wanted or place.startswith(f"{wanted}/")) and "://" in wanted
