"""The thread that reports the progress of a rank."""

from __future__ import annotations

import gc
import sys

import pytest

from airflow_provider_dtrain.train.process.heartbeat import main_thread


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_collection_begins_while_the_interpreter_lists_its_threads(monkeypatch, is_enabled):
    """Before Python 3.12 it could free a tensor there, and the rank waited for ever."""
    during = []

    def noting(called):
        def call():
            during.append(gc.isenabled())
            return called()

        return call

    for name in ("_current_frames", "_current_exceptions"):
        monkeypatch.setattr(sys, name, noting(getattr(sys, name)))
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        assert main_thread() == (False, "")
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert during == [False, False]
