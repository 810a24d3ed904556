"""Host keys: the key that a host must present, from its registration, its connection or known_hosts."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from airflow_provider_dtrain.errors import HostKeyError

if TYPE_CHECKING:
    from airflow.providers.ssh.hooks.ssh import SSHHook

#: Settings of a connection that would let any machine answer as the host. The provider always ignores them.
UNCHECKED = ("no_host_key_check", "allow_host_key_change")


def pin(host: str, hook: SSHHook, host_key: str | None) -> None:
    """Make a hook check the host's key, even if its connection disables the check.

    A key in the connection takes precedence over the pinned key, and a key in known_hosts over both. Without any of the
    three, the host is refused.

    :param host_key: ``TYPE BASE64`` that was pinned, or None without a pinned key
    :raises HostKeyError: the pinned key cannot be read
    """
    for name in UNCHECKED:
        setattr(hook, name, False)
    if host_key is None or hook.host_key is not None:
        return
    from paramiko import PKey, SSHException

    kind, _, text = host_key.strip().partition(" ")
    try:
        key = PKey.from_type_string(kind, base64.b64decode(text.split()[0], validate=True))
    except (ValueError, IndexError, SSHException) as error:
        raise HostKeyError(
            host,
            f"The key stored for host '{host}' cannot be read ({kind}). Store it again: "
            f"airflow dtrain hosts probe {host} --accept-host-key SHA256:...",
        ) from error
    vars(hook)["host_key"] = key


def ignored_settings(conn_id: str, hook: SSHHook) -> str | None:
    """Return a warning if a connection disables the check of host keys, else None.

    :param hook: hook that was made from the connection, before :func:`pin`
    """
    found = [name for name in UNCHECKED if getattr(hook, name, False)]
    if not found:
        return None
    return (
        f"connection '{conn_id}' sets {' and '.join(f'{name}: true' for name in found)}, which would let any machine "
        "answer as this host. The setting is ignored, and the accepted key is checked. Remove the setting from the "
        "connection's extra"
    )
