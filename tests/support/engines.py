"""Settings for engines in tests: ``from tests.support.engines import quick_looks`` in the module that needs them."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.lifecycle import after_failure
from airflow_provider_dtrain.engine.attempt import graceful_stop, queue_wait, restarts, runner
from airflow_provider_dtrain.engine.session import runtime
from airflow_provider_dtrain.engine.upkeep import recovery


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the engine's periods for control requests, background recovery and retries to fractions of a second."""
    monkeypatch.setattr(runtime, "WISH_CHECK_S", 0.2)
    monkeypatch.setattr(queue_wait, "PAUSED_LOOK_S", 0.2)
    monkeypatch.setattr(graceful_stop, "TELL_AGAIN_S", 0.5)
    monkeypatch.setattr(runner, "RETAKE_LOOK_S", 0.1)
    monkeypatch.setattr(recovery, "EVERY_S", 0.5)
    monkeypatch.setattr(recovery, "BUSY_EVERY_S", 0.5)
    monkeypatch.setattr(after_failure, "BACK_OFF_FIRST_S", 0.1)
    monkeypatch.setattr(after_failure, "PLATFORM_FIRST_S", 0.1)
    monkeypatch.setattr(restarts, "FENCE_AGAIN_S", 0.5)
