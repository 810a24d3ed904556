"""Limit of the bodies of requests, so that no client makes the API server keep more than that in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from airflow_provider_dtrain.api.code_archive import too_large
from airflow_provider_dtrain.api.errors import answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Most bytes of a request in JSON. A configuration of 1 MiB needs up to 12 MiB if each character is escaped.
BODY_MOST = 16 << 20
#: End of the path of the only route that receives more. It limits its body itself.
UPLOAD = "/code"


class BodyLimit:
    """Refuses bodies that are too long: before they are read if their length is named, else at the limit.

    FastAPI reads a body in JSON before it checks the login.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"].endswith(UPLOAD):
            await self.app(scope, receive, send)
            return
        named = Headers(scope=scope).get("content-length", "")
        if named.isdigit() and int(named) > BODY_MOST:
            refusal = too_large("The request", int(named), BODY_MOST)
            await answer(refusal.status, refusal.code, str(refusal))(scope, receive, send)
            return
        total = 0

        async def limited() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > BODY_MOST:
                # FastAPI passes on only this kind of error while it reads a body.
                raise HTTPException(413, str(too_large("The request", total, BODY_MOST)))
            return message

        await self.app(scope, limited, send)
