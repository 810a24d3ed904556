"""Requests to one server: token, retries, and refusals as errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from airflow_provider_dtrain.client import logins
from airflow_provider_dtrain.client.address import Address
from airflow_provider_dtrain.client.common_answers import Detail, Refusal
from airflow_provider_dtrain.client.connections import connection
from airflow_provider_dtrain.client.decoder import Answer
from airflow_provider_dtrain.client.failures import AWAY, AwayError, away, failure, other, refused_by_proxy
from airflow_provider_dtrain.client.proxy import proxy_of
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.errors import (
    ConfigError,
    ConflictError,
    DtrainError,
    LoginError,
    NotFoundError,
    Problem,
    ServerError,
    UsageError,
    UserError,
)

API = "/dtrain/api/v1"
#: Pauses before a request is repeated.
PAUSES_S = (0.5, 1.0, 2.0)
#: Statuses of a server that is overloaded or restarts.
_LATER = frozenset({429, 502, 503, 504})
#: Most characters of a tag of an answer.
_TAG_MOST = 200
#: Most characters of a message of a server.
_MESSAGE_MOST = 10_000
#: Most bytes of an answer in JSON, unpacked.
ANSWER_MOST = 256 << 20

Parameters = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Response:
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Session:
    """Requests to one server.

    :param token: None = the one of ``dtrain login``
    :param ca: file of certificates that are trusted instead of the system's
    :param allow_http: reach another machine without encryption, as ``DTRAIN_ALLOW_HTTP=1`` does
    :param reword: names commands in messages of the server as this program has them
    :raises UsageError: the server is another machine, and the connection would not be encrypted
    """

    def __init__(
        self,
        server: Address,
        token: str | None = None,
        *,
        ca: str | None = None,
        allow_http: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        reword: Callable[[str], str] = str,
    ) -> None:
        if not (server.is_https or server.is_loopback or allow_http or os.environ.get("DTRAIN_ALLOW_HTTP") == "1"):
            raise UsageError(
                f"{server.url} is another machine, and plain HTTP shows token and password to the network. Use https, "
                "or allow it: --allow-http or DTRAIN_ALLOW_HTTP=1."
            )
        self.server = server
        self.ca = ca
        self.sleep = sleep
        self.reword = reword
        self._given = token
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        #: Path -> tag and body of its last answer, of watched tables.
        self._known: dict[str, tuple[str, bytes]] = {}

    def get(self, path: str, /, *, keep: bool = False, **parameters: object) -> Answer:
        """Return the answer to a read. It is repeated if the server does not answer.

        :param path: below the address of the API
        :param keep: keep the answer, so that the server sends it again only after a change
        """
        target = self.target(path, parameters)
        known = self._known.get(target) if keep else None
        headers = {"If-None-Match": known[0]} if known is not None else {}
        response = self._patient("GET", target, headers)
        if response.status == 304 and known is not None:
            return Answer(known[1])
        tag = response.headers.get("etag", "")
        if keep and 0 < len(tag) <= _TAG_MOST and tag.isascii() and tag.isprintable():
            self._known[target] = tag, response.body
        return Answer(response.body)

    def send(self, method: str, path: str, body: object = None, /, **parameters: object) -> Answer:
        """Return the answer to a change. It is repeated only if the server cannot have received it."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        return Answer(self._patient(method, self.target(path, parameters), headers, data).body)

    @contextlib.contextmanager
    def stream(self, path: str, /, **parameters: object) -> Iterator[http.client.HTTPResponse]:
        """Yield a successful answer whose body is not read yet."""
        target = self.target(path, parameters)
        for is_last in (False, True):
            with self.opened("GET", target) as response:
                if response.status == 200:
                    yield response
                    return
                headers = {name.lower(): value for name, value in response.getheaders()}
                answer = Response(status=response.status, headers=headers, body=response.read(1 << 16))
            if is_last or not _lacks_login(answer) or not self.renew():
                raise refusal(answer, self.server, self.reword)

    def get_bytes(self, path: str, /, **parameters: object) -> bytes:
        """Return the body of a read that is no JSON. It is repeated if the server does not answer."""
        return self._patient("GET", self.target(path, parameters), {}).body

    def send_bytes(self, path: str, content: bytes, kind: str) -> Answer:
        """Return the answer to a body that is no JSON.

        :param kind: its media type
        """
        return Answer(self._patient("POST", self.target(path, {}), {"Content-Type": kind}, content).body)

    def get_of_airflow(self, target: str) -> Answer:
        """Return the answer of a route of Airflow itself.

        :param target: path on the server
        """
        return Answer(self._patient("GET", target, {}).body)

    @property
    def is_renewable(self) -> bool:
        """True if a new login on this machine replaces the token."""
        return self._given is None

    def target(self, path: str, parameters: Parameters) -> str:
        """Return path and query of a request."""
        given: list[tuple[str, str]] = []
        for name, value in parameters.items():
            values = value if isinstance(value, list | tuple) else (value,)
            given += [(name, _text(one)) for one in values if one is not None]
        query = f"?{urlencode(given)}" if given else ""
        return f"{self.server.base}{API}{quote(path)}{query}"

    def _patient(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        for pause_s in (*PAUSES_S, None):
            try:
                return self._checked(method, target, headers, body)
            except AwayError as error:
                is_safe = method == "GET" or isinstance(error.__cause__, ConnectionRefusedError)
                if pause_s is None or not is_safe:
                    raise
                self.sleep(pause_s)
        raise AssertionError("not reached")

    def _checked(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Response:
        answer = self.request(method, target, headers, body)
        if _lacks_login(answer) and self.renew():
            answer = self.request(method, target, headers, body)
        if answer.status >= 300 and answer.status != 304:
            raise refusal(answer, self.server, self.reword)
        return answer

    def renew(self) -> bool:
        """Take over the token of a newer login on this machine, and return whether there is one."""
        if self._given is not None:
            return False
        found = logins.load(self.server.url)
        if found is None or found.token == self._token:
            return False
        self._token = found.token
        return True

    def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        """Return the answer to one request, whatever its status.

        :raises AwayError: there is none
        """
        with self.opened(method, target, {"Accept-Encoding": "gzip", **headers}, body) as response:
            try:
                data = response.read(ANSWER_MOST + 1)
                # A read of a limited length does not report that the connection was cut.
                if response.length and len(data) <= ANSWER_MOST:
                    raise http.client.IncompleteRead(data, response.length)
            except AWAY as error:
                self.close()
                raise away(self.server, error) from error
        found = {name.lower(): value for name, value in response.getheaders()}
        if found.get("content-encoding") == "gzip":
            data = _unpacked(data)
        if len(data) > ANSWER_MOST:
            self.close()
            raise ServerError(f"The answer of {self.server.url} is larger than {ANSWER_MOST >> 20} MiB.")
        return Response(status=response.status, headers=found, body=data)

    @contextlib.contextmanager
    def opened(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield an answer whose body is not read yet. The connection is kept if the body is read to its end."""
        sent = {"Accept-Encoding": "identity", **(headers or {}), "User-Agent": "dtrain"}
        if token := self._current():
            if not token.isascii() or not token.isprintable():
                raise LoginError("The token holds characters that no token has. Check DTRAIN_TOKEN, or: dtrain login")
            sent["Authorization"] = f"Bearer {token}"
        try:
            response = self._answer(method, target, sent, body)
        except AWAY as error:
            self.close()
            raise failure(self.server, error, self.ca) from error
        if response.length is None and not response.chunked:
            # Airflow's server always names the length. http.client takes headers that were cut for whole ones.
            self.close()
            cut = http.client.IncompleteRead(b"")
            raise away(self.server, cut) from cut
        try:
            yield response
        finally:
            if not response.isclosed():
                self.close()

    def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> http.client.HTTPResponse:
        reused = self._connection is not None
        for is_last in (not reused, True):
            if self._connection is None:
                self._connection = connection(self.server, self.ca)
            try:
                self._connection.request(method, target, body=body or None, headers=dict(headers))
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # The server may have closed a connection that was idle.
                self.close()
                if is_last or method != "GET":
                    raise
        raise AssertionError("not reached")

    def _current(self) -> str:
        if self._token is None:
            found = logins.load(self.server.url)
            self._token = "" if found is None else found.token
        return self._token

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def server_url(given: str | None) -> str | None:
    """Return the server of an option, of ``DTRAIN_SERVER``, or of the last login."""
    return given or os.environ.get("DTRAIN_SERVER") or logins.last_server()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unpacked(data: bytes) -> bytes:
    """Return a compressed body, up to a byte more than the most that is accepted."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, ANSWER_MOST + 1)
    except zlib.error:
        raise ServerError("The answer is damaged. Try again, or check the proxies on the way to the server.") from None


def _lacks_login(answer: Response) -> bool:
    """Return whether a token is missing, has expired, or was signed with a key that the server no longer has."""
    return answer.status == 401 or (answer.status == 403 and b"Invalid JWT token" in answer.body)


def refusal(answer: Response, server: Address, reword: Callable[[str], str] = str) -> DtrainError:
    """Return the error that an answer with a status of 300 or more stands for.

    :param reword: names commands as this program has them
    """
    if 300 <= answer.status < 400:
        place = _short(answer.headers.get("location", "")[:200])
        return ServerError(f"{server.url} redirects to {place}. Use the URL of Airflow itself.")
    detail = _detail(answer.body)
    message, hint = _short(detail.message), _short(detail.hint or "")
    step = f"See: {hint}" if hint.startswith("airflow ") else hint
    text = reword(f"{message} {step}".strip() if hint and hint not in message else message)
    if _lacks_login(answer):
        step = f"To log in: dtrain login --server {server.url}"
        return LoginError(f"{server.url} accepts no token of this machine, or it has expired. {step}")
    if answer.status == 407 and (proxy := proxy_of(server)) is not None:
        return refused_by_proxy(server, proxy, "407 Proxy Authentication Required")
    if answer.status == 400 and not message and not server.is_https:
        return ServerError(f"{server.url} refused the request (status 400). If it serves HTTPS, use: {other(server)}")
    if answer.status in _LATER:
        return AwayError(text or f"{server.url} is not available (status {answer.status}).")
    if answer.status == 404 and not detail.code:
        return ServerError(
            f"{server.url} has no such page. Is it an Airflow 3 API server with a current airflow-provider-dtrain?"
        )
    if detail.problems:
        problems = [Problem(path=escaped(one.path), message=reword(_short(one.message))) for one in detail.problems]
        return ConfigError(problems, source=reword(message) or "The request")
    kinds: dict[int, type[DtrainError]] = {404: NotFoundError, 409: ConflictError}
    kind = kinds.get(answer.status, ServerError if answer.status >= 500 else UserError)
    return kind(text or f"{server.url} refused the request (status {answer.status}).")


def _detail(body: bytes) -> Detail:
    """Return the detail of a refusal. It is empty if the body has another form, as that of a proxy."""
    try:
        found = Answer(body).record(Refusal).detail
    except ServerError:
        return Detail(code="", message="")
    return Detail(code="", message=found) if isinstance(found, str) else found


def _short(text: str) -> str:
    """Return a text of a server for an error, which a script may print without our streams."""
    return escaped(text if len(text) <= _MESSAGE_MOST else f"{text[:_MESSAGE_MOST]}...")
