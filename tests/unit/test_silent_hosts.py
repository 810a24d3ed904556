"""A follower gives a host that does not answer up when its run must have ended itself there, and not before."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.stream import HostFollower
from airflow_provider_dtrain.engine.session.runtime import Runtime
from airflow_provider_dtrain.errors import HostSilentError, HostUnreachableError

ERROR = HostUnreachableError("gpu-1", "no answer")


def runtime(*, is_held: bool = False, orphan_timeout_s: float = 900.0) -> Any:
    async def done(*_: Any) -> bool:
        return True

    async def held() -> bool:
        return is_held

    settings = SimpleNamespace(orphan_timeout_s=orphan_timeout_s, kill_grace_s=20.0)
    limit_s = Runtime.lost_after_s.fget(SimpleNamespace(settings=settings))  # type: ignore[attr-defined]
    log = logging.getLogger("test")
    return SimpleNamespace(settings=settings, lost_after_s=limit_s, log=log, note_host=done, is_held=held)


def follower(rt: Any, silent_s: float) -> Any:
    """A follower of a host that has been silent for so long."""
    lost: dict[str, Exception] = {}
    gang = SimpleNamespace(
        rt=rt, end=SimpleNamespace(lost=lost, ended={}, failed=False), changed=SimpleNamespace(set=lambda: None)
    )
    found = object.__new__(HostFollower)
    found.__dict__.update(
        gang=gang, rt=rt, host="gpu-1", unreachable_since=time.monotonic() - silent_s, is_shown_away=True, wait_s=0.0
    )
    return found


def test_a_run_has_ended_itself_after_its_lease_and_its_grace():
    assert runtime().lost_after_s == pytest.approx((900.0 + 20.0) * 1.05)


@pytest.mark.parametrize("silent_s", [0.0, 60.0, 900.0, 960.0])
async def test_a_silent_host_is_tried_again_until_its_run_must_have_ended_itself(silent_s):
    one = follower(runtime(), silent_s)
    await one._back_off(ERROR)
    assert one.gang.end.lost == {}


async def test_a_silent_host_is_given_up_when_its_run_must_have_ended_itself():
    one = follower(runtime(), 970.0)
    await one._back_off(ERROR)
    assert type(one.gang.end.lost["gpu-1"]) is HostSilentError


@pytest.mark.parametrize("options", [{"is_held": True}, {"orphan_timeout_s": 0.0}])
async def test_a_silent_host_whose_run_may_live_on_is_not_given_up(options):
    one = follower(runtime(**options), 10**6)
    await one._back_off(ERROR)
    assert one.gang.end.lost == {}
