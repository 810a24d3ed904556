"""One run at a time writes to a place: a folder, or a prefix of a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.checkpoint.trial_storage import LEASE, TrialStorage, lease_of
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import (
    CheckpointError,
    CheckpointStorageError,
    FolderInUseError,
    OutputFolderError,
)
from airflow_provider_dtrain.train.files.lease import Lease, describe
from airflow_provider_dtrain.train.files.local import LocalPlace
from airflow_provider_dtrain.train.inference.output_folder import open_folder
from airflow_provider_dtrain.train.inference.owner import OWNER, owner_of

pytest_plugins = ["tests.support.places"]
NAME = "writer.json"


def lease(place, run="run-1", key="task", pause=lambda _: None, beat_s=60.0, **options):
    def in_use(holder, is_taken):
        return FolderInUseError(f"{'taken over' if is_taken else 'in use'} by {describe(holder)}")

    def unsure(silent_s):
        return OutputFolderError(f"silent for {silent_s:.0f} s")

    options = {"settle_s": 0.0, **options}
    return Lease(place, NAME, run=run, key=key, in_use=in_use, unsure=unsure, pause=pause, beat_s=beat_s, **options)


def read(place):
    return json.loads(place.read(NAME))


def written_by(place, **changes):
    """Leave the lease of another process of this host in a place."""
    one = lease(place, run="s-t9.1.5", key="s-t9", names_process=True)
    one.acquire()
    document = read(place)
    one.release()
    place.write(NAME, json.dumps({**document, **changes}).encode())


def beats(place):
    """Raise the counter of a lease."""
    document = read(place)
    place.write(NAME, json.dumps({**document, "beat": document["beat"] + 1}).encode())


def test_a_lease_is_there_until_it_is_released(place):
    one = lease(place)
    one.acquire()
    one.acquire()
    assert read(place)["run"] == "run-1"
    one.check()
    one.confirm()
    one.release()
    one.release()
    assert place.entries() == {}


def test_a_second_run_is_refused_while_the_first_one_raises_its_counter(place):
    first = lease(place)
    first.acquire()

    with pytest.raises(FolderInUseError, match=r"in use by run run-1 on host \S+$"):
        lease(place, "run-2", "other", pause=lambda _: first._write()).acquire()
    first.release()


def test_a_holder_that_died_is_replaced_after_six_beats_without_a_new_counter(place):
    dead = lease(place)
    dead.acquire()
    dead.suspend()
    pauses = []

    second = lease(place, "run-2", "other", pause=pauses.append, beat_s=2.0)
    second.acquire()

    assert pauses[:6] == [2.0] * 6
    second.check()
    second.release()


def test_the_next_attempt_of_the_same_task_does_not_wait(place):
    lease(place).acquire()

    second = lease(place, "run-2", pause=lambda _: pytest.fail("no wait is needed"))
    second.acquire()

    second.release()


def test_runs_without_a_task_are_no_attempts_of_one_task(place):
    lease(place, key=None).acquire()
    pauses = []

    lease(place, "run-2", key=None, pause=pauses.append).acquire()

    assert len(pauses) >= 6


def test_of_two_runs_that_begin_at_once_one_is_refused(tmp_path):
    place = LocalPlace(tmp_path)
    second = lease(place, "run-2", "other")
    first = lease(place)

    def without_holder():
        """Return what the first run reads just before the second one writes its name."""
        first._read = lambda: Lease._read(first)
        second.acquire()

    first._read = without_holder

    with pytest.raises(FolderInUseError, match="run-2"):
        first.acquire()
    second.release()


class WithoutLinks(LocalPlace):
    """A file system that cannot create a name on condition."""

    def create(self, name, content):
        return None


def test_of_two_runs_that_write_at_once_one_finds_the_name_of_the_other(tmp_path):
    place = WithoutLinks(tmp_path)
    second = lease(place, "run-2", "other")

    with pytest.raises(FolderInUseError, match="run-2"):
        lease(place, pause=lambda _: second._write()).acquire()


def test_a_file_system_without_links_is_used_without_them(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    pauses = []
    one = lease(LocalPlace(tmp_path), pause=pauses.append, settle_s=1.0)
    one.acquire()
    one.release()
    assert pauses == [1.0]


def test_a_holder_that_was_replaced_learns_of_it_and_does_not_remove_its_successor(place):
    first = lease(place, beat_s=0.01)
    first.acquire()
    second = lease(place, "run-2", "other")
    for _ in range(100):
        # The first holder may write over the name once, between two reads.
        second._write()
        first._thread.join(0.2)
        if not first._thread.is_alive():
            break

    with pytest.raises(FolderInUseError, match="run-2"):
        first.check()
    first.release()
    second.confirm()


@pytest.mark.parametrize("recreates", [False, True])
def test_a_lease_that_was_removed_has_been_held_by_another_run_unless_it_may_be_written_anew(place, recreates):
    one = lease(place, recreates=recreates, beat_s=0.01)
    one.acquire()
    place.remove(NAME)
    deadline = time.monotonic() + 20
    while one._thread.is_alive() and not (place.read(NAME) and recreates) and time.monotonic() < deadline:
        one._thread.join(0.01)

    if recreates:
        one.check()
        one.confirm()
    else:
        with pytest.raises(FolderInUseError, match="another run"):
            one.check()
        with pytest.raises(FolderInUseError, match="another run"):
            one.confirm()
    one.release()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"[" * 5000, b"{" * 4097], ids=lambda one: repr(one[:9])
)
def test_a_damaged_lease_is_one_of_a_dead_holder(place, content):
    place.write(NAME, content)
    pauses = []
    second = lease(place, "run-2", pause=pauses.append)
    second.acquire()

    assert len(pauses) > 1
    second.confirm()
    second.release()


def test_a_holder_whose_incomplete_file_vanishes_raises_its_counter_again(place):
    first = lease(place, beat_s=0.01)
    write, written = first._write, []

    def vanishing():
        written.append(1)
        if len(written) == 2:
            raise FileNotFoundError("incomplete/tmp123")
        write()

    first._write = vanishing
    first.acquire()
    deadline = time.monotonic() + 20
    while len(written) < 4 and time.monotonic() < deadline:
        first._thread.join(0.01)
    first.release()

    assert len(written) >= 4


def test_a_holder_that_cannot_reach_the_place_for_long_no_longer_trusts_its_lease(place):
    first = lease(place, beat_s=0.0)
    first._confirmed_at -= 1

    with pytest.raises(OutputFolderError, match="silent for"):
        first.check()


def test_a_bucket_that_does_not_answer_is_an_error_of_the_system(place, monkeypatch):
    if place.renames:
        pytest.skip("a folder answers")

    def broken(*_, **__):
        raise RuntimeError("no route")

    for name in ("pipe_file", "cat_file", "rm_file", "ls"):
        monkeypatch.setattr(place.fs, name, broken)
    for call in (lambda: place.write("x", b""), lambda: place.read("x"), lambda: place.remove("x"), place.entries):
        with pytest.raises(OSError, match="RuntimeError: no route"):
            call()


# -- leases that name their process ------------------------------------------------------------------------------------


def test_a_live_process_of_the_same_host_is_refused_at_once_with_run_host_and_process(place):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        written_by(place, pid=other.pid, started=started)
        with pytest.raises(FolderInUseError, match=rf"run s-t9.1.5 on host \S+, process {other.pid}$"):
            lease(place, names_process=True, pause=lambda _: pytest.fail("no wait is needed")).acquire()
        other.communicate()
    lease(place, names_process=True).acquire()


def test_a_process_that_ended_is_replaced_at_once_also_when_its_number_is_used_again(place):
    written_by(place, pid=os.getppid(), started="1")
    lease(place, names_process=True, pause=lambda _: pytest.fail("no wait is needed")).acquire()
    assert read(place)["pid"] == os.getpid()


@pytest.mark.parametrize("field", ["host", "boot"])
def test_a_holder_in_another_container_or_host_is_not_judged_by_its_process_number(place, field):
    written_by(place, pid=os.getppid(), started="1", **{field: "another"})
    with pytest.raises(FolderInUseError, match="run s-t9.1.5"):
        lease(place, names_process=True, pause=lambda _: beats(place)).acquire()


def test_one_process_may_take_its_own_lease_again(place):
    lease(place, names_process=True).acquire()
    lease(place, names_process=True, pause=lambda _: pytest.fail("no wait is needed")).acquire()


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_second_writer_of_checkpoints_is_told_which_run_writes_and_what_to_do(tmp_path):
    holder = {"run": "s-t3.1.1", "host": "far", "pid": 7}
    place = LocalPlace(tmp_path)
    place.write(LEASE, json.dumps(holder).encode())
    with pytest.raises(CheckpointError, match=rf"to {tmp_path}: run s-t3.1.1 on host far, process 7\..*{LEASE}\.$"):
        lease_of(place, RankEnvironment()).confirm()


def test_a_second_run_into_an_output_folder_is_told_which_run_owns_it(tmp_path):
    folder = open_folder(str(tmp_path), {}, "run-2")
    folder.write(OWNER, b'{"run": "run-1", "host": "gpu-1", "beat": 3}')
    owner = owner_of(folder, run="run-2", key="other")
    with pytest.raises(FolderInUseError, match=rf"{tmp_path} is in use by run run-1 on host gpu-1\."):
        owner.confirm()
    owner._confirmed_at -= 100
    with pytest.raises(OutputFolderError, match=rf"has not reached the output folder {tmp_path} for "):
        owner.check()


def test_a_checkpoint_folder_whose_lease_cannot_be_read_gets_no_checkpoint(tmp_path, monkeypatch):
    """Another account may hold it with a lease that this one cannot read."""
    home = TrialStorage(RankEnvironment(run=None), tmp_path, has_earlier=True, is_chief=True)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalPlace, "read", refuse)
    home.claim()
    with pytest.raises(CheckpointStorageError, match=rf"{LEASE} cannot be read: .*Permission denied"):
        home.check()
    assert list(tmp_path.iterdir()) == []


def test_incomplete_files_of_killed_processes_are_swept_and_own_ones_stay(tmp_path):
    place = LocalPlace(tmp_path)
    (tmp_path / ".incomplete-1-abc").touch()
    with place.scratch() as own:
        place.sweep_folders("step-", "metadata.json")
        assert list(tmp_path.iterdir()) == [own]
