"""The address of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_provider_dtrain.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of an Airflow API server."""

    is_https: bool
    host: str
    port: int
    #: Path below which Airflow is served, empty or ``/airflow``.
    base: str

    @property
    def url(self) -> str:
        """The address as text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.is_https else 80)
        return f"{'https' if self.is_https else 'http'}://{host}{'' if usual else f':{self.port}'}{self.base}"

    @property
    def is_loopback(self) -> bool:
        """True if the server is on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def address(text: str) -> Address:
    """Return the address in a text.

    :raises UsageError: it is no http or https URL, or it has a user, a query or a fragment
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"A server must be http(s)://HOST[:PORT][/PATH], got {text[:200]!r}: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError("A server must have no user or password in its URL. Give them to: dtrain login")
    is_plain = parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or not is_plain:
        raise UsageError(f"A server must be http(s)://HOST[:PORT][/PATH], got {text[:200]!r}.")
    secure = parts.scheme == "https"
    return Address(
        is_https=secure,
        host=parts.hostname,
        port=port or (443 if secure else 80),
        base=parts.path.rstrip("/"),
    )
