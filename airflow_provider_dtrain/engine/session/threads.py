"""Threads for blocking calls of the engine, so that no event loop ever waits.

When a process ends, the interpreter waits for the calls that run, which all have deadlines. Calls that have not begun
end with their coroutines. Airflow ends its workers and triggerers without waiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool(Enum):
    """A pool of threads, with the prefix of their names and their number.

    A transfer of files may take hours, and a connection to a host that is down half a minute. With one pool, they would
    delay the store, and trials whose follower makes no progress lose their leases.
    """

    #: Calls of milliseconds, most of them to the store.
    CALLS = ("dtrain", 32)
    #: Connections to hosts: enough for a gang of 128 hosts at once.
    CONNECTS = ("dtrain-connect", 128)
    #: Copies of checkpoints and outputs to this machine. Further copies wait for a thread.
    COPIES = ("dtrain-copy", 16)
    #: Files for the hosts of a launch, whose slots are taken meanwhile: they do not wait for copies.
    LAUNCHES = ("dtrain-launch", 32)
    #: Telemetry of all attempts of this process, which waits for everything else.
    TELEMETRY = ("dtrain-telemetry", 1)


_executors: dict[tuple[int, ThreadPool], ThreadPoolExecutor] = {}


def _executor(pool: ThreadPool) -> ThreadPoolExecutor:
    """Return this process's threads of a pool.

    A forked child gets its own ones, because it must not wait for its parent's threads.
    """
    key = (os.getpid(), pool)
    if key not in _executors:
        for other in [known for known in _executors if known[0] != key[0]]:
            del _executors[other]
        name, most = pool.value
        _executors[key] = ThreadPoolExecutor(most, thread_name_prefix=name)
    return _executors[key]


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function, called in a thread with the caller's context variables."""
    return await _call(ThreadPool.CALLS, function, *args, **kwargs)


async def in_connect_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that connects to a host, called as by :func:`in_thread`."""
    return await _call(ThreadPool.CONNECTS, function, *args, **kwargs)


async def in_copy_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that copies files from a host, called as by :func:`in_thread`."""
    return await _call(ThreadPool.COPIES, function, *args, **kwargs)


async def in_launch_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that sends files to a host, called as by :func:`in_thread`."""
    return await _call(ThreadPool.LAUNCHES, function, *args, **kwargs)


async def in_telemetry_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that handles telemetry, called as by :func:`in_thread`, one at a time."""
    return await _call(ThreadPool.TELEMETRY, function, *args, **kwargs)


async def _call(pool: ThreadPool, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_executor(pool), call)
