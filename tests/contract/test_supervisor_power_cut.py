"""A power cut after any fsync leaves a host whose marks hold: nothing starts twice, nothing fenced starts again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.channels import eventually
from tests.support.power_cut import Disk, Recorder
from tests.support.supervisor_host import SLEEP, Channel, Host, Refusal, make_plan, start

RUN = "t1.1.7"


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "recorder", tmp_path / "host" / "state")


@pytest.fixture
def host(tmp_path: Path, recorder: Recorder) -> Iterator[Host]:
    """A host whose supervisors and followers are recorded."""
    found = Host(tmp_path / "host")
    found.env |= recorder.env
    yield found
    found.clean()


def after(recorder: Recorder, number: int) -> Disk:
    """Return the disk after so many steps."""
    disk = Disk(recorder.root)
    for step in recorder.steps()[:number]:
        if step.kind != "F":
            disk.apply(step)
    return disk


@contextmanager
def rebooted(disk: Disk, folder: Path) -> Iterator[Host]:
    """A host that comes back with what survived of its state."""
    found = Host(folder)
    disk.image(found.state_dir)
    yield found
    for channel in found.channels:
        channel.close()
    assert found.processes() == []


def state_of(channel: Channel) -> str | None:
    run = channel.call("status")["runs"].get(RUN)
    return None if run is None else str(run["state"])


def first_rank(recorder: Recorder, supervisor: int) -> int:
    """Return the number of steps before the supervisor's first fork of a rank."""
    return next(n for n, step in enumerate(recorder.steps()) if step.kind == "F" and step.pid == supervisor)


def test_a_run_whose_ranks_existed_before_a_power_cut_is_lost_and_never_starts_again(host, recorder, tmp_path):
    plan = make_plan(RUN, *SLEEP)
    start(host.channel(), plan)
    disk = after(recorder, first_rank(recorder, host.supervisor_pid(RUN)))
    with rebooted(disk, tmp_path / "again") as again:
        assert json.loads((again.run_dir(RUN) / "started").read_text())
        channel = again.channel()
        assert state_of(channel) == "lost"
        with pytest.raises(Refusal, match="lost"):
            channel.call("prepare", plan=plan, secrets={})


def test_a_fence_that_answered_clear_before_a_power_cut_holds(host, recorder, tmp_path):
    channel, plan = host.channel(), make_plan(RUN, *SLEEP)
    start(channel, plan)
    assert channel.call("fence", run=RUN, token=7, wait_s=10.0)["clear"]
    with rebooted(after(recorder, len(recorder.steps())), tmp_path / "again") as again:
        assert json.loads((again.state_dir / "tombstones" / RUN).read_text())["token"] == 7
        with pytest.raises(Refusal, match="tombstone|lost"):
            again.channel().call("prepare", plan=plan, secrets={})


def test_a_fence_of_a_run_that_never_came_holds_after_a_power_cut(host, recorder, tmp_path):
    """The tombstone is the first file on this host, so its folder must be durable, too."""
    assert host.channel().call("fence", run=RUN, token=7, wait_s=10.0)["clear"]
    disk = after(recorder, len(recorder.steps()))
    with rebooted(disk, tmp_path / "again") as again, pytest.raises(Refusal, match="tombstone"):
        again.channel().call("prepare", plan=make_plan(RUN, *SLEEP), secrets={})


def test_a_tombstone_that_another_process_left_unsynced_is_made_durable_by_the_next_fence(host, recorder, tmp_path):
    channel = host.channel()
    assert channel.call("fence", run=RUN, token=7, wait_s=10.0)["clear"]
    known = len(recorder.steps())
    assert channel.call("fence", run=RUN, token=7, wait_s=10.0)["clear"]
    folder = str(host.state_dir / "tombstones")
    assert (folder, "S") in {(step.path, step.kind) for step in recorder.steps()[known:]}


def wait_until_synced(recorder: Recorder, name: str, text: bytes) -> None:
    """Wait until the file is synced after a write with this text: a follower may send a line a moment earlier."""

    def is_synced() -> bool:
        steps = [step for step in recorder.steps() if step.path.endswith(f"/{name}")]
        written = next((n for n, step in enumerate(steps) if step.kind == "W" and text in step.data), len(steps))
        return any(step.kind == "S" for step in steps[written:])

    eventually(is_synced, timeout_s=60.0)  # On a slow disk an fsync takes many seconds.


def test_an_exit_code_is_on_disk_as_soon_as_its_event_is_synced(host, recorder, tmp_path):
    channel = host.channel()
    start(channel, make_plan(RUN, "sh", "-c", "exit 3"))
    assert channel.wait_event(RUN, "exit")["exit_code"] == 3
    wait_until_synced(recorder, "events.supervisor", b'"exit_code":3')
    with rebooted(after(recorder, len(recorder.steps())), tmp_path / "again") as again:
        lines = (again.run_dir(RUN) / "events.supervisor").read_text().splitlines()
        assert [json.loads(line[9:])["exit_code"] for line in lines if '"exit_code"' in line] == [3]
