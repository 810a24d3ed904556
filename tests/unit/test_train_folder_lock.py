"""One run at a time writes to a folder of checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.checkpoint.folder_lock import NAME, FolderLock, LockObject
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.errors import CheckpointError


def lock(folder, run=None, pause=lambda _: None, beat_s=60.0):
    return FolderLock(folder, Environment(run=run), beat_s=beat_s, pause=pause)


def written_by(folder, **changes):
    """Leave the lock of another writer in a folder."""
    one = lock(folder, run="s-t9.1.5")
    one.acquire()
    found = json.loads((folder / NAME).read_text())
    one.release()
    (folder / NAME).write_text(json.dumps({**found, **changes}))


def test_a_lock_is_there_until_it_is_released(tmp_path):
    one = lock(tmp_path)
    one.acquire()
    one.acquire()
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    one.check()
    one.release()
    one.release()
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_on_the_same_host_is_refused_with_run_host_and_process(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        written_by(tmp_path, pid=other.pid, started=started)
        with pytest.raises(CheckpointError, match=rf"run s-t9.1.5 on host \S+, process {other.pid}\..*checkpoint_dir"):
            lock(tmp_path).acquire()
        other.communicate()
    lock(tmp_path).acquire()


def test_the_lock_of_a_process_that_ended_is_taken_also_when_its_number_is_used_again(tmp_path):
    written_by(tmp_path, pid=os.getppid(), started="1")
    lock(tmp_path).acquire()
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


def test_a_writer_in_another_container_of_the_same_host_is_not_judged_by_its_process_number(tmp_path):
    written_by(tmp_path, pid=os.getppid(), started="1")
    text = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(text.replace(os.readlink("/proc/self/ns/pid"), "pid:[1]"))

    def beats(_):
        found = json.loads((tmp_path / NAME).read_text())
        (tmp_path / NAME).write_text(json.dumps({**found, "beat": found["beat"] + 1}))

    with pytest.raises(CheckpointError, match="Another run writes checkpoints"):
        lock(tmp_path, pause=beats).acquire()


def test_a_later_attempt_of_the_same_trial_takes_the_lock_at_once(tmp_path):
    written_by(tmp_path, host="elsewhere", trial="s-t9")
    lock(tmp_path, run="s-t9.2.6", pause=lambda _: pytest.fail("no wait is needed")).acquire()


def test_a_writer_on_another_host_is_watched_for_a_sign_of_life(tmp_path):
    written_by(tmp_path, host="elsewhere", boot="b")
    pauses = []
    lock(tmp_path, pause=pauses.append, beat_s=2.0).acquire()
    assert pauses == [2.0] * 6
    written_by(tmp_path, host="elsewhere", boot="b")

    def beat(_):
        found = json.loads((tmp_path / NAME).read_text())
        (tmp_path / NAME).write_text(json.dumps({**found, "beat": found["beat"] + 1}))

    with pytest.raises(CheckpointError, match="on host elsewhere"):
        lock(tmp_path, pause=beat).acquire()


def test_a_writer_that_was_replaced_notices_it_and_does_not_remove_the_new_lock(tmp_path):
    one = lock(tmp_path)
    one.acquire()
    written = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**written, "host": "elsewhere"}))
    with pytest.raises(CheckpointError, match="Another run writes checkpoints"):
        one.check()
    one.release()
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 5000, "null"])
def test_a_lock_file_with_nonsense_is_replaced(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    lock(tmp_path).acquire()
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


@pytest.fixture
def bucket(tmp_path):
    fs = pytest.importorskip("fsspec").filesystem("memory")
    return LockObject(fs, f"memory://lock{tmp_path}")


def bucket_lock(place, run=None, pause=lambda _: None):
    return FolderLock(place, Environment(run=run), beat_s=60.0, pause=pause)


def test_a_bucket_has_one_writer_which_is_named_and_notices_that_it_was_replaced(bucket):
    one = bucket_lock(bucket, run="s-t9.1.5")
    one.acquire()
    found = json.loads(bucket.read())
    bucket.write(json.dumps({**found, "host": "far"}))

    def beat(_):
        bucket.write(json.dumps({**found, "host": "far", "beat": json.loads(bucket.read())["beat"] + 1}))

    with pytest.raises(CheckpointError, match=r"to memory://lock.*run s-t9.1.5 on host far.*delete memory://.*writer"):
        bucket_lock(bucket, pause=beat).acquire()
    with pytest.raises(CheckpointError, match="Another run writes checkpoints"):
        one.check()
    one.release()
    assert json.loads(bucket.read())["host"] == "far", "the lock of the other run stays"


def test_a_writer_of_a_bucket_that_was_killed_does_not_lock_it_for_good(bucket):
    one = bucket_lock(bucket)
    one.acquire()
    killed = json.loads(bucket.read())
    one.release()
    with pytest.raises(FileNotFoundError):
        bucket.read()
    pauses = []
    for other in ({"host": "far"}, {"pid": os.getppid(), "started": "1"}):
        bucket.write(json.dumps({**killed, **other}))
        two = bucket_lock(bucket, pause=pauses.append)
        two.acquire()
        two.check()
        two.release()
    assert pauses == [60.0] * 6, "a process of this host that has ended is replaced at once"


def test_a_bucket_that_does_not_answer_is_an_error_of_the_system(bucket, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no route")

    for name in ("exists", "pipe_file", "cat_file", "rm_file"):
        monkeypatch.setattr(bucket._fs, name, broken)
    for call in (lambda: bucket.create("x"), lambda: bucket.write("x"), bucket.read, bucket.remove):
        with pytest.raises(OSError, match="RuntimeError: no route"):
            call()
