"""Calls of the store that wait for a store that is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import StoreUnavailableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.tasklog import TaskLog

P = ParamSpec("P")
T = TypeVar("T")

#: How long a store that does not answer is waited for; ranks go on meanwhile.
STORE_PATIENCE_S = 300.0


async def patiently(log: TaskLog, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a method of the store returns, called in a thread; waits for a store that is away.

    :param log: told once that the store is away
    :raises StoreUnavailableError: it stayed away for ``STORE_PATIENCE_S``
    """
    give_up_at, pause_s, said = time.monotonic() + STORE_PATIENCE_S, 0.5, False
    while True:
        try:
            return await in_thread(method, *args, **kwargs)
        except StoreUnavailableError as error:
            if time.monotonic() + pause_s > give_up_at:
                raise
            if not said:
                log.warning("%s Trying again for %.0f s.", error, STORE_PATIENCE_S)
            said, pause_s = True, min(pause_s * 2, 15.0)
            await asyncio.sleep(pause_s)
