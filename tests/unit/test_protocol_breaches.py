"""A host that breaks the protocol again and again: its part of the run ends instead of being tried for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.timing import BREACHES_WITHIN_S
from airflow_provider_dtrain.engine.attempt import stream
from airflow_provider_dtrain.engine.attempt.stream import BREACHES_MOST
from airflow_provider_dtrain.errors import HostError, HostLostError, HostProtocolError
from tests.support.host_followers import host_follower

TRIES = 30


class Clock:
    """Monotonic time that moves with each connection."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 1000.0, step_s

    def monotonic(self) -> float:
        return self.now


class Breaking:
    """Runtime of a follower whose host sends invalid answers, until the last connection reports the run as lost."""

    def __init__(self, clock: Clock, *, is_linked: bool) -> None:
        self.clock, self.is_linked, self.tried, self.attempt_id = clock, is_linked, 0, 1
        self.settings, self.lost_after_s = SimpleNamespace(orphan_timeout_s=0.0), 1e9
        self.store = SimpleNamespace(events=SimpleNamespace(offsets=None))
        self.log = SimpleNamespace(warning=lambda *_: None)

    async def link(self, host: str) -> Any:
        self.clock.now += self.clock.step_s
        self.tried += 1
        if self.tried == TRIES:
            raise HostLostError(host, "It has no trace of the run.")
        if not self.is_linked:
            raise HostProtocolError(host, "It sent nonsense.")
        return SimpleNamespace(hello=SimpleNamespace(boot_id="b"), alive=True)

    async def db(self, *_: Any) -> Any:
        raise HostProtocolError("a", "It sent nonsense.")

    async def note_host(self, *_: Any) -> bool:
        return True


async def given_up(monkeypatch: pytest.MonkeyPatch, *, step_s: float, is_linked: bool = True) -> tuple[HostError, int]:
    """Return why such a host is given up, and after how many connections."""
    clock = Clock(step_s)
    monkeypatch.setattr(stream, "time", clock)
    rt = Breaking(clock, is_linked=is_linked)
    follower = host_follower(rt, "a", run="t1.1.7", plan=None)
    gang, end = follower.gang, follower.gang.end
    follower.wait_s = 0.0
    async with asyncio.timeout(60):
        await follower.run()
    assert (end.ended, gang.changed.is_set()) == ({"a": "lost"}, True)
    return end.lost["a"], rt.tried


async def test_a_few_breaches_within_minutes_end_the_hosts_part(monkeypatch: pytest.MonkeyPatch) -> None:
    error, tried = await given_up(monkeypatch, step_s=30.0)
    assert (type(error), tried) == (HostProtocolError, BREACHES_MOST)
    assert f"broke the protocol {BREACHES_MOST} times" in str(error)
    assert "It sent nonsense." in str(error)


async def test_rare_breaches_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    error, tried = await given_up(monkeypatch, step_s=BREACHES_WITHIN_S / (BREACHES_MOST - 1))
    assert (type(error), tried) == (HostLostError, TRIES)


async def test_nonsense_in_place_of_a_greeting_counts_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    error, tried = await given_up(monkeypatch, step_s=30.0, is_linked=False)
    assert (type(error), tried) == (HostLostError, TRIES)
