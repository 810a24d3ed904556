"""Wait for copies of an attempt's files, which control requests can end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.engine.session.runtime import HandedOver, Killed, Stopped, TimedOut
from airflow_provider_dtrain.errors import GangEndedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime

#: Seconds between two checks for control requests.
CHECK_S = 0.5
#: Control requests that end the wait.
REQUESTS = (Killed, Stopped, TimedOut, GangEndedError, HandedOver)


async def until_copied(
    rt: Runtime,
    copies: Coroutine[Any, Any, None],
    *,
    most_s: float | None = None,
    requests: tuple[type[Exception], ...] = REQUESTS,
    raised: tuple[type[Exception], ...] = (Killed, HandedOver),
) -> None:
    """Wait for copies, until a control request or the time limit ends the wait.

    The outcome of ranks that have ended stands, whether or not their files were copied, except after a kill.

    :param most_s: most seconds to wait, None = until the deadlines of the transfers
    :param requests: control requests that end the wait
    :param raised: those of them that are raised; the rest is logged. All of them: no rank has run yet
    :raises Killed: the trial was killed
    :raises HandedOver: the next follower makes the copies
    """
    has_run = Stopped not in raised
    copying = asyncio.ensure_future(copies)
    asked = asyncio.ensure_future(_requested(rt, requests, has_run))
    try:
        await asyncio.wait({copying, asked}, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if copying.done():
            copying.result()
            return
        found = asked.result() if asked.done() else None
        if found is not None and isinstance(found, raised):
            raise found
        rt.log.warning(
            "The follower stopped waiting for the last copies of checkpoints and outputs: %s. "
            "Files that were not copied stay on their hosts.",
            _message(found, most_s),
        )
    finally:
        copying.cancel()
        asked.cancel()
        await asyncio.gather(copying, asked, return_exceptions=True)


async def _requested(rt: Runtime, requests: tuple[type[Exception], ...], has_run: bool) -> Exception:
    """Return the first control request."""
    is_first = True
    is_stopping = has_run
    while True:
        try:
            await rt.check(at_once=is_first, runs=is_stopping)
        except REQUESTS as found:
            if isinstance(found, requests):
                return found
        if is_first:
            # A stop from before has ended the ranks, and waits for the copy of the checkpoint that they wrote for it.
            is_first = False
            is_stopping = has_run and rt.control_requests.stop_by is not None
        await asyncio.sleep(CHECK_S)


def _message(found: Exception | None, most_s: float | None) -> str:
    match found:
        case None:
            return f"they took more than {most_s:g} s"
        case Stopped():
            return "a user stopped the trial"
        case TimedOut():
            return "the task's execution_timeout has passed"
    return str(found).rstrip(".")
