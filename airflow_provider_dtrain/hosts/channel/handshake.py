"""Handshake of a follow channel, up to the host's first line."""

from __future__ import annotations

import time
from typing import NamedTuple

from airflow_provider_dtrain.errors import HostError, HostProtocolError, HostUnreachableError
from airflow_provider_dtrain.hosts.channel.errors import refusal
from airflow_provider_dtrain.hosts.channel.transfer import FileCommands
from airflow_provider_dtrain.hosts.install import install, missing_python, output_of
from airflow_provider_dtrain.hosts.payload import Payload
from airflow_provider_dtrain.hosts.transport.base import Channel, Completed
from airflow_provider_dtrain.hosts.wire import GreetingRefusedError, Hello, WireError, find_hello, shown

#: Seconds by which an exit status may lag behind the end of the output.
_EXIT_WAIT_S = 2.0


class Opened(NamedTuple):
    """A channel whose host has sent its greeting."""

    channel: Channel
    hello: Hello
    #: Bytes received after the greeting.
    rest: bytes
    #: Reading of the monotonic clock when the channel was requested.
    asked_s: float


def follow(files: FileCommands, archive: Payload, *, deadline: float) -> Opened:
    """Return an open channel.

    The first try assumes that the supervisor is installed. If it is not, this function installs it and tries once more.

    :param deadline: reading of the monotonic clock
    :raises EnvironmentMissingError: the host has no interpreter, or one that is too old
    :raises HostError: the host cannot be reached, or breaks the protocol
    """
    transport = files.transport
    begun = _begin(files, deadline)
    if isinstance(begun, Completed):
        missing = missing_python(transport.host, files.python, begun)
        if missing is not None:
            raise missing
        install(
            transport,
            python=files.python,
            remote_dir=files.remote_dir,
            archive=archive,
            timeout_s=max(1.0, deadline - time.monotonic()),
        )
        begun = _begin(files, deadline)
    if isinstance(begun, Completed):
        raise HostProtocolError(
            transport.host,
            f"The supervisor on host '{transport.host}' ended with exit status {begun.exit_code} before its first line."
            f" {output_of(begun)}",
        )
    return begun


def _begin(files: FileCommands, deadline: float) -> Opened | Completed:
    """Return the channel with its greeting, or the result of a command that ended without one."""
    host = files.transport.host
    asked_s = time.monotonic()
    left_s = max(1.0, deadline - asked_s)
    channel = files.transport.open(files.argv("follow"), timeout_s=left_s)
    try:
        begun = _await_hello(host, channel, deadline)
    except GreetingRefusedError as error:
        channel.close()
        raise refusal(host, "follow", error.answer) from error
    except WireError as error:
        channel.close()
        raise HostProtocolError(host, f"Host '{host}' did not send the greeting of a supervisor: {error}") from error
    except BaseException:
        channel.close()
        raise
    if isinstance(begun, Completed):
        channel.close()
        return begun
    hello, rest = begun
    return Opened(channel, hello, rest, asked_s)


def _await_hello(host: str, channel: Channel, deadline: float) -> tuple[Hello, bytes] | Completed:
    received = bytearray()
    while True:
        chunk = channel.receive(timeout_s=max(0.0, deadline - time.monotonic()))
        if chunk is None:
            raise HostUnreachableError(
                host,
                f"The supervisor on host '{host}' sent no first line in time. The host is overloaded, or a login "
                f"script waits for something. Received: '{shown(received)}'.",
            )
        if not chunk:
            return Completed(exit_code=_exit_code(channel), stdout=bytes(received), stderr=channel.errors())
        received += chunk
        found = find_hello(bytes(received))
        if found is not None:
            hello, end = found
            return hello, bytes(received[end:])


def _exit_code(channel: Channel) -> int:
    """Return the exit status, or -1 if the host does not send it."""
    deadline = time.monotonic() + _EXIT_WAIT_S
    while (code := channel.exit_code()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return -1 if code is None else code


def ended(host: str, channel: Channel) -> HostError:
    """Return the error for a channel that ended by itself."""
    message = shown(channel.errors().strip()[-200:])
    code = channel.exit_code()
    how = "" if code is None else f" with exit status {code}"
    return HostUnreachableError(
        host,
        f"The channel to host '{host}' ended{how}. The network is cut, the host went down, or its follow process was "
        f"killed.{f' Its last message: {message}' if message else ''}",
    )
