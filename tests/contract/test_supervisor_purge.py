"""Removal of everything that the provider has put on a host, and of nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.channel.answers import check_answer
from airflow_provider_dtrain.supervisor.channel import purge as purge_module
from airflow_provider_dtrain.supervisor.channel.purge import purge
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.machine.locks import take_lock
from tests.support.supervisor_host import SLEEP, Host, Refusal, make_plan, start

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A host with one of everything, and files of a user in between."""
    remote, state = tmp_path / "home" / ".dtrain", tmp_path / "state"
    found = Layout(str(remote), str(state), "none").ensure()
    for kind in ("payloads", "libraries", "tools"):
        write(remote / kind / f"{DIGEST}.tar.gz")
    write(remote / "libraries" / DIGEST / "deep" / "module.py")
    write(remote / "supervisor" / DIGEST / "__main__.py")
    for name in (f"{DIGEST}/bin/python", f"{DIGEST}.lock", f"{DIGEST}.build", f"{DIGEST}.work/part"):
        write(remote / "environments" / name)
    # A removal of a run, and one of an environment, that were killed.
    write(state / "runs" / ".0123abcd-t9.1.9.abc.deleted" / "big")
    write(remote / "environments" / f"{'f' * 64}.0123.deleted" / "big")
    write(state / "runs" / "0123abcd-t1.1.7" / "checkpoints" / "weights", 50_000)
    write(state / "runs" / "0123abcd-t1.1.7" / "ended")
    for name in (
        "tombstones/0123abcd-t1.1.7",
        "tombstones/0123abcd-t1.1.7+launch",
        "slots/0.lock",
        "slots/0.token",
        "store.json",
        "store.lock",
        "listed_devices.json",
        f"warm/{DIGEST[:32]}.json",
    ):
        write(state / name)
    return found


def write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def files(*folders: str) -> set[str]:
    return {str(path) for folder in folders for path in Path(folder).rglob("*") if not path.is_dir()}


def everything(layout: Layout, **options: Any) -> dict[str, Any]:
    found = purge(layout, **{"dry_run": False, "with_remote_dir": True, "limit_s": 60.0, **options})
    check_answer("purge", {"ok": True, **found})
    return found


def test_a_dry_run_names_all_and_removes_nothing(layout: Layout) -> None:
    before = files(layout.remote_dir, layout.state_dir)
    found = everything(layout, dry_run=True)
    assert files(layout.remote_dir, layout.state_dir) == before
    assert {part: row["count"] for part, row in found["parts"].items()} == {
        "runs": 2,
        "environments": 2,
        "code and libraries": 4,
        "records": 8,
        "supervisor": 1,
    }
    assert found["parts"]["runs"]["bytes"] >= 50_000
    assert (found["busy"], found["left"]) == ([], [])


def test_nothing_is_left_and_not_even_the_folders(layout: Layout) -> None:
    expected = everything(layout, dry_run=True)["parts"]
    found = everything(layout)
    assert found["parts"] == expected
    assert (found["left"], found["is_complete"]) == ([], True)
    assert [os.path.lexists(path) for path in (layout.remote_dir, layout.state_dir)] == [False, False]


def test_files_of_a_user_stay_wherever_they_are(layout: Layout) -> None:
    remote, state = Path(layout.remote_dir), Path(layout.state_dir)
    own = [
        remote / "notes.txt",
        remote / "environments" / "mine" / "bin" / "python",
        remote / "images" / "photo.json",
        remote / "tools" / f"{DIGEST[:63]}.tar.gz",
        state / "runs" / "tensorboard" / "events",
        state / "data.json",
        state / "slots" / "x.lock",
        state / "tombstones" / "t1",
        remote.parent / "train.py",
    ]
    for path in own:
        write(path)
    found = everything(layout)
    assert found["left"] == []
    assert files(str(remote.parent), str(state)) == {str(path) for path in own}


@pytest.mark.parametrize("place", ["remote", "environments", "runs", "run", "state"])
def test_links_are_never_followed(layout: Layout, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    places = {
        "remote": Path(layout.remote_dir),
        "state": Path(layout.state_dir),
        "environments": Path(layout.remote_dir, "environments"),
        "runs": Path(layout.state_dir, "runs"),
        "run": Path(layout.state_dir, "runs", "0123abcd-t1.1.7", "checkpoints"),
    }
    places[place].rename(elsewhere)
    places[place].symlink_to(elsewhere)
    before = files(str(elsewhere))
    assert before
    found = everything(layout)
    assert files(str(elsewhere)) == before
    named = [one["path"] for one in found["left"]]
    assert named == ([] if place == "run" else [str(places[place])])


def test_a_remote_dir_that_other_hosts_use_stays(layout: Layout) -> None:
    before = files(layout.remote_dir)
    found = everything(layout, with_remote_dir=False)
    assert set(found["parts"]) == {"runs", "records"}
    assert files(layout.remote_dir) == before
    assert not os.path.lexists(layout.state_dir)


def test_time_is_limited_and_the_next_call_continues(layout: Layout) -> None:
    calls = [everything(layout, limit_s=0.0)]
    assert (calls[0]["is_complete"], calls[0]["parts"]) == (False, {})
    assert os.path.lexists(layout.state_dir)
    assert everything(layout)["is_complete"]


@pytest.mark.parametrize("held", ["slots/0.lock", "runs/0123abcd-t1.1.7/lock", f"environments/{DIGEST}.lock"])
def test_a_lock_that_a_process_holds_stops_the_removal_before_it_begins(layout: Layout, held: str) -> None:
    path = Path(layout.remote_dir if held.startswith("env") else layout.state_dir, held)
    lock = take_lock(str(path))
    assert lock is not None
    before = files(layout.remote_dir, layout.state_dir)
    with pytest.raises(purge_module.Refused, match="It holds work") as refused:
        everything(layout)
    assert refused.value.code == "in_use"
    assert files(layout.remote_dir, layout.state_dir) == before
    assert len(everything(layout, dry_run=True)["busy"]) == 1
    os.close(lock)
    everything(layout)


def test_a_run_that_starts_after_the_check_stays_and_is_named(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = take_lock(os.path.join(layout.state_dir, "runs", "0123abcd-t1.1.7", "lock"))
    assert lock is not None
    monkeypatch.setattr(purge_module, "work_here", lambda _: [])
    found = everything(layout)
    assert [one["path"].rpartition("/")[2] for one in found["left"]] == ["0123abcd-t1.1.7"]
    assert Path(layout.state_dir, "runs", "0123abcd-t1.1.7", "checkpoints", "weights").exists()
    os.close(lock)


#: Removes everything, and kills itself at the call of a function of the system with this number.
KILLED = """
import os, signal, sys
from airflow_provider_dtrain.supervisor.channel.purge import purge
from airflow_provider_dtrain.supervisor.files.layout import Layout
left = int(sys.argv[3])
def counted(function):
    def call(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call
for name in ("unlink", "rename", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
purge(Layout(sys.argv[1], sys.argv[2], "none"), dry_run=False, with_remote_dir=True, limit_s=60.0)
"""


@pytest.mark.nightly
def test_a_removal_that_is_killed_anywhere_is_continued(layout: Layout) -> None:
    """Each process may take one step more than the one before it, until one removes the rest."""
    marks = (Path(layout.remote_dir, "libraries", DIGEST), Path(layout.remote_dir, "supervisor", DIGEST))
    whole = [files(str(mark)) for mark in marks]
    for steps in range(200):
        command = [sys.executable, "-c", KILLED, layout.remote_dir, layout.state_dir, str(steps)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode in {0, -signal.SIGKILL}, done.stderr
        for mark, content in zip(marks, whole, strict=True):
            assert files(str(mark)) in (content, set()), "a folder is complete or gone"
        if done.returncode == 0:
            break
    assert done.returncode == 0
    assert [os.path.lexists(path) for path in (layout.remote_dir, layout.state_dir)] == [False, False]


def test_a_host_with_a_living_run_is_refused_and_the_run_continues(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("0123abcd-t1.1.7", *SLEEP))
    before = files(one_host.remote_dir, str(one_host.state_dir))
    with pytest.raises(Refusal, match=r"It holds work: run 0123abcd-t1\.1\.7 lives"):
        channel.call("purge")
    assert before <= files(one_host.remote_dir, str(one_host.state_dir))
    channel.call("fence", run="0123abcd-t1.1.7", token=7)
    removed = channel.call("purge")
    assert removed["runs"] == ["0123abcd-t1.1.7"]
    assert removed["left"] == []
    assert channel.close() == 0, "the program that removed itself ends as always"
    assert not Path(one_host.state_dir).exists()
    again = one_host.channel()
    assert again.call("purge", dry_run=True)["runs"] == []


@pytest.mark.parametrize("wrong", [{"dry_run": "yes"}, {"limit_s": -1}, {"with_remote_dir": 1}])
def test_a_wrong_request_removes_nothing(one_host: Host, wrong: dict[str, Any]) -> None:
    channel = one_host.channel()
    before = files(one_host.remote_dir, str(one_host.state_dir))
    with pytest.raises(Refusal, match="bad_plan"):
        channel.call("purge", **wrong)
    assert files(one_host.remote_dir, str(one_host.state_dir)) == before
