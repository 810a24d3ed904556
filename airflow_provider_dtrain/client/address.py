"""The address of a server, and connections to it."""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_provider_dtrain.terminal.output import UsageError

#: Longest time for a connection, and between two pieces of an answer.
TIMEOUT_S = 60.0


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


def connection(to: Address, ca: str | None) -> http.client.HTTPConnection:
    """Return a connection, which is opened by its first request. ``HTTPS_PROXY`` and its like are respected.

    :param ca: file of certificates that are trusted instead of the system's
    """
    proxy = _proxy(to)
    place = (proxy.host, proxy.port) if proxy is not None else (to.host, to.port)
    made: http.client.HTTPConnection
    if to.is_https:
        made = http.client.HTTPSConnection(*place, timeout=TIMEOUT_S, context=_trust(ca))
    else:
        made = http.client.HTTPConnection(*place, timeout=TIMEOUT_S)
    if proxy is not None:
        made.set_tunnel(to.host, to.port)
    return made


def _trust(ca: str | None) -> ssl.SSLContext:
    file = ca or os.environ.get("DTRAIN_CA") or os.environ.get("SSL_CERT_FILE") or None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"The certificates in {file} cannot be read: {error}") from None


def _proxy(to: Address) -> Address | None:
    names = ("https_proxy",) if to.is_https else ("http_proxy",)
    given = [os.environ.get(name) or os.environ.get(name.upper()) for name in (*names, "all_proxy")]
    found = next((one for one in given if one), None)
    if found is None or to.is_loopback:
        return None
    # The import takes 20 ms.
    from urllib import request

    is_direct: object = request.proxy_bypass_environment(f"{to.host}:{to.port}")  # type: ignore[attr-defined]
    return None if is_direct else address(found)
