"""Proxies on the way to a server, as the environment names them."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from airflow_provider_dtrain.client.address import Address
from airflow_provider_dtrain.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    #: Variable of the environment that names it.
    setting: str
    #: Value of the header Proxy-Authorization, empty without a user.
    authorization: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the proxy."""
        return {"Proxy-Authorization": self.authorization} if self.authorization else {}

    @property
    def text(self) -> str:
        """The proxy in a message, without user and password."""
        return f"proxy {self.host}:{self.port} ({self.setting})"


def proxy_of(to: Address) -> Proxy | None:
    """Return the proxy on the way to a server, None without one.

    :raises UsageError: the environment names one that cannot be used
    """
    if to.is_loopback:
        return None
    scheme = "https_proxy" if to.is_https else "http_proxy"
    names = [one for name in (scheme, "all_proxy") for one in (name, name.upper())]
    setting = next((name for name in names if os.environ.get(name)), None)
    if setting is None:
        return None
    # The import takes 20 ms.
    from urllib import request

    is_direct: object = request.proxy_bypass_environment(f"{to.host}:{to.port}")  # type: ignore[attr-defined]
    return None if is_direct else _proxy(os.environ[setting], setting, to)


def _proxy(text: str, setting: str, to: Address) -> Proxy:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        raise _unusable(setting, "", to) from None
    if parts.scheme != "http" or not parts.hostname:
        raise _unusable(setting, parts.scheme, to)
    user = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        user = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(host=parts.hostname, port=port or 80, setting=setting, authorization=user)


def _unusable(setting: str, scheme: str, to: Address) -> UsageError:
    """Return the error for a proxy. Its value may have a password, so only its scheme is named."""
    got = f", got one with {scheme}://" if scheme not in ("", "http") else ""
    return UsageError(
        f"{setting} must be a proxy that is reached by HTTP, http://[USER:PASSWORD@]HOST[:PORT]{got}. To reach "
        f"{to.host} without a proxy: NO_PROXY={to.host}"
    )
