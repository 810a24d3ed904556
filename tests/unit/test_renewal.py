"""Renewals and silent hosts.

A renewal goes to the store first, under the watch, then to the host, with the host's own clock reading.
"""

from __future__ import annotations

import errno
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.session.lease_renewer import PROGRESS_LIMIT_S, Follower, Renewer
from airflow_provider_dtrain.engine.upkeep import recovery
from airflow_provider_dtrain.engine.upkeep.recovery import RecoveryPass
from airflow_provider_dtrain.errors import HostLostError, HostSilentError, HostUnreachableError, StoreUnavailableError
from airflow_provider_dtrain.supervisor import file_access as files_module
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.limits import IN_PLACE_BYTES
from airflow_provider_dtrain.supervisor.machine.processes import boottime
from airflow_provider_dtrain.supervisor.run.control import renew as renew_

READING_S = 4711.5


class StoreOfWatches:
    """Renews attempts whose watch is current, and records the order of calls."""

    def __init__(self, calls: list[Any], watches: dict[int, int], *, held_s: float = 0.0) -> None:
        self.calls, self.watches, self.held_s, self.is_away = calls, watches, held_s, False
        self.attempts = self.maintenance = self

    def left_s(self) -> float:
        return self.held_s

    def renew(self, watches: dict[int, int]) -> set[int]:
        if self.is_away:
            raise StoreUnavailableError("gone")
        self.calls.append("committed")
        return {attempt for attempt, watch in watches.items() if self.watches.get(attempt) == watch}


class Link:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def renew(self, runs: list[str], boottime_s: float, timeout_s: float) -> None:
        self.calls.append((sorted(runs), boottime_s, timeout_s))


@pytest.fixture
def calls() -> list[Any]:
    return []


def beat(store: StoreOfWatches, calls: list[Any], *, silent_s: float = 0.0) -> None:
    """Follow runs a and b (attempts 1 and 2) under watch 5, and handle a beat of their host for a, b and a stranger."""
    renewer, frame = Renewer(), {"boottime_s": READING_S, "runs": ["a", "b", "stranger"]}
    for run, attempt in (("a", 1), ("b", 2)):
        follower = Follower(attempt, 5, store, 900.0)  # type: ignore[arg-type]
        follower.progressed_at = time.monotonic() - silent_s
        renewer._followers[run] = follower
    renewer._renew([(Link(calls), frame)])  # type: ignore[list-item]


def test_a_host_is_renewed_after_the_store_and_gets_its_own_reading_back(calls):
    beat(StoreOfWatches(calls, {1: 5, 2: 5}), calls)
    assert calls == ["committed", (["a", "b"], READING_S, 900.0)]


def test_a_host_is_not_renewed_for_a_follower_whose_watch_is_stale(calls):
    beat(StoreOfWatches(calls, {1: 5, 2: 6}), calls)
    assert calls == ["committed", (["a"], READING_S, 900.0)]


def test_no_host_is_renewed_while_the_store_is_away(calls):
    store = StoreOfWatches(calls, {1: 5, 2: 5})
    store.is_away = True
    with pytest.raises(StoreUnavailableError):
        beat(store, calls)
    assert calls == []


def test_a_coroutine_that_makes_no_progress_renews_nothing(calls):
    beat(StoreOfWatches(calls, {1: 5, 2: 5}), calls, silent_s=PROGRESS_LIMIT_S + 1)
    assert [call for call in calls if call != "committed"] == []


def test_a_lease_that_a_person_holds_lasts_as_long(calls):
    beat(StoreOfWatches(calls, {1: 5, 2: 5}, held_s=3600.0), calls)
    assert calls[-1] == (["a", "b"], READING_S, 3600.0)


# -- on the host ---------------------------------------------------------------------------------
@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Layout, Path]:
    """Layout of a host with a prepared run, and the run's file ``renewed``."""
    layout = Layout(str(tmp_path / "remote"), str(tmp_path / "state")).ensure()
    folder = tmp_path / "state" / "runs" / "t1.1.7"
    folder.mkdir()
    (folder / "lock").touch()
    return layout, folder / "renewed"


def deadline(file: Path) -> float:
    return float(json.loads(file.read_text())["deadline_boottime_s"])


def earlier_reading() -> float:
    """Return a time in the past of this machine's boot-time clock."""
    return 0.5 * boottime()


def test_a_deadline_counts_from_the_hosts_reading_and_not_from_the_answers_arrival(prepared):
    layout, file = prepared
    reading = earlier_reading()
    renew_(layout, ["t1.1.7"], reading, 900.0)
    assert deadline(file) == reading + 900.0


def test_an_answer_that_was_overtaken_or_repeated_moves_no_deadline(prepared):
    layout, file = prepared
    reading = earlier_reading()
    renew_(layout, ["t1.1.7"], reading, 900.0)
    renew_(layout, ["t1.1.7"], 0.9 * reading, 10**6)
    renew_(layout, ["t1.1.7"], reading, 10**6)
    assert deadline(file) == reading + 900.0


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which no new file finds room."""

    def refuse(path: str, *args: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(files_module, "write_atomic", refuse)


def test_a_full_disk_keeps_no_run_from_being_renewed(prepared, full_disk):
    layout, file = prepared
    file.write_bytes(b"{}".ljust(IN_PLACE_BYTES))
    reading = earlier_reading()
    for one in (0.5 * reading, reading):
        renew_(layout, ["t1.1.7"], one, 900.0)
        assert deadline(file) == one + 900.0
        assert layout.run("t1.1.7").renewal()["renewed_boottime_s"] == one
    renew_(layout, ["t1.1.7"], 0.9 * reading, 10**6)
    assert deadline(file) == reading + 900.0


@pytest.mark.parametrize(
    "before", [{}, {"renewed_boottime_s": 199.5, "deadline_boottime_s": 1099.5}, None],
    ids=["prepared", "renamed", "in place"],
)  # fmt: skip
def test_a_renewal_that_is_read_while_it_is_overwritten_is_none_or_one_of_both(prepared, full_disk, before):
    layout, file = prepared
    folder = layout.run("t1.1.7")
    file.write_bytes(json.dumps(before or {}, separators=(",", ":")).encode())
    if before is None:
        folder.renew(199.5, 1099.5)
    old, known = file.read_bytes(), [{}, folder.renewal()]
    folder.renew(200.25, 1100.25)
    new = file.read_bytes()
    known.append(folder.renewal())
    assert folder.renewal()["deadline_boottime_s"] == 1100.25
    for cut in range(len(new) + 1):
        for torn in (new[:cut] + old[cut:], old[:cut].ljust(cut) + new[cut:]):
            file.write_bytes(torn)
            assert folder.renewal() in known, torn


def test_a_run_that_cannot_be_renewed_keeps_no_other_run_from_it(prepared):
    layout, file = prepared
    file.mkdir()
    other = file.parent.with_name("t2.1.8")
    other.mkdir()
    (other / "lock").touch()
    reading = earlier_reading()
    with pytest.raises(OSError, match="Is a directory"):
        renew_(layout, ["t1.1.7", "t2.1.8"], reading, 900.0)
    assert deadline(other / "renewed") == reading + 900.0


# -- silence -------------------------------------------------------------------------------------
LIMIT_S = (900.0 + 20.0) * 1.05
VIEW: Any = SimpleNamespace(attempt_id=1, watch=5, renewed_at=datetime(2026, 1, 1, tzinfo=UTC), run="t1.1.7")
SILENCE = {"gpu-1": HostUnreachableError("gpu-1", "no answer")}


def look(seen_for_s: float | None, *, orphan_timeout_s: float = 900.0) -> RecoveryPass:
    """Return a recoverer that has seen the attempt unchanged for this time."""
    settings = SimpleNamespace(orphan_timeout_s=orphan_timeout_s, kill_grace_s=20.0)
    found, now = RecoveryPass(SimpleNamespace(settings=settings, store=None)), time.monotonic()  # type: ignore[arg-type]
    if seen_for_s is not None:
        found._seen[VIEW.attempt_id, VIEW.watch, VIEW.renewed_at] = (now - seen_for_s, now)
    return found


@pytest.mark.parametrize("seen_for_s", [None, 0.0, 60.0, 900.0, LIMIT_S - 5.0])
def test_a_silent_host_is_not_given_up_before_its_run_must_have_ended_itself(seen_for_s):
    assert look(seen_for_s)._lost(VIEW, SILENCE) is None


def test_a_silent_host_is_given_up_once_its_run_must_have_ended_itself():
    lost = look(LIMIT_S + 1.0)._lost(VIEW, SILENCE)
    assert lost is not None
    assert type(lost["gpu-1"]) is HostSilentError


async def test_recovery_requests_its_run_by_name_because_the_status_of_all_runs_is_bounded(monkeypatch):
    asked: list[Any] = []

    async def call(host: str, cmd: str, **arguments: Any) -> dict[str, Any]:
        asked.append((host, cmd, arguments))
        return {"runs": {VIEW.run: {"state": "ended", "ranks": [{"pid": 5}]}}}

    monkeypatch.setattr(recovery, "runtime_of", lambda *_: SimpleNamespace(call=call))
    monkeypatch.setattr(recovery, "_is_namesake", lambda *_: False)
    assert await look(None)._state_of(SimpleNamespace(), VIEW, "gpu-1") == "started"
    assert asked == [("gpu-1", "status", {"runs": [VIEW.run]})]


def test_a_silent_host_whose_runs_never_end_themselves_is_never_given_up():
    assert look(10**6, orphan_timeout_s=0.0)._lost(VIEW, SILENCE) is None


def test_a_host_that_says_that_it_has_nothing_is_given_up_at_once():
    lost = look(None)._lost(VIEW, {"gpu-1": "absent"})
    assert lost is not None
    assert type(lost["gpu-1"]) is HostLostError
