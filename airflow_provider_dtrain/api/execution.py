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
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.kept import Kept
from airflow_provider_dtrain.api.prepared import rendered
from airflow_provider_dtrain.store.database.time_limit import TimeLimit

#: Handlers of this process that run at one time.
THREADS = 16
#: Handlers of this process that take seconds of CPU time and run at one time. More would slow all other requests down.
COMPUTING = 2
#: Longest time that a request waits for its handler. A writer of SQLite may have to wait for its turn.
READ_DEADLINE_S = 8.0
WRITE_DEADLINE_S = 20.0
#: Period in which the statement of a late thread is interrupted.
INTERRUPT_S = 0.5
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

    One user has at most half of them at one time, so that slow requests of one user leave threads to all others.

    :param source: what they read, for messages
    :param hint: what helps when it does not answer
    """

    def __init__(
        self,
        threads: int = THREADS,
        source: str = "The provider's store",
        hint: str = "Check the store with: airflow dtrain doctor",
    ) -> None:
        self.threads, self.source, self.hint = threads, source, hint
        self.of_user = max(1, threads // 2)
        self.late_of_user = max(1, threads // 4)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="dtrain-api")
        self._lock = threading.Lock()
        self._late = 0
        self._users: dict[str, _Share] = {}

    async def run(self, work: Callable[[], Any], *, user: str, deadline_s: float, is_write: bool) -> Any:
        """Return the result of blocking work, whose transactions have the deadline as their limit.

        :param user: whose share of the threads it takes
        :raises ApiError: the deadline passed, or all threads, or those of the user, are late already
        """
        limit = TimeLimit(deadline_s)
        context = contextvars.copy_context()

        def limited() -> Any:
            with limit.applied():
                return work()

        future = self._submitted(user, lambda: context.run(limited))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline_s)
        except TimeoutError:
            self._leave(user, future, limit)
            words = f"{self.source} has not answered within {deadline_s:g} s."
            raise self._unavailable(words, is_write=is_write) from None

    def _submitted(self, user: str, work: Callable[[], Any]) -> Future[Any]:
        job = _Job(work)
        with self._lock:
            share = self._users.get(user, _NO_SHARE)
            if self._late >= self.threads or share.late >= self.late_of_user:
                raise self._unavailable(f"{self.source} has not answered earlier requests.", is_write=False)
            share = self._users.setdefault(user, _Share())
            if share.running >= self.of_user:
                share.waiting.append(job)
                return job.future
            share.running += 1
        self._executor.submit(self._execute, user, job)
        return job.future

    def _execute(self, user: str, job: _Job) -> None:
        try:
            job.execute()
        finally:
            self._give_on(user)

    def _give_on(self, user: str) -> None:
        """Give a thread of a user to the next request of this user that still waits, or back."""
        with self._lock:
            share = self._users[user]
            while share.waiting:
                job = share.waiting.popleft()
                if not job.future.cancelled():
                    break
            else:
                share.running -= 1
                if not share.running:
                    del self._users[user]
                return
        self._executor.submit(self._execute, user, job)

    def _leave(self, user: str, future: Future[Any], limit: TimeLimit) -> None:
        """Count a thread as late until its work ends, and end its statements."""
        with self._lock:
            if future.done():
                return
            share = self._users[user]
            self._late += 1
            share.late += 1
        # The work may end, and the share with it, before the callback is added.
        future.add_done_callback(lambda _: self._return(share))
        _interrupt(asyncio.get_running_loop(), future, limit)

    def _unavailable(self, message: str, *, is_write: bool) -> ApiError:
        more = " It may still execute the request." if is_write else ""
        return ApiError(503, "store_unavailable", message + more, self.hint)

    def _return(self, share: _Share) -> None:
        with self._lock:
            self._late -= 1
            share.late -= 1


class _Job:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()

    def execute(self) -> None:
        """Execute the work, unless its request no longer waits."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except BaseException as error:
            self.future.set_exception(error)


@dataclass
class _Share:
    """Requests of one user."""

    running: int = 0
    late: int = 0
    waiting: deque[_Job] = field(default_factory=deque)


_NO_SHARE = _Share()


def _interrupt(loop: asyncio.AbstractEventLoop, future: Future[Any], limit: TimeLimit) -> None:
    """End the statement of a late thread, and each further one."""
    if not future.done():
        limit.interrupt()
        loop.call_later(INTERRUPT_S, _interrupt, loop, future, limit)


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


def is_record(result: object) -> bool:
    """Return whether a handler returned an answer: a model, or a record of ``resources/``."""
    return isinstance(result, BaseModel) or (is_dataclass(result) and not isinstance(result, type))


def tagged(request: Request, result: Any) -> Response:
    """Return an answer with an entity tag from its content."""
    body = rendered(result)
    return body.answer(request, _quoted(hashlib.sha256(body.plain).hexdigest()[:32]))


def as_answer(result: BaseModel) -> Response:
    """Return an answer that is rendered in the thread that made it, and not in the event loop."""
    return Response(result.model_dump_json(), media_type="application/json")


def prepared(request: Request, kept: Kept, tag: str, make: Callable[[], Any]) -> Response:
    """Return the answer of a tag: the kept one, else a new one.

    :param make: returns a model, or plain records with the fields of one
    """
    body = kept.known([tag]).get(tag)
    if body is None:
        body = rendered(make())
        kept.keep({tag: body})
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
            return tagged(call.request, result) if is_record(result) and not call.is_write else result

        deadline_s = WRITE_DEADLINE_S if call.is_write else READ_DEADLINE_S
        return await call.run(work, deadline_s)

    return handler
