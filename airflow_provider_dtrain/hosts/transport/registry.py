"""Transports by the type of a host's Airflow connection.

Another transport is a module with a ``KIND`` and a line of :data:`MODULES`. A type of connection of its own also needs
a hook and an entry in ``get_provider_info.py``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, TypeGuard

from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.hosts.transport.base import HostKeys, Transport, TransportKind
from airflow_provider_dtrain.hosts.wire import plain

#: Type of the connection -> module whose ``KIND`` is a :class:`.TransportKind`. None: a host without a connection is
#: this machine. A module is imported when one of its hosts is used, because paramiko takes half a second.
MODULES: Final[dict[str | None, str]] = {
    None: "airflow_provider_dtrain.hosts.transport.local",
    "ssh": "airflow_provider_dtrain.hosts.transport.ssh",
    # The login node of a cluster is reached as a host is.
    "dtrain_slurm": "airflow_provider_dtrain.hosts.transport.ssh",
}
#: Name of Airflow's error for a connection that does not exist. Importing its class takes a second.
_NO_CONNECTION: Final = "AirflowNotFoundException"


def needs_connection(conn_id: str | None) -> TypeGuard[str]:
    """Return whether a host is reached by an Airflow connection."""
    return conn_id is not None


def transport_to(host: str, connection: Any, host_key: str | None) -> Transport:
    """Return a transport to a host.

    :param host: name under which the host is registered
    :param connection: Airflow connection of the host, None for this machine
    :param host_key: key that the host must show, None without one
    :raises UserError: the type of the connection has no transport
    """
    return _kind(connection).transport(host, connection, host_key)


def host_keys(conn_id: str | None) -> HostKeys | None:
    """Return the key of the machine behind a connection, None if its transport has no host keys.

    :raises UserError: the connection does not exist, or cannot be used
    """
    connection = _fetched(conn_id) if needs_connection(conn_id) else None
    return _kind(connection).host_keys(connection)


def _kind(connection: Any) -> TransportKind:
    if connection is None:
        name = MODULES[None]
    elif connection.conn_type in MODULES.keys() - {None}:
        name = MODULES[connection.conn_type]
    else:
        types = ", ".join(one for one in MODULES if one is not None)
        raise UserError(
            f"Airflow connection '{connection.conn_id}' of a host must have one of the types {types}, got "
            f"{connection.conn_type!r}. Correct it under Admin > Connections."
        )
    kind: TransportKind = importlib.import_module(name).KIND
    return kind


def _fetched(conn_id: str) -> Any:
    from airflow.sdk import BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except Exception as error:
        if type(error).__name__ != _NO_CONNECTION:
            raise UserError(f"Airflow connection '{conn_id}' cannot be read: {as_sentence(plain(error))}") from error
        raise NotFoundError(
            f"There is no Airflow connection '{conn_id}'. Add it with: "
            f"airflow connections add {conn_id} --conn-type ssh --conn-host ADDRESS --conn-login USER"
        ) from error
