"""Faults of a run on its host: removed files, leaked children, stopped supervisors, repeated commands."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.files.layout import Layout, RunFolder
from airflow_provider_dtrain.supervisor.machine.processes import boottime, send_signal
from airflow_provider_dtrain.supervisor.run import fencing as fencing_module
from airflow_provider_dtrain.supervisor.run import leftovers as leftovers_module
from airflow_provider_dtrain.supervisor.run.fencing import fence
from tests.support.supervisor_host import DETACHED, SLEEP, Host, Refusal, is_alive, make_plan, start, until


def stop_process(pid: int) -> None:
    """SIGSTOP a process and wait until the kernel shows it stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")


def test_a_slot_whose_lock_file_was_removed_is_not_given_to_another_run(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    (host.state_dir / "slots" / "0.lock").unlink()
    with pytest.raises(Refusal) as refused:
        channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    assert (refused.value.code, refused.value.answer["run"]) == ("slot_busy", "t1.1.7")
    other = make_plan("t3.1.9", "true")
    other["ranks"][0]["slot"] = 1
    start(channel, other)
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    start(channel, make_plan("t2.1.8", "true"))
    assert channel.wait_event("t2.1.8", "ended")["reason"] == "completed"


def test_a_run_whose_lock_file_was_removed_is_attached_to_and_can_be_fenced(contained: Host) -> None:
    channel = contained.channel()
    plan = make_plan("t1.1.7", *DETACHED)
    start(channel, plan)
    until(lambda: len(contained.processes("t1.1.7")) == 2, "rank and grandchild")
    pid = contained.supervisor_pid("t1.1.7")
    (contained.run_dir("t1.1.7") / "lock").unlink()
    again = contained.channel().call("prepare", plan=plan, secrets={})
    assert (again["state"], again["attached"]) == ("running", True)
    reading = channel.call("probe")["boottime_s"]
    channel.call("renew", boottime_s=reading, runs=["t1.1.7"], orphan_timeout_s=900)
    assert channel.call("status")["runs"]["t1.1.7"]["unrenewed_s"] <= boottime() - reading
    (contained.run_dir("t1.1.7") / "lock").unlink(missing_ok=True)
    assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True
    assert contained.processes("t1.1.7") == []
    assert not is_alive(pid)


def test_a_run_whose_folder_was_removed_is_ended_by_a_fence(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", *DETACHED))
    until(lambda: len(contained.processes("t1.1.7")) == 2, "rank and grandchild")
    pid = contained.supervisor_pid("t1.1.7")
    shutil.rmtree(contained.run_dir("t1.1.7"))
    assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True
    assert contained.processes("t1.1.7") == []
    until(lambda: not is_alive(pid), "the end of the supervisor")
    assert channel.call("status")["slots"] == {"0": {"held_by": None}}


def test_a_lock_that_a_process_keeps_which_cannot_be_killed_is_named_and_spares_the_other_slots(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "true"))
    channel.wait_event("t1.1.7", "ended")
    until(lambda: channel.call("status")["slots"]["0"]["held_by"] is None, "the free lock")
    with (host.state_dir / "slots" / "0.lock").open("r+b") as keeper:
        # A fence spares itself and its ancestors, so this process stands for one that cannot be killed.
        fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in range(2):
            answer = channel.call("fence", run="t1.1.7", token=7, wait_s=0.2)
            assert answer["clear"] is False
            assert answer["busy_slots"] == [{"slot": 0, "run": "t1.1.7"}]
            assert os.getpid() in {one["pid"] for one in answer["survivors"]}
        with pytest.raises(Refusal, match="slot_busy"):
            channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
        other = make_plan("t2.1.8", "true")
        other["ranks"][0]["slot"] = 1
        start(channel, other)
        assert channel.wait_event("t2.1.8", "ended")["reason"] == "completed"
    assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True


def test_a_fence_is_on_the_disk_before_it_ends_anything(one_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    layout = Layout(str(one_host.remote_dir), str(one_host.state_dir))
    supervisor = fencing_module.find_process(layout.run("t1.1.7").supervisor())
    assert supervisor is not None
    # A supervisor that has just started looks for a tombstone, and would end the run itself.
    os.kill(supervisor.pid, signal.SIGSTOP)
    done: list[str] = []
    fsync, ring, send = os.fsync, RunFolder.ring, send_signal

    def noting_fsync(fd: int) -> None:
        fsync(fd)
        done.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(RunFolder, "ring", lambda folder: [done.append("act"), ring(folder)][1])
    monkeypatch.setattr(fencing_module, "send_signal", lambda proc, number: [done.append("act"), send(proc, number)][1])
    monkeypatch.setattr(
        leftovers_module, "send_signal", lambda proc, number: [done.append("act"), send(proc, number)][1]
    )
    assert fence(layout, "t1.1.7", 9) == {"clear": True}
    before = done[: done.index("act")]
    state = str(one_host.state_dir)
    for part in (f"{state}/tombstones/t1.1.7", f"{state}/tombstones", f"{state}/slots/0.token", f"{state}/slots",
                 f"{state}/store.json"):  # fmt: skip
        assert any(path == part or path.startswith(f"{part}.") for path in before), part
    assert layout.tokens(0) == {"store-1": 9}
    with pytest.raises(Refusal, match="stale_token"):
        channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})


def test_a_fence_may_be_repeated_and_run_twice_at_once(host: Host) -> None:
    channels = [host.channel(), host.channel()]
    start(channels[0], make_plan("t1.1.7", *DETACHED))
    keys = [channel.post("fence", run="t1.1.7", token=7) for channel in channels]
    answers = [channel.answer(key) for channel, key in zip(channels, keys, strict=True)]
    answers += [channels[0].call("fence", run="t1.1.7", token=7), channels[1].call("fence", run="t1.1.7", token=8)]
    assert [answer["clear"] for answer in answers] == [True] * 4
    assert host.processes("t1.1.7") == []


def test_go_and_stop_may_be_repeated(host: Host) -> None:
    first, second = host.channel(), host.channel()
    plan = make_plan("t1.1.7", "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    port = start(first, plan)["port"]
    for channel in (first, second):
        assert channel.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=port)["state"] == "running"
    assert len([event for event in first.events("t1.1.7") if event["kind"] == "started"]) <= 1
    first.call("stop", run="t1.1.7", grace_s=600)
    second.call("stop", run="t1.1.7", grace_s=900)
    second.call("stop", run="t1.1.7", grace_s=0)
    first.wait_event("t1.1.7", "ended")
    assert [event["kind"] for event in first.events("t1.1.7")] == ["prepared", "started", "exit", "ended"]
    for channel in (first, second):
        channel.call("stop", run="t1.1.7", grace_s=0)
        assert channel.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=port)["state"] == "ended"
        assert channel.call("prepare", plan=plan, secrets={})["state"] == "ended"


@pytest.mark.nightly
def test_a_supervisor_that_was_stopped_beyond_its_deadline_ends_the_run_once_it_goes_on(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP, orphan_timeout_s=6, grace_s=0, timeout_s=1000))
    pid = host.supervisor_pid("t1.1.7")
    stop_process(pid)
    until(lambda: (channel.call("status")["runs"]["t1.1.7"]["unrenewed_s"] or 0) > 6.5, "the deadline")
    assert len(host.processes("t1.1.7")) == 1
    os.kill(pid, signal.SIGCONT)
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "orphaned"
    assert host.processes("t1.1.7") == []


@pytest.mark.nightly
def test_a_supervisor_that_was_renewed_while_it_was_stopped_goes_on(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP, orphan_timeout_s=6, grace_s=0))
    pid = host.supervisor_pid("t1.1.7")
    stop_process(pid)
    until(lambda: channel.call("status")["runs"]["t1.1.7"]["unrenewed_s"] > 6.5, "the deadline")
    channel.call("renew", boottime_s=channel.call("probe")["boottime_s"], runs=["t1.1.7"], orphan_timeout_s=900)
    os.kill(pid, signal.SIGCONT)
    channel.call("stop", run="t1.1.7", grace_s=5)
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "stopped"


def test_a_go_that_is_read_after_the_deadline_for_it_starts_nothing(host: Host) -> None:
    channel = host.channel()
    answer = channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP, prepare_timeout_s=6), secrets={})
    channel.call("subscribe", run="t1.1.7", offsets={}, logs="none")
    pid = host.supervisor_pid("t1.1.7")
    stop_process(pid)
    channel.send(cmd="go", run="t1.1.7", master_addr="127.0.0.1", master_port=answer["port"])
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 6.5 and (host.run_dir("t1.1.7") / "go.json").exists(), "the deadline")
    os.kill(pid, signal.SIGCONT)
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "prepare_timeout"
    assert channel.event("t1.1.7", "started") is None


def test_a_fence_ends_a_run_whose_supervisor_was_stopped_while_it_killed(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", *DETACHED))
    until(lambda: len(contained.processes("t1.1.7")) == 2, "rank and grandchild")
    pid = contained.supervisor_pid("t1.1.7")
    stop_process(pid)
    path = contained.run_dir("t1.1.7") / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "killing"}))
    assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True
    assert contained.processes("t1.1.7") == []
    assert not is_alive(pid)


def test_status_says_what_recovery_asks_for(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    run = channel.call("status")["runs"]["t1.1.7"]
    assert (run["state"], run["token"], run["store"], run["buried"]) == ("running", 7, "store-1", False)
    assert 0 <= run["unrenewed_s"] < 20
    assert list(channel.call("status", runs=["t1.1.7", "t2.1.8"])["runs"]) == ["t1.1.7"]
    assert channel.call("status", runs=["t2.1.8"])["runs"] == {}
    reading = channel.call("probe")["boottime_s"]
    channel.call("renew", boottime_s=reading - 100 if reading > 200 else reading, runs=["t1.1.7"], orphan_timeout_s=900)
    assert channel.call("status")["runs"]["t1.1.7"]["unrenewed_s"] >= 0
    # Readings of another boot do not count.
    path = host.run_dir("t1.1.7") / "supervisor.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "boot_id": "another"}))
    assert channel.call("status")["runs"]["t1.1.7"]["unrenewed_s"] is None
    path.write_text(json.dumps(known))
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    run = channel.call("status")["runs"]["t1.1.7"]
    assert (run["state"], run["reason"]) == ("ended", "stopped")


@pytest.mark.nightly
def test_a_requested_stop_reaches_programs_without_the_library_as_sigterm(one_host: Host) -> None:
    channel = one_host.channel()
    # Rank 0 joins the library and polls for the file; rank 1 only handles SIGTERM.
    script = (
        "import os, signal, sys, time\n"
        "folder = os.environ['DTRAIN_RUN_DIR']\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.makedirs(folder + '/progress', exist_ok=True)\n"
        "    open(folder + '/progress/0', 'w').close()\n"
        "    signal.signal(signal.SIGTERM, lambda *_: os._exit(9))\n"
        "    while not os.path.exists(folder + '/stop_requested'): time.sleep(0.01)\n"
        "    while os.path.exists(folder + '/rank1/pid'): time.sleep(0.01)\n"
        "else:\n"
        "    open(folder + '/rank1/pid', 'w').close()\n"
        "    def leave(*_):\n"
        "        os.unlink(folder + '/rank1/pid')\n"
        "        sys.exit(0)\n"
        "    signal.signal(signal.SIGTERM, leave)\n"
        "    while True: time.sleep(0.01)\n"
    )
    start(channel, make_plan("t1.1.7", "python", "-c", script, ranks=2))
    until((one_host.run_dir("t1.1.7") / "rank1" / "pid").exists, "rank 1")
    until((one_host.run_dir("t1.1.7") / "progress" / "0").exists, "rank 0")
    channel.call("request_stop", run="t1.1.7")
    channel.call("request_stop", run="t1.1.7")
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"
    exits = {event["rank"]: event for event in channel.events("t1.1.7") if event["kind"] == "exit"}
    assert (exits[0]["exit_code"], exits[0]["sent_signal"]) == (0, False)
    assert (exits[1]["exit_code"], exits[1]["sent_signal"]) == (0, True)


@pytest.mark.nightly
def test_a_rank_that_dies_of_a_requested_stop_does_not_hurry_the_others(one_host: Host) -> None:
    channel = one_host.channel()
    slow = "import os, signal, time\n" \
        "def leave(*_): time.sleep(2.0); os._exit(0)\n" \
        "signal.signal(signal.SIGTERM, signal.SIG_DFL if os.environ['RANK'] == '0' else leave)\n" \
        "print('ready', flush=True)\n" \
        "while True: time.sleep(0.01)\n"  # fmt: skip
    start(channel, make_plan("t1.1.7", "python", "-c", slow, ranks=2, grace_s=0))
    channel.wait(lambda: all(channel.stream("t1.1.7", f"rank{rank}.log") for rank in (0, 1)))
    channel.call("request_stop", run="t1.1.7")
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "stopped"
    exits = {event["rank"]: event["exit_code"] for event in channel.events("t1.1.7") if event["kind"] == "exit"}
    assert exits == {0: -15, 1: 0}


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=256k none {folder}"):
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    os.system(f"umount -l {folder}")


def fill(folder: Path) -> None:
    """Use the last byte of a file system."""
    with (folder / "ballast").open("ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.nightly
def test_a_full_disk_keeps_no_run_from_being_fenced(tmp_path: Path, full: Path) -> None:
    host = Host(tmp_path / "host")
    host.state_dir = full / "state"
    try:
        channel = host.channel()
        start(channel, make_plan("t1.1.7", *DETACHED))
        started = make_plan("t2.1.8", *SLEEP)
        started["ranks"][0]["slot"] = 1
        channel.call("prepare", plan=started, secrets={})
        until(lambda: len(host.processes("t1.1.7")) == 2, "rank and grandchild")
        fill(full)
        for run in ("t1.1.7", "t2.1.8"):
            (host.run_dir(run) / "reserve").unlink(missing_ok=True)
        fill(full)
        with pytest.raises(Refusal) as refused:
            channel.call("fence", run="t2.1.8", token=8, wait_s=3)
        assert refused.value.code == "disk_full", "a late start could not be refused"
        assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True, "it was started and never is again"
        assert host.processes() == []
        (full / "ballast").unlink()
        assert channel.call("fence", run="t2.1.8", token=8)["clear"] is True
        with pytest.raises(Refusal, match="tombstone|lost|ended"):
            channel.call("prepare", plan=started, secrets={})
    finally:
        host.clean()


def test_a_run_on_a_full_disk_is_renewed(tmp_path: Path, full: Path) -> None:
    host = Host(tmp_path / "host")
    host.state_dir = full / "state"
    try:
        channel = host.channel()
        start(channel, make_plan("t1.1.7", *SLEEP, orphan_timeout_s=900))
        fill(full)
        reading = boottime()
        channel.call("renew", runs=["t1.1.7"], boottime_s=reading, orphan_timeout_s=0.001)
        assert channel.wait_event("t1.1.7", "ended")["reason"] == "orphaned", "the supervisor reads the renewal"
    finally:
        host.clean()


def test_a_read_only_home_stops_no_run_and_is_named_by_what_needs_it(tmp_path: Path) -> None:
    home = tmp_path / "host" / "remote"
    home.mkdir(parents=True)
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=4m none {home}"):
        pytest.skip("mounting a tmpfs needs root")
    host = Host(tmp_path / "host")
    try:
        channel = host.channel()
        digest = host.send_archive("payloads", {"train.py": "print('trained')"})
        start(channel, make_plan("t1.1.7", *SLEEP))
        assert os.system(f"mount -o remount,ro {home}") == 0
        other = make_plan("t2.1.8", "python", "train.py", payload=digest)
        other["ranks"][0]["slot"] = 1
        start(channel, other)
        assert channel.wait_event("t2.1.8", "ended")["reason"] == "completed"
        code, output = host.command("receive", "payloads", "0" * 64, stdin=b"x")
        assert (code, json.loads(output)["code"]) == (1, "read_only")
        assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True
    finally:
        host.clean()
        os.system(f"umount -l {home}")


def test_a_flood_of_output_neither_blocks_nor_kills_its_rank(one_host: Host) -> None:
    channel = one_host.channel()
    # 800 MB as fast as the disk takes them, far more than 100 MB/s, then a last word.
    script = "head -c 800000000 /dev/zero | tr '\\0' x; echo; echo last word"
    plan = make_plan("t1.1.7", "sh", "-c", script, log_limit_bytes=4 << 20)
    channel.call("prepare", plan=plan, secrets={})
    channel.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=0)
    log, freed = one_host.run_dir("t1.1.7") / "rank0" / "log", 0

    def watch() -> bool:
        nonlocal freed
        seen = log.stat() if log.exists() else None
        if seen and seen.st_size < 800_000_000:
            freed = max(freed, seen.st_size - seen.st_blocks * 512)
        return (one_host.run_dir("t1.1.7") / "ended").exists()

    until(watch, "the end of the flood", 120)
    channel.call("subscribe", run="t1.1.7", offsets={}, logs="all")
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"
    gaps = [frame for frame in channel.frames if frame["t"] == "gap"]
    assert sum(gap["skip_bytes"] for gap in gaps) > 760_000_000
    assert channel.stream("t1.1.7", "rank0.log").endswith(b"\nlast word\n")
    assert freed > 40_000_000, "the middle is freed while it is written"


def beats(channel: Any) -> list[dict[str, Any]]:
    return [frame for frame in channel.frames if frame["t"] == "beat"]


@pytest.mark.nightly
def test_beats_go_on_while_logs_and_fences_keep_the_channel_busy(one_host: Host) -> None:
    channel = one_host.channel()
    flood = make_plan(
        "t1.1.7", "sh", "-c", "while head -c 2000000 /dev/zero; do sleep 0.05; done", log_limit_bytes=4 << 20
    )
    start(channel, flood)
    busy = make_plan("t2.1.8", *SLEEP)
    busy["ranks"][0]["slot"] = 1
    start(channel, busy)
    seen = len(beats(channel))
    keys = [channel.post("probe") for _ in range(40)]
    channel.wait(lambda: len(beats(channel)) >= seen + 2)
    for key in keys:
        channel.answer(key)
    readings = [beat["boottime_s"] for beat in beats(channel)]
    assert all(later - earlier < 15 for earlier, later in zip(readings, readings[1:], strict=False))
    channel.acks = False
    channel.post("fence", run="t1.1.7", token=7)
    assert sorted(beats(channel)[-1]["runs"]) == ["t1.1.7", "t2.1.8"]
