"""A host has a limited time for a file that it takes, however it spreads the bytes over that time."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.errors import HostRefusedError, HostUnreachableError
from airflow_provider_dtrain.hosts.channel import transfer
from airflow_provider_dtrain.hosts.transport.ssh import SSHChannel

#: Size of the pieces in which a tar is written.
PIECE = bytes(10_240)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Pipe:
    """Channel of a command that takes ``at_once`` bytes, then each write after ``every_s`` seconds.

    :param ends_after: number of bytes after which the command ends with a refusal; None = it reads everything
    """

    def __init__(self, clock: Clock, *, every_s: float, at_once: int = 0, ends_after: int | None = None) -> None:
        self.clock, self.every_s, self.at_once, self.ends_after = clock, every_s, at_once, ends_after
        self.taken, self.is_closed = 0, False
        self.answers = [b'{"code": "bad_archive", "message": "no tar"}\n' if ends_after is not None else b"{}\n", b""]

    def send(self, data: bytes, *, timeout_s: float) -> None:
        if self.ends_after is not None and self.taken >= self.ends_after:
            raise HostUnreachableError("gpu-01", "A command does not accept further input: broken pipe.")
        wait_s = self.every_s if self.taken >= self.at_once else 0.0
        self.clock.now += min(wait_s, timeout_s)
        if wait_s > timeout_s:
            raise HostUnreachableError("gpu-01", "A command does not accept further input: the deadline has passed.")
        self.taken += len(data)

    def receive(self, *, timeout_s: float) -> bytes | None:
        return self.answers.pop(0)

    def finish_input(self) -> None: ...

    def errors(self) -> bytes:
        return b""

    def wait_exit(self, timeout_s: float) -> int:
        return 0 if self.ends_after is None else 1

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(transfer, "time", made)
    return made


def put(pipe: Pipe, *, pieces: int, pause_s: float = 0.0) -> None:
    """Send a file in pieces, and pause on this side before each."""
    transport: Any = SimpleNamespace(host="gpu-01", open=lambda argv: pipe)
    commands = transfer.FileCommands(transport=transport, python="python", remote_dir=".", state_dir=None, digest="d")
    with commands.putting("t1.1.1", "checkpoints") as outgoing:
        for _ in range(pieces):
            pipe.clock.now += pause_s
            outgoing.write(PIECE)


@pytest.mark.parametrize("at_once", [0, 100 * len(PIECE)])
def test_a_host_that_takes_one_piece_at_a_time_ends_its_transfer_after_a_minute(clock: Clock, at_once: int) -> None:
    pipe, begun = Pipe(clock, every_s=5.0, at_once=at_once), clock.now
    with pytest.raises(HostUnreachableError, match="Host 'gpu-01' takes a file more slowly than 100,000 bytes/s"):
        put(pipe, pieces=1000)
    assert clock.now - begun == pytest.approx(transfer.STALL_S, abs=5)
    assert pipe.is_closed


def test_a_host_may_take_a_file_slowly_and_may_pause(clock: Clock) -> None:
    slow, pausing = Pipe(clock, every_s=0.1), Pipe(clock, every_s=25.0, at_once=998 * len(PIECE))
    put(slow, pieces=1000)
    put(pausing, pieces=1000)
    assert slow.taken == pausing.taken == 1000 * len(PIECE)


def test_the_time_that_this_side_needs_for_reading_does_not_count(clock: Clock) -> None:
    pipe = Pipe(clock, every_s=0.01)
    put(pipe, pieces=100, pause_s=100.0)
    assert pipe.taken == 100 * len(PIECE)


def test_a_command_that_ends_before_it_has_read_everything_is_a_refusal(clock: Clock) -> None:
    with pytest.raises(HostRefusedError, match="no tar"):
        put(Pipe(clock, every_s=0.01, ends_after=5 * len(PIECE)), pieces=100)


class Trickle:
    """Channel of paramiko to a peer that grants one byte of window every few milliseconds."""

    def __init__(self) -> None:
        self.in_stderr_buffer = self.in_buffer = SimpleNamespace(set_event=lambda event: None)

    def settimeout(self, timeout_s: float) -> None:
        """The peer is always faster than this."""

    def send(self, data: bytes) -> int:
        time.sleep(0.002)
        return 1


def test_a_write_over_ssh_ends_at_its_deadline_although_the_peer_takes_single_bytes() -> None:
    trickle: Any = Trickle()
    begun = time.monotonic()
    with pytest.raises(HostUnreachableError, match="did not read everything before the deadline"):
        SSHChannel("gpu-01", trickle, lambda: None).send(bytes(5000), timeout_s=0.2)
    assert time.monotonic() - begun < 5
