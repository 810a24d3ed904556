"""Shared parts of the transports: running a command to its end over a channel, and safety after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Protocol

from airflow_provider_dtrain.errors import HostError, HostProtocolError, HostUnreachableError
from airflow_provider_dtrain.hosts.transport.base import Channel, Completed

#: Maximum output of a command: an answer is one line after the output of a login script.
OUTPUT_LIMIT_BYTES = 8 << 20
#: Number of bytes of standard error that a channel keeps.
STDERR_LIMIT_BYTES = 64 * 1024


def complete(host: str, pipe: Channel, *, stdin: bytes, timeout_s: float) -> Completed:
    """Write a command's input, collect its output and return its result.

    :param timeout_s: seconds for the whole command, transfer included
    :raises HostUnreachableError: the command did not end in this time
    :raises HostProtocolError: the command wrote more than an answer can have
    """
    deadline = time.monotonic() + timeout_s
    # Input needs a thread of its own, since a command may fill its output before it has read all input.
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
                host,
                f"A command on host '{host}' wrote more than {OUTPUT_LIMIT_BYTES:,} bytes, but its answer is short.",
            )
    exit_code = pipe.wait_exit(max(0.0, deadline - time.monotonic()))
    if exit_code is None:
        raise unfinished(host, timeout_s)
    return Completed(exit_code=exit_code, stdout=bytes(output), stderr=pipe.errors())


def _feed(pipe: Channel, stdin: bytes, timeout_s: float) -> None:
    # A command may end without reading all of its input. Its exit status shows whether it failed.
    with contextlib.suppress(HostError):
        pipe.send(stdin, timeout_s=timeout_s)
    pipe.finish_input()


def _next(host: str, pipe: Channel, deadline: float, timeout_s: float) -> bytes:
    chunk = pipe.receive(timeout_s=max(0.0, deadline - time.monotonic()))
    if chunk is None:
        raise unfinished(host, timeout_s)
    return chunk


def unfinished(host: str, timeout_s: float) -> HostUnreachableError:
    """Return the error for a command that exceeded its deadline."""
    return HostUnreachableError(
        host,
        f"A command on host '{host}' had not ended after {timeout_s:g} s. The host is overloaded, its disk or a "
        f"script of the login hangs, or the connection was cut. Check it with: airflow dtrain hosts probe {host}",
    )


class Inheritable(Protocol):
    """Owner of descriptors that a forked child must not use."""

    def abandon(self) -> None:
        """Close the descriptors in a forked child without a message to the other side."""


_live: weakref.WeakSet[Inheritable] = weakref.WeakSet()
# Never freed: a destructor might send a closing message on the parent's connection.
_inherited: list[Inheritable] = []


def not_in_children(thing: Inheritable) -> None:
    """Make forked children of this process abandon ``thing``."""
    _live.add(thing)


def _after_fork() -> None:
    for thing in list(_live):
        _inherited.append(thing)
        with contextlib.suppress(Exception):
            thing.abandon()
    _live.clear()


os.register_at_fork(after_in_child=_after_fork)
