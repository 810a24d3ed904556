"""Host keys: the key that a host must present, from its registration, its connection or known_hosts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import HostKeyError

if TYPE_CHECKING:
    from airflow.providers.ssh.hooks.ssh import SSHHook
    from paramiko import PKey

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
    try:
        key = _read(host_key)
    except ValueError as error:
        kind = host_key.strip().partition(" ")[0]
        raise HostKeyError(
            host,
            f"The key stored for host '{host}' cannot be read ({kind}). Store it again: "
            f"airflow dtrain hosts probe {host} --accept-host-key SHA256:...",
        ) from error
    vars(hook)["host_key"] = key


def expect_any(hook: SSHHook, text: str) -> None:
    """Let a hook accept each key of a connection's ``host_key`` that has one line per machine behind its address.

    :param text: SSHHook itself reads the first line
    :raises ValueError: a line has no key, or keys differ in their type
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return
    keys = [_read(line) for line in lines]
    if len(types := {key.get_name() for key in keys}) > 1:
        raise ValueError(f"The keys in host_key must have one type, got {' and '.join(sorted(types))}")
    vars(hook)["host_key"] = _any_of(keys)


def _any_of(keys: Sequence[PKey]) -> PKey:
    """Return a key that equals each of some keys of one type, and else is the first one."""
    from paramiko import PKey

    class AnyOf(PKey):
        def __eq__(self, other: object) -> bool:
            return other in keys

        def __hash__(self) -> int:
            return hash(keys[0])

        def get_name(self) -> str:
            return keys[0].get_name()

        def asbytes(self) -> bytes:
            return keys[0].asbytes()

    return AnyOf()


def _read(line: str) -> PKey:
    """Return the key of a line ``TYPE BASE64``, which may have a comment.

    :raises ValueError: it is none
    """
    from paramiko import PKey, SSHException

    kind, _, text = line.strip().partition(" ")
    try:
        return PKey.from_type_string(kind, base64.b64decode(text.split()[0], validate=True))
    except (ValueError, IndexError, SSHException) as error:
        raise ValueError(f"{shown(line)} is no host key of the form TYPE BASE64") from error


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
