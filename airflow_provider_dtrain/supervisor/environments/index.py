"""A package index, and the files that it offers, through the simple repository API (PEP 503 and PEP 691)."""

from __future__ import annotations

import base64
import configparser
import contextlib
import http.client
import importlib
import json
import netrc
import os
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import IO, Any, NamedTuple

from ..refusal import Refused

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
#: Most bytes of the list of a package's files.
_PAGE_BYTES = 64 << 20
#: Settings of pip and uv for the index, and for further ones.
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_EXTRA_VARIABLES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")


class Offer(NamedTuple):
    """A file that an index offers."""

    name: str
    url: str
    #: ``sha256:hex``, None if the index does not say.
    digest: str | None


class IndexLogin(NamedTuple):
    """Credentials of an index."""

    user: str
    password: str


class Index:
    """An index, with the credentials for its own server.

    :param url: may contain credentials, which no message shows
    :param stall_s: time for a server to answer, and for each part of an answer
    """

    def __init__(self, url: str, login: IndexLogin | None, stall_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        self._origin = origin_of(url)
        netloc = parts.netloc.rpartition("@")[2]
        self.url = urllib.parse.urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        self._login = login or _login_in(parts) or _login_of_netrc(parts.hostname)
        self._stall_s = stall_s
        context = ssl.create_default_context()
        for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            if os.path.isfile(os.environ.get(name, "")):
                context.load_verify_locations(os.environ[name])
        self._opener = urllib.request.build_opener(_Redirects, urllib.request.HTTPSHandler(context=context))

    def offers(self, package: str) -> list[Offer]:
        """Return the files of a package, [] if the index does not know it.

        :raises Refused: ``index``, it does not answer, or not with a list of files
        """
        where = f"{self.url}/{package}/"
        try:
            with self.open(where, accept=_ACCEPT) as answer:
                kind = answer.headers.get_content_type()
                body = answer.read(_PAGE_BYTES)
                where = answer.geturl()
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                return []
            raise self._refused(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._refused(error) from error
        try:
            found = list(_in_json(body, where) if kind.endswith("json") else _in_html(body, where))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Refused("index", f"The index {self.url} does not answer with a list of files.") from error
        return found

    def open(self, url: str, *, accept: str = "*/*") -> Any:
        """Return the open answer to a request. Only the server of the index gets its credentials."""
        request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "dtrain"})  # noqa: S310
        if self._login is not None and origin_of(url) == self._origin:
            text = base64.b64encode(f"{self._login.user}:{self._login.password}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {text}")
        return self._opener.open(request, timeout=self._stall_s)

    def _refused(self, error: BaseException) -> Refused:
        return Refused("index", f"The index {self.url} {why_unreachable(error, self._stall_s)}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects within HTTP: none leads to a file of this host."""

    def redirect_request(  # noqa: PLR0913 - the signature of the library
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Return the request after a redirect. Unredirected headers, such as credentials, are not part of it."""
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def why_unreachable(error: BaseException, stall_s: float) -> str:
    """Return the reason why a server gives no answer, with what helps."""
    reason = getattr(error, "reason", error)
    if isinstance(error, urllib.error.HTTPError):
        fix = "Check the credentials in environment.index_conn_id." if error.code in (401, 403) else "Try again later."
        return f"answers with status {error.code} ({error.reason}). {fix}"
    if isinstance(reason, TimeoutError) or "timed out" in str(reason):
        return f"did not answer within {stall_s:g} s. Check proxy and firewall of this host, or set environment.wheels."
    text = getattr(reason, "strerror", None) or str(reason)
    return f"cannot be reached: {text}. Check proxy and firewall of this host, or set environment.wheels."


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL."""
    parts = urllib.parse.urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def _login_in(parts: urllib.parse.SplitResult) -> IndexLogin | None:
    if parts.username is None:
        return None
    return IndexLogin(urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))


def _login_of_netrc(host: str | None) -> IndexLogin | None:
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc().authenticators(host or "")
        if found is not None:
            return IndexLogin(found[0] or "", found[2] or "")
    return None


def _in_json(body: bytes, where: str) -> Iterator[Offer]:
    for one in json.loads(body)["files"]:
        digest = one.get("hashes", {}).get("sha256")
        yield Offer(one["filename"], urllib.parse.urljoin(where, one["url"]), f"sha256:{digest}" if digest else None)


def _in_html(body: bytes, where: str) -> Iterator[Offer]:
    parser = _Links(where)
    parser.feed(body.decode("utf-8", "replace"))
    for link in parser.links:
        url, _, fragment = urllib.parse.urljoin(parser.base, link).partition("#")
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if name:
            yield Offer(name, url, f"sha256:{digest[1]}" if digest else None)


class _Links(HTMLParser):
    """Targets of the links of a page."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the target of a link."""
        target = dict(attrs).get("href")
        if tag == "base" and target:
            self.base = urllib.parse.urljoin(self.base, target)
        elif tag == "a" and target:
            self.links.append(target)


def host_indexes(environ: Mapping[str, str], pip: str | None) -> list[str]:
    """Return the indexes that this host is set up for, as pip and uv read them, else the one of pip.

    :param pip: wheel of pip that the interpreter brings, if any
    :raises Refused: there is neither a setting nor a pip
    """
    settings = configparser.ConfigParser(interpolation=None)
    files = [os.path.expanduser(path) for path in (*_PIP_FILES, environ.get("PIP_CONFIG_FILE", ""))]
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):
        settings.read([path for path in files if os.path.isfile(path)])
    first = [environ[name] for name in _INDEX_VARIABLES if environ.get(name)]
    first += [settings.get(section, "index-url", fallback="") for section in ("install", "global")]
    more = [environ.get(name, "") for name in _EXTRA_VARIABLES]
    more += [settings.get(section, "extra-index-url", fallback="") for section in ("install", "global")]
    extra = [url.rpartition("=")[2] if "=" in url.partition("://")[0] else url for text in more for url in text.split()]
    found = next(filter(None, first), None) or _index_of_pip(pip)
    return list(dict.fromkeys([found, *extra]))


def _index_of_pip(wheel: str | None) -> str:
    """Return the index that pip uses without a setting, from an installed pip or from a wheel of it."""
    sys.path += [wheel] if wheel else []
    try:
        found = importlib.import_module("pip._internal.models.index")
    except ImportError as error:
        message = (
            "This host is set up for no package index, and its Python has no pip that knows one. Set PIP_INDEX_URL"
        )
        raise Refused("environment", f"{message} there, or environment.index_conn_id.") from error
    return str(found.PyPI.simple_url)
