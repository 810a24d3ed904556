"""Threads for blocking calls of the engine, so that no event loop ever waits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Store calls take milliseconds, connects and transfers seconds: enough for one gang of 32 hosts.
MAX_THREADS = 32

_pools: dict[int, ThreadPoolExecutor] = {}


def _pool() -> ThreadPoolExecutor:
    """Return this process's pool.

    A forked child gets its own one, because it must not wait for its parent's threads.
    """
    pid = os.getpid()
    if pid not in _pools:
        _pools.clear()
        _pools[pid] = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="dtrain")
    return _pools[pid]


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function, called in a thread with the caller's context variables."""
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool(), call)
