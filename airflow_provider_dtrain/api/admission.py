"""Admission of requests, before anything of their body is read: login, rights on the pages, and limits of the body."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from anyio import to_thread
from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from airflow_provider_dtrain.api.errors import ApiError, of_http, of_refusal
from airflow_provider_dtrain.api.security import ADMITTED, READING, Access, refuse_cross_site
from airflow_provider_dtrain.core.byte_size import byte_size

if TYPE_CHECKING:
    from starlette.datastructures import State
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The built pages, which contain code only.
STATIC = "/static"


@dataclass(frozen=True, kw_only=True)
class BodyLimit:
    """Limits of a body.

    :param most_bytes: more are refused, and the rest is not read
    :param subject: in messages
    :param hint: what helps against a body that is too large
    """

    most_bytes: int
    subject: str = "The request"
    hint: str = ""


#: Body of a request in JSON.
USUAL = BodyLimit(most_bytes=1 << 20)
#: A configuration of 1 MiB needs up to 12 MiB if each character is escaped.
OF_CONFIG = BodyLimit(most_bytes=16 << 20)
#: Method and path below the version of the API -> limit, None for the route that reads its body itself.
BODIES: dict[tuple[str, str], BodyLimit | None] = {
    ("POST", "/configs/validate"): OF_CONFIG,
    ("POST", "/experiments"): OF_CONFIG,
    ("POST", "/code"): None,
}
#: Most values of a body in JSON, of which each takes up to 100 bytes of memory. A command has 1024 arguments.
VALUES_MOST = 5000
#: Bodies in JSON that a process receives at one time for one user, and for all.
OF_USER_MOST, OF_ALL_MOST = 8, 64
#: Seconds that a body may take besides the time for its bytes, and least bytes per second.
GRACE_S, RATE_BYTES_PER_S = 10.0, 32 << 10
#: Longest time for a body.
BODY_MOST_S = 1800.0
#: A body that is larger is searched in a thread.
_LONG_BYTES = 256 << 10
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Bodies:
    """Bodies that a process receives, counted by their users. Only the event loop uses it.

    :param most: at one time
    :param of_user: of these, of one user
    :param what: in messages
    """

    def __init__(self, most: int, of_user: int, what: str) -> None:
        self.most, self.of_user, self.what = most, of_user, what
        self._users: Counter[str] = Counter()

    @contextmanager
    def receiving(self, user: str) -> Iterator[None]:
        """Count a body while it is received.

        :raises ApiError: the user, or all users together, send too many
        """
        if self._users[user] >= self.of_user:
            raise ApiError(429, "busy", f"You send {self.of_user} {self.what} already. Try again when one has arrived.")
        if self._users.total() >= self.most:
            raise ApiError(503, "busy", f"The server receives {self.most} {self.what} already. Try again in a minute.")
        self._users[user] += 1
        try:
            yield
        finally:
            self._users[user] -= 1
            if not self._users[user]:
                del self._users[user]


class Admission:
    """Refuses requests before their body is read: without a login or the right to see the pages, or above a limit.

    FastAPI reads a body in JSON before it resolves any dependency. So this is done here, outside of it.

    :param version: path below which the API is
    """

    def __init__(self, app: ASGIApp, version: str) -> None:
        self.app, self.version = app, version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith(f"{STATIC}/") and scope["method"] in READING:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            access = await _admitted(request)
            setattr(request.state, ADMITTED, access)
            if request.method not in READING:
                limit = BODIES.get((request.method, path.removeprefix(self.version)), USUAL)
                if limit is not None:
                    bodies: Bodies = request.app.state.bodies
                    with bodies.receiving(access.name):
                        receive = _again(await received(request, receive, limit, check=_check_values), receive)
        except ApiError as error:
            await of_refusal(error)(scope, receive, send)
        except HTTPException as error:
            await of_http(error)(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self.app(scope, receive, send)


async def _admitted(request: Request) -> Access:
    """Return the rights of the user of a request.

    :raises HTTPException: there is no valid login, or no right to see the pages
    :raises ApiError: a page of another site may have sent the request
    """
    state: State = request.app.state
    access = Access(await state.user_of(request), state.auth_manager(), state.facts)
    may_see = await to_thread.run_sync(
        lambda: access.manager.is_authorized_view(access_view=AccessView.PLUGINS, user=access.user)
    )
    if not may_see:
        raise HTTPException(403, "Forbidden")
    refuse_cross_site(request)
    return access


async def received(
    request: Request,
    receive: Receive,
    limit: BodyLimit,
    *,
    check: Callable[[bytes], Awaitable[None]] | None = None,
) -> bytes:
    """Return the body of a request. A body that is too long is refused before it is read if its length is named.

    :raises ApiError: it is too long or too slow, or ``check`` refuses it
    :raises ClientDisconnect: the client has gone
    """
    named = request.headers.get("content-length", "")
    if named.isdigit() and int(named) > limit.most_bytes:
        raise _too_large(limit, int(named))
    pieces: list[bytes] = []
    size, began = 0, time.monotonic()
    while True:
        ends_at = began + min(GRACE_S + size / RATE_BYTES_PER_S, BODY_MOST_S)
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise _too_slow(limit, size, time.monotonic() - began) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit.most_bytes:
            raise _too_large(limit, size)
        if not message.get("more_body", False):
            break
    body = b"".join(pieces)
    if check is not None:
        await check(body)
    return body


def _too_large(limit: BodyLimit, size: int) -> ApiError:
    most = limit.most_bytes >> 20
    words = f"{limit.subject} has {byte_size(size)} or more, at most {most} MiB are accepted."
    return ApiError(413, "invalid", words, limit.hint)


def _too_slow(limit: BodyLimit, size: int, seconds: float) -> ApiError:
    words = (
        f"{limit.subject} is received too slowly: {size} bytes in {seconds:.0f} s. At least {RATE_BYTES_PER_S >> 10} "
        f"KiB per second are expected after {GRACE_S:.0f} s, and the end within {BODY_MOST_S / 60:.0f} min."
    )
    return ApiError(408, "invalid", words, "Try again, or from a faster line.")


async def _check_values(body: bytes) -> None:
    """Refuse JSON of many values before it is parsed. Bodies of this API are few values, some of them long texts."""
    count = _values_in(body) if len(body) < _LONG_BYTES else await to_thread.run_sync(_values_in, body)
    if count > VALUES_MOST:
        hint = "Send a long configuration as text, and files as code: POST /code."
        raise ApiError(422, "invalid", f"The request has more than {VALUES_MOST} values.", hint)


def _values_in(body: bytes) -> int:
    """Return about the number of values in JSON, and at least :data:`VALUES_MOST` and one if there are many.

    Texts are left out, because they may have any characters. Unlike ``check_size`` for short answers of hosts, it needs
    no memory for a body of many texts.
    """
    count = start = 0
    for text in _STRING.finditer(body):
        count += 1 + _marks(body[start : text.start()])
        start = text.end()
        if count > VALUES_MOST:
            return count
    return count + _marks(body[start:])


def _marks(part: bytes) -> int:
    return sum(part.count(mark) for mark in (b",", b"[", b"{"))


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives a body that was received, and then what follows."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again
