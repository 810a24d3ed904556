"""Tasks beside the coroutines that start them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

#: Strong references to tasks: the event loop itself keeps only weak ones.
_TASKS: set[asyncio.Future[Any]] = set()


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Return a task that keeps running when its caller is cancelled."""
    task = asyncio.ensure_future(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    return task


@contextlib.asynccontextmanager
async def alongside(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run a coroutine while the block runs, and cancel it then."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
