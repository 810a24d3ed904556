"""Connections to a server, directly or through a proxy, and the certificates that they trust."""

from __future__ import annotations

import http.client
import os
import ssl
from typing import Any

from airflow_provider_dtrain.client import logins
from airflow_provider_dtrain.client.address import Address
from airflow_provider_dtrain.client.proxy import Proxy, proxy_of
from airflow_provider_dtrain.errors import UsageError

#: Longest time for a connection, and between two pieces of an answer.
TIMEOUT_S = 60.0


class _Forwarded(http.client.HTTPConnection):
    """A connection to a proxy that forwards plain HTTP. Many proxies open tunnels to port 443 only."""

    def __init__(self, proxy: Proxy, to: Address) -> None:
        super().__init__(proxy.host, proxy.port, timeout=TIMEOUT_S)
        self._proxy, self._to = proxy, to

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **options: Any) -> None:
        """Send a request whose target has the server, as proxies need it."""
        whole = self._to.url.removesuffix(self._to.base) + url
        super().request(method, whole, body, {**(headers or {}), **self._proxy.headers}, **options)


def connection(to: Address, ca: str | None) -> http.client.HTTPConnection:
    """Return a connection, which is opened by its first request. ``HTTPS_PROXY`` and its like are respected.

    :param ca: file of certificates that are trusted instead of the system's and the login's
    """
    proxy = proxy_of(to)
    if not to.is_https:
        if proxy is not None:
            return _Forwarded(proxy, to)
        return http.client.HTTPConnection(to.host, to.port, timeout=TIMEOUT_S)
    place = (proxy.host, proxy.port) if proxy is not None else (to.host, to.port)
    made = http.client.HTTPSConnection(*place, timeout=TIMEOUT_S, context=_context(to, ca))
    if proxy is not None:
        made.set_tunnel(to.host, to.port, proxy.headers)
    return made


def trust(to: Address, ca: str | None) -> tuple[str | None, str]:
    """Return the file of trusted certificates, None for the system's, and the setting that names it."""
    if ca:
        return ca, "--ca"
    if file := os.environ.get("DTRAIN_CA"):
        return file, "DTRAIN_CA"
    if file := logins.trusted(to.url):
        return file, "--ca of dtrain login"
    return os.environ.get("SSL_CERT_FILE") or None, "SSL_CERT_FILE"


def _context(to: Address, ca: str | None) -> ssl.SSLContext:
    file, setting = trust(to, ca)
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, ssl.SSLError):
            reason = "it has no certificates in PEM form"
        raise UsageError(f"The certificates in {file} ({setting}) cannot be read: {reason}.") from None
