"""Waits for output and end of a command on a transport's channel."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from airflow_provider_dtrain.hosts.transport.base import Channel

PYTHON = sys.executable

ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


def drain(channel: Channel, timeout_s: float = 20.0) -> bytes:
    output, deadline = b"", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        chunk = channel.receive(timeout_s=1.0)
        if chunk == b"":
            return output
        output += chunk or b""
    raise AssertionError(f"no end of output, so far {output!r}")


def line_of(channel: Channel) -> bytes:
    output, deadline = b"", time.monotonic() + 20
    while not output.endswith(b"\n"):
        assert time.monotonic() < deadline
        output += channel.receive(timeout_s=1.0) or b""
    return output


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
