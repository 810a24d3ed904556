"""Upkeep of runs by a channel: one task at a time for each run, and another one after each end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider_dtrain.supervisor.channel import follow as follow_module
from airflow_provider_dtrain.supervisor.channel import upkeep as upkeep_module
from airflow_provider_dtrain.supervisor.channel.follow import Follow
from airflow_provider_dtrain.supervisor.files.layout import Layout, RunFolder
from airflow_provider_dtrain.supervisor.run.launcher import Zygote


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    reader, writer = os.pipe()
    yield Follow(Layout(str(tmp_path / "remote"), str(tmp_path / "state")), cast("Zygote", None), reader, writer)
    os.close(reader)
    os.close(writer)


def lost_run(follow: Follow) -> RunFolder:
    folder = follow.layout.run("t1.1.1")
    Path(folder.path).mkdir(parents=True)
    Path(folder.file("started")).write_text("{}")
    return folder


def test_a_recovery_that_ends_at_once_can_be_repeated(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(upkeep_module, "recover", begun.append)
    # The thread has ended before its starter continues.
    monkeypatch.setattr(Follow, "_start_thread", lambda self, key, work: work())
    folder = lost_run(follow)
    follow.upkeep.recover(folder)
    follow.upkeep.recover(folder)
    assert len(begun) == 2


def test_a_recovery_without_a_thread_is_tried_again(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> Any:
        raise RuntimeError("can't start new thread")

    folder = lost_run(follow)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        follow.upkeep.recover(folder)
    assert (follow.threads, follow.upkeep.recovering) == (0, set())
    monkeypatch.setattr(follow_module, "MAX_THREADS", 0)
    follow.upkeep.recover(folder)
    assert follow.upkeep.recovering == set()
