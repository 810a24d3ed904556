"""What both transports share: running a command to its end over a channel, and surviving a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Protocol

from airflow_provider_dtrain.errors import HostError, HostProtocolError, HostUnreachableError
from airflow_provider_dtrain.hosts.transport import Channel, Completed

#: Most that a command may write: answers are a line behind what a login script prints.
OUTPUT_LIMIT_BYTES = 8 << 20
#: How much of standard error a channel keeps.
STDERR_LIMIT_BYTES = 64 * 1024


def complete(host: str, pipe: Channel, *, stdin: bytes, timeout_s: float) -> Completed:
    """Feed a command, collect its output and return how it ended.

    :param timeout_s: seconds for everything, transfer included
    :raises HostUnreachableError: the command had not ended by then
    :raises HostProtocolError: it wrote more than an answer can have
    """
    deadline = time.monotonic() + timeout_s
    # A thread of its own: a command may fill its output before it has read all of its input.
    feeder = threading.Thread(target=_feed, args=(pipe, stdin, timeout_s), name=f"dtrain-feed-{host}", daemon=True)
    if stdin:
        feeder.start()
    else:
        pipe.finish_input()
    output = bytearray()
    while chunk := _next(host, pipe, deadline, timeout_s):
        output += chunk
        if len(output) > OUTPUT_LIMIT_BYTES:
            raise HostProtocolError(
                host, f"A command on host '{host}' wrote more than {OUTPUT_LIMIT_BYTES:,} bytes, its answer is short."
            )
    exit_code = pipe.wait_exit(max(0.0, deadline - time.monotonic()))
    if exit_code is None:
        raise unfinished(host, timeout_s)
    return Completed(exit_code=exit_code, stdout=bytes(output), stderr=pipe.errors())


def _feed(pipe: Channel, stdin: bytes, timeout_s: float) -> None:
    # A command may end without reading all of its input; its exit status tells the rest.
    with contextlib.suppress(HostError):
        pipe.send(stdin, timeout_s=timeout_s)
    pipe.finish_input()


def _next(host: str, pipe: Channel, deadline: float, timeout_s: float) -> bytes:
    chunk = pipe.receive(timeout_s=max(0.0, deadline - time.monotonic()))
    if chunk is None:
        raise unfinished(host, timeout_s)
    return chunk


def unfinished(host: str, timeout_s: float) -> HostUnreachableError:
    """Return the error for a command that outlived its deadline."""
    return HostUnreachableError(
        host,
        f"A command on host '{host}' had not ended after {timeout_s:g} s. The host is overloaded, its disk hangs, "
        f"or the connection was cut. Look with: airflow dtrain hosts probe {host}",
    )


class Inheritable(Protocol):
    """Something that owns descriptors which a forked child must not use."""

    def abandon(self) -> None:
        """Close the descriptors in a forked child, telling the other side nothing."""


_live: weakref.WeakSet[Inheritable] = weakref.WeakSet()
# Never freed: a destructor that says goodbye would do so on the parent's connection.
_inherited: list[Inheritable] = []


def not_in_children(thing: Inheritable) -> None:
    """Make sure that children which this process forks let go of ``thing``."""
    _live.add(thing)


def _after_fork() -> None:
    for thing in list(_live):
        _inherited.append(thing)
        with contextlib.suppress(Exception):
            thing.abandon()
    _live.clear()


os.register_at_fork(after_in_child=_after_fork)
