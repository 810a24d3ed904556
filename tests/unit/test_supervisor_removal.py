"""Removal of old runs on a host: by age, whatever a rank left in the folder, and on a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.files.garbage import collect
from airflow_provider_dtrain.supervisor.files.layout import Layout, RunFolder
from airflow_provider_dtrain.supervisor.machine.locks import take_lock

HOUR_S = 3600.0


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    yield Layout(str(tmp_path / "remote"), str(tmp_path / "state"), "none").ensure()
    # Neither pytest nor shutil can remove a folder that is nested deeper than the limit of recursion.
    subprocess.run(["rm", "-rf", str(tmp_path / "state")], check=True)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the clock: ``later(seconds)``."""
    now = time.time

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: now() + seconds)

    return move


def make_run(layout: Layout, name: str, *files: str) -> RunFolder:
    folder = layout.run(name)
    for file in ("lock", *files):
        path = Path(folder.file(file))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}" + "x" * 100_000 * ("/" in file))
    return folder


def make_deep(path: str, levels: int) -> None:
    os.makedirs(path)
    fd = os.open(path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("deep", dir_fd=fd)
        inner = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


def full_while(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[str], bool]) -> None:
    """Make tombstones fail for the runs for which ``is_full`` holds at that moment."""
    bury = Layout.bury

    def try_to_bury(layout: Layout, run: str, token: int | None, launch: str | None = None) -> None:
        if is_full(run):
            raise OSError(errno.ENOSPC, "No space left on device", "tombstones")
        bury(layout, run, token, launch)

    monkeypatch.setattr(Layout, "bury", try_to_bury)


def test_files_of_a_start_that_was_refused_are_removed_and_it_never_starts_later(
    layout: Layout, later: Callable[[float], None]
) -> None:
    folder = make_run(layout, "t1.1.1", "supervisor.json", "carried-ab12ab12/work/big")
    later(2 * HOUR_S)
    assert collect(layout, 3 * HOUR_S)["removed"] == []
    assert list(collect(layout, HOUR_S, dry_run=True)["sizes"]) == ["t1.1.1"]
    assert collect(layout, HOUR_S)["sizes"]["t1.1.1"] >= 100_000
    assert (os.listdir(os.path.dirname(folder.path)), folder.has_tombstone) == ([], True)


def test_a_start_that_still_sends_files_keeps_them(layout: Layout, later: Callable[[float], None]) -> None:
    folder = make_run(layout, "t1.1.1", "carried-ab12ab12/work/big")
    later(HOUR_S - 60)
    assert collect(layout, 0)["removed"] == []
    later(2 * HOUR_S)
    lock = take_lock(folder.file("lock"))
    assert lock is not None
    for dry_run in (True, False):
        assert collect(layout, 0, dry_run=dry_run)["removed"] == []
    os.close(lock)
    assert collect(layout, 0)["removed"] == ["t1.1.1"]


def test_files_of_a_fenced_start_are_removed_without_a_delay(layout: Layout) -> None:
    make_run(layout, "t1.1.1", "carried-ab12ab12/work/big")
    layout.bury("t1.1.1", 1)
    assert collect(layout, 0)["removed"] == ["t1.1.1"]


def test_a_run_that_was_started_and_has_not_ended_is_never_removed(
    layout: Layout, later: Callable[[float], None]
) -> None:
    make_run(layout, "t1.1.1", "started", "work/x")
    layout.bury("t1.1.1", 1)
    later(1000 * HOUR_S)
    assert collect(layout, 0)["removed"] == []


def test_a_dry_run_does_not_make_a_folder_young(layout: Layout, later: Callable[[float], None]) -> None:
    folder = make_run(layout, "t1.1.1", "carried-ab12ab12/work/big")
    os.unlink(folder.file("lock"))
    changed = os.stat(folder.path).st_ctime_ns
    later(2 * HOUR_S)
    assert collect(layout, 0, dry_run=True)["removed"] == ["t1.1.1"]
    assert os.stat(folder.path).st_ctime_ns == changed


def test_a_folder_that_is_nested_very_deeply_is_measured_and_removed_with_the_rest(layout: Layout) -> None:
    make_deep(make_run(layout, "t1.1.1", "ended").file("work"), 1_200)
    make_run(layout, "t2.1.2", "ended")
    found = collect(layout, 0)
    assert found["removed"] == ["t1.1.1", "t2.1.2"]
    assert found["sizes"]["t1.1.1"] >= found["sizes"]["t2.1.2"]
    assert os.listdir(os.path.join(layout.state_dir, "runs")) == []


def test_the_rest_of_an_earlier_removal_is_removed(layout: Layout) -> None:
    rest = os.path.join(layout.state_dir, "runs", ".t1.1.1.0123456789ab.deleted")
    os.makedirs(os.path.join(rest, "work", "inner"))
    collect(layout, 0, dry_run=True)
    assert os.path.exists(rest)
    collect(layout, 0, runs=[])
    assert not os.path.exists(rest)


def test_a_link_in_place_of_a_run_is_removed_and_its_target_stays(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in ("ended", "precious"):
        (tmp_path / "own" / name).write_text("{}")
    os.symlink(tmp_path / "own", layout.run("t1.1.1").path)
    collect(layout, 0)
    assert (tmp_path / "own" / "precious").exists()


def test_on_a_full_disk_the_folders_of_an_ended_run_make_room_for_its_tombstone(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(layout, "t1.1.1", "ended", "started", "work/big")
    full_while(monkeypatch, lambda run: folder.has("work"))
    assert collect(layout, 0)["removed"] == ["t1.1.1"]
    assert (folder.has_tombstone, os.path.exists(folder.path)) == (True, False)


def test_on_a_full_disk_a_run_without_a_tombstone_keeps_the_record_of_its_end(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    folder = make_run(layout, "t1.1.1", "ended", "started", "work/big")
    refused = make_run(layout, "t2.1.2", "carried-ab12ab12/work/big")
    later(2 * HOUR_S)
    full_while(monkeypatch, lambda run: True)
    with pytest.raises(OSError, match="No space left"):
        collect(layout, 0)
    assert (folder.has("ended"), folder.has("started"), folder.has("work")) == (True, True, False)
    # Its only file that a late start needs is the one that would be missing.
    assert refused.has("carried-ab12ab12/work/big")


def test_a_run_that_cannot_be_removed_does_not_keep_the_rest(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t1.1.1", "t2.1.2"):
        make_run(layout, name, "ended")
    full_while(monkeypatch, lambda run: run == "t1.1.1")
    assert collect(layout, 0)["removed"] == ["t2.1.2"]
