"""Settings for engines in tests: ``from tests.support.engines import quick_looks`` in the module that needs them."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.engine import attempt, recovery, restarting, runtime, stopping, verdict, waiting


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the engine's periods for control requests, background recovery and retries to fractions of a second."""
    monkeypatch.setattr(runtime, "WISH_CHECK_S", 0.2)
    monkeypatch.setattr(waiting, "PAUSED_LOOK_S", 0.2)
    monkeypatch.setattr(stopping, "TELL_AGAIN_S", 0.5)
    monkeypatch.setattr(attempt, "RETAKE_LOOK_S", 0.1)
    monkeypatch.setattr(recovery, "EVERY_S", 0.5)
    monkeypatch.setattr(recovery, "BUSY_EVERY_S", 0.5)
    monkeypatch.setattr(verdict, "BACK_OFF_FIRST_S", 0.1)
    monkeypatch.setattr(verdict, "PLATFORM_FIRST_S", 0.1)
    monkeypatch.setattr(restarting, "FENCE_AGAIN_S", 0.5)
