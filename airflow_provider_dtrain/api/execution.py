"""Execution of handlers in threads of this application, each with a deadline.

Handlers read the store and block. A store that does not answer must block neither the event loop nor the threads of
Airflow's own routes, so this application has its own few threads, and a request that waits too long is answered without
its result.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.prepared import Prepared, rendered

#: Handlers of this process that run at one time.
THREADS = 16
#: Longest time that a request waits for its handler. A writer of SQLite may have to wait for its turn.
READ_DEADLINE_S = 8.0
WRITE_DEADLINE_S = 20.0
_NOT_STORED = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}


class NotModifiedError(Exception):
    """The client has the current answer already.

    :param tag: version of the answer
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        super().__init__(tag)


class Workers:
    """Threads of one application, and the number of those that are late.

    :param source: what they read, for messages
    """

    def __init__(self, threads: int = THREADS, source: str = "The provider's store") -> None:
        self.threads, self.source = threads, source
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="dtrain-api")
        self._lock = threading.Lock()
        self._late = 0

    async def run(self, work: Callable[[], Any], *, deadline_s: float, is_write: bool) -> Any:
        """Return the result of blocking work.

        :raises ApiError: the deadline passed, or all threads are late already
        """
        if self._late >= self.threads:
            raise _unavailable(f"{self.source} has not answered earlier requests.", is_write=False)
        future = self._executor.submit(contextvars.copy_context().run, work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline_s)
        except TimeoutError:
            self._leave(future)
            words = f"{self.source} has not answered within {deadline_s:g} s."
            raise _unavailable(words, is_write=is_write) from None

    def _leave(self, future: Future[Any]) -> None:
        """Count a thread as late until its work ends."""
        if future.done():
            return
        with self._lock:
            self._late += 1
        future.add_done_callback(self._return)

    def _return(self, _future: Future[Any]) -> None:
        with self._lock:
            self._late -= 1


def _unavailable(message: str, *, is_write: bool) -> ApiError:
    more = " It may still execute the request." if is_write else ""
    return ApiError(503, "store_unavailable", message + more, "Check the store with: airflow dtrain doctor")


class StoreRoute(APIRoute):
    """A route whose handler blocks, and whose answer has an entity tag."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _in_thread(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler, which answers 304 when the client has the answer already."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await handler(request)
            except NotModifiedError as error:
                return _not_modified(_quoted(error.tag))
            tag = response.headers.get("etag")
            if tag is not None and request.method == "GET" and tag in known_tags(request):
                return _not_modified(tag)
            return response

        return handle


def known_tags(request: Request) -> list[str]:
    """Return the entity tags of the answers that the client has."""
    return [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]


def tag_of(request: Request, *version: object) -> str:
    """Return the tag of an answer by the version of its data, which includes the rights that it depends on."""
    return hashlib.sha256(repr((request.url.path, request.url.query, version)).encode()).hexdigest()[:32]


def unless_known(request: Request, *version: object) -> str:
    """Return the tag of an answer by the version of its data.

    :raises NotModifiedError: the client has the answer of this version
    """
    tag = tag_of(request, *version)
    if _quoted(tag) in known_tags(request):
        raise NotModifiedError(tag)
    return tag


def tagged(request: Request, result: BaseModel) -> Response:
    """Return an answer with an entity tag from its content."""
    body = rendered(result)
    return body.answer(request, _quoted(hashlib.sha256(body.plain).hexdigest()[:32]))


def prepared(request: Request, kept: Prepared, tag: str, make: Callable[[], Any]) -> Response:
    """Return the answer of a tag: the kept one, else a new one.

    :param make: returns a model, or plain records with the fields of one
    """
    body = kept.get(tag)
    if body is None:
        body = rendered(make())
        kept.keep(tag, body)
    return body.answer(request, _quoted(tag))


def _quoted(tag: str) -> str:
    return f'W/"{tag}"'


def _not_modified(tag: str) -> Response:
    return Response(status_code=304, headers={**_NOT_STORED, "ETag": tag})


def _in_thread(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a blocking handler as a coroutine function that runs it in a thread, with a deadline."""
    # A router that is included in another one makes its routes again, with the same handlers.
    if inspect.iscoroutinefunction(endpoint):
        return endpoint

    @functools.wraps(endpoint)
    async def handler(**arguments: Any) -> Any:
        call = arguments["call"]

        def work() -> Any:
            result = endpoint(**arguments)
            return tagged(call.request, result) if isinstance(result, BaseModel) and not call.is_write else result

        deadline_s = WRITE_DEADLINE_S if call.is_write else READ_DEADLINE_S
        return await call.workers.run(work, deadline_s=deadline_s, is_write=call.is_write)

    return handler
