"""Fixtures of the task log's tests: a follower's runtime, and a reader in Airflow's place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_dtrain.engine.logs import rank_log, sender
from tests.support.log_reader import LogReader
from tests.support.log_world import World


@pytest.fixture
def reader() -> Iterator[LogReader]:
    """A reader that reads nothing before ``go_on``."""
    reader = LogReader()
    yield reader
    reader.close()


@pytest.fixture
def log_world(reader: LogReader, monkeypatch: pytest.MonkeyPatch) -> World:
    """A runtime whose sender writes to the reader."""
    world = World(reader)
    monkeypatch.setattr(rank_log, "log_sender", lambda records_per_s: world.sender)
    monkeypatch.setattr(rank_log, "COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr(sender, "CONFIRM_EVERY_S", 0.05)
    return world
