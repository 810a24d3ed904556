"""One request to the API without a server, whose body a test sends piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.api.app import VERSION
from tests.support.api_world import Api


@dataclass
class Sent:
    """A request and its answer.

    :param pieces: of the body; None in it = the client sends nothing more, and waits
    """

    pieces: Iterable[bytes | None] = (b"",)
    status: int = 0
    content: bytes = b""
    #: Bytes of the body that the server has read.
    read_bytes: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def detail(self) -> dict[str, Any]:
        """The refusal."""
        found: dict[str, Any] = json.loads(self.content)["detail"]
        return found


async def send(
    api: Api,
    method: str,
    path: str,
    sent: Sent,
    *,
    headers: dict[str, str] | None = None,
    root: str = "",
    query: str = "",
) -> Sent:
    """Send a request and return it with its answer.

    :param path: below the version of the API
    :param root: path below which the application is mounted
    :param query: of any length, as no client of the tests sends it
    """
    given = {"x-dtrain": "1", "content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http", "method": method, "path": root + VERSION + path, "root_path": root,
        "query_string": query.encode(), "raw_path": (root + VERSION + path).encode(), "http_version": "1.1",
        "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }  # fmt: skip
    messages = _messages(sent)

    async def receive() -> Any:
        return await anext(messages)

    async def answer(message: Any) -> None:
        if message["type"] == "http.response.start":
            sent.status = message["status"]
            sent.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        sent.content += message.get("body", b"")

    await api.client.app(scope, receive, answer)
    return sent


async def _messages(sent: Sent) -> AsyncIterator[dict[str, Any]]:
    waiting = iter(sent.pieces)
    piece = next(waiting, b"")
    while True:
        if piece is None:
            await asyncio.Event().wait()
        following = next(waiting, b"")
        assert piece is not None
        sent.read_bytes += len(piece)
        yield {"type": "http.request", "body": piece, "more_body": following != b""}
        if following == b"":
            break
        piece = following
    yield {"type": "http.disconnect"}
