"""A host has a limited time for a file that it sends, however it spreads the bytes over that time."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.copies.checkpoints import fetch_copy
from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hosts.channel import transfer
from tests.support.archives import archive, member

CONTENT = bytes(1_000_000)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Pipe:
    """Channel that sends a checkpoint, first ``at_once`` bytes and then ``count`` bytes every ``every_s`` seconds."""

    def __init__(self, clock: Clock, *, at_once: int, count: int, every_s: float) -> None:
        self.clock, self.next, self.count, self.every_s = clock, at_once, count, every_s
        self.data: io.BytesIO = archive(member("step-1/state.pt", content=CONTENT))

    def receive(self, *, timeout_s: float) -> bytes | None:
        wait_s = 0.0 if self.data.tell() == 0 else self.every_s
        self.clock.now += min(wait_s, timeout_s)
        if wait_s > timeout_s:
            return None
        found, self.next = self.data.read(self.next), self.count
        return found

    def finish_input(self) -> None: ...

    def wait_exit(self, timeout_s: float) -> int:
        return 0

    def close(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(transfer, "time", made)
    return made


def fetch(clock: Clock, target: Path, *, at_once: int, count: int, every_s: float) -> Pipe:
    """Fetch a checkpoint of 1 MB."""
    pipe = Pipe(clock, at_once=at_once, count=count, every_s=every_s)
    transport: Any = SimpleNamespace(host="gpu-01", open=lambda argv: pipe)
    commands = transfer.FileCommands(transport=transport, python="python", remote_dir=".", state_dir=None, digest="d")
    checkpoint: Any = SimpleNamespace(place=SimpleNamespace(path="step-1"), run="t1.1.1", sha256=None)
    fetch_copy(commands, checkpoint, target, limit_bytes=10**9)  # type: ignore[arg-type]
    return pipe


@pytest.mark.parametrize("at_once", [1024, 900_000])
def test_a_host_that_sends_one_byte_at_a_time_ends_its_transfer_after_a_minute(
    clock: Clock, tmp_path: Path, at_once: int
) -> None:
    begun = clock.now
    with pytest.raises(HostUnreachableError, match="Host 'gpu-01' sends a file more slowly than 100,000 bytes/s"):
        fetch(clock, tmp_path / "copy", at_once=at_once, count=1, every_s=1.0)
    assert clock.now - begun == pytest.approx(transfer.STALL_S, abs=2)
    assert list(tmp_path.iterdir()) == []


def test_a_host_may_be_slow_and_may_pause(clock: Clock, tmp_path: Path) -> None:
    fetch(clock, tmp_path / "slow", at_once=1024, count=20_000, every_s=0.19)
    fetch(clock, tmp_path / "pauses", at_once=1024, count=600_000, every_s=20.0)
    assert (tmp_path / "slow" / "state.pt").read_bytes() == (tmp_path / "pauses" / "state.pt").read_bytes() == CONTENT


def test_the_time_that_this_side_needs_for_writing_does_not_count(clock: Clock) -> None:
    pipe: Any = Pipe(clock, at_once=1024, count=20_000, every_s=0.01)
    incoming = transfer.Incoming("gpu-01", pipe)
    while incoming.read(tarfile.RECORDSIZE):
        clock.now += 100.0
