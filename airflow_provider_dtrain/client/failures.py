"""Errors of connections: which ones a later try may solve, and the setting that solves the others."""

from __future__ import annotations

import http.client
import ssl

from airflow_provider_dtrain.client.address import Address
from airflow_provider_dtrain.client.connections import trust
from airflow_provider_dtrain.client.proxy import Proxy, proxy_of
from airflow_provider_dtrain.errors import ServerError

#: What a request raises if there is no answer, or no whole one.
AWAY = (OSError, http.client.HTTPException, ssl.SSLError)
#: Codes of OpenSSL, as in its x509_vfy.h.
_NOT_YET, _EXPIRED, _ITSELF, _HOST, _IP = 9, 10, 18, 62, 64
_UNKNOWN = frozenset({_ITSELF, 19, 20, 21})
#: Reasons of OpenSSL if the other side does not speak TLS.
_PLAIN = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
#: Parts of reasons of OpenSSL that a later try does not change. An internal error of a server that restarts is none.
_LASTING = ("PROTOCOL", "HANDSHAKE_FAILURE", "CERTIFICATE", "UNKNOWN_CA", "CIPHER")
#: First bytes of a TLS alert, as http.client reads them in place of a status line.
_ALERT = "\x15\x03"


class AwayError(ServerError):
    """The server does not answer now. A later request may be answered."""


def failure(server: Address, error: BaseException, ca: str | None) -> ServerError:
    """Return the error of a request without an answer. It is an :class:`AwayError` if a later try may succeed.

    :param ca: file of trusted certificates that the user named
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return ServerError(_untrusted(server, error, ca))
    proxy = proxy_of(server)
    if proxy is not None and (found := _of_proxy(server, proxy, error)) is not None:
        return found
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason in _PLAIN:
        return ServerError(f"{server.url} does not speak TLS. If it serves plain HTTP, use: {other(server)}")
    if any(part in reason for part in _LASTING):
        return ServerError(f"No TLS connection to {server.url} is possible: {_reason(error)}.")
    if isinstance(error, http.client.BadStatusLine) and str(error).lstrip("'\"").startswith((_ALERT, "\\x15\\x03")):
        return ServerError(f"{server.url} speaks TLS. Use: {other(server)}")
    return away(server, error)


def away(server: Address, error: BaseException) -> AwayError:
    """Return the error of a server that does not answer, or whose answer was cut."""
    reason, step = _reason(error), "Check the URL, or wait until the server runs."
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError) and not server.is_https:
        step = f"Wait until the server runs, or if it serves HTTPS, use: {other(server)}"
    return AwayError(f"{server.url} does not answer: {reason}. {step}")


def _reason(error: BaseException) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def other(server: Address) -> str:
    """Return the URL of the same place with the other scheme."""
    scheme, rest = server.url.split("://", 1)
    return f"{'http' if scheme == 'https' else 'https'}://{rest}"


def _untrusted(server: Address, error: ssl.SSLCertVerificationError, ca: str | None) -> str:
    subject = f"The certificate of {server.url}"
    words = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"{subject} has expired. Renew it on the server ([api] ssl_cert), or check the clock of this machine."
    if error.verify_code == _NOT_YET:
        return f"{subject} is not valid yet. Check the clock of this machine and of the one that made the certificate."
    if error.verify_code in (_HOST, _IP):
        return f"{subject} is that of another host: {words}. Use a URL with a name that is in the certificate."
    file, setting = trust(server, ca)
    if error.verify_code not in _UNKNOWN:
        return f"{subject} cannot be used: {words}. Replace it on the server ([api] ssl_cert)."
    whose = "signed by itself" if error.verify_code == _ITSELF else "signed by an authority that is not trusted"
    needed = "the certificate itself" if error.verify_code == _ITSELF else "the certificates of its authority"
    proxy = proxy_of(server)
    through = f" It may be that of the {proxy.text}." if proxy is not None else ""
    where = "the system's certificates do not have it" if file is None else f"{file} ({setting}) does not have it"
    step = f"Name a file with {needed}: --ca FILE, or DTRAIN_CA=FILE."
    return f"{subject} is {whose}, and {where} ({words}).{through} {step}"


def _of_proxy(server: Address, proxy: Proxy, error: BaseException) -> ServerError | None:
    """Return the error of a proxy, None if the server or the line behind it is the cause."""
    if type(error) is OSError and str(error).startswith("Tunnel connection failed: "):
        status = str(error).removeprefix("Tunnel connection failed: ")
        return refused_by_proxy(server, proxy, status)
    if isinstance(error, ConnectionRefusedError | TimeoutError) or type(error).__name__ == "gaierror":
        return AwayError(f"The {proxy.text} does not answer: {_reason(error)}. {_without(server, proxy)}")
    return None


def _without(server: Address, proxy: Proxy) -> str:
    return f"Check {proxy.setting}, or reach the server without a proxy: NO_PROXY={server.host}"


def refused_by_proxy(server: Address, proxy: Proxy, status: str) -> ServerError:
    """Return the error for a status of a proxy.

    :param status: number and words
    """
    if status.startswith("407"):
        asked = "another user or password" if proxy.authorization else "a user and a password"
        words = f"The {proxy.text} wants {asked}: {proxy.setting}=http://USER:PASSWORD@{proxy.host}:{proxy.port}"
        return ServerError(words)
    if status.startswith("5"):
        return AwayError(f"The {proxy.text} does not reach {server.url}: {status}. {_without(server, proxy)}")
    return ServerError(
        f"The {proxy.text} refuses connections to {server.url}: {status}. To reach the server without a proxy: "
        f"NO_PROXY={server.host}"
    )
