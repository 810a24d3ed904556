"""Store calls that retry while the store is unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from airflow_provider_dtrain.core.lifecycle.timing import STORE_PATIENCE_S
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import StoreUnavailableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog

P = ParamSpec("P")
T = TypeVar("T")


async def patiently(log: TaskLog, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a store method, called in a thread. Retries while the store is unavailable.

    :param log: gets one line when the store is unavailable
    :raises StoreUnavailableError: the store stayed unavailable for ``STORE_PATIENCE_S``
    """
    give_up_at = time.monotonic() + STORE_PATIENCE_S
    pause_s = 0.5
    is_logged = False
    while True:
        try:
            return await in_thread(method, *args, **kwargs)
        except StoreUnavailableError as error:
            if time.monotonic() + pause_s > give_up_at:
                raise
            if not is_logged:
                log.warning("%s Retrying for up to %.0f s.", error, STORE_PATIENCE_S)
            is_logged = True
            pause_s = min(pause_s * 2, 15.0)
            await asyncio.sleep(pause_s)
