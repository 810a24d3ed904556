"""Slots, starts, attachment and ends of runs on a host: locks, tokens, tombstones, renewals, lost runs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.supervisor_host import (
    DETACHED,
    SLEEP,
    Host,
    Refusal,
    is_alive,
    make_plan,
    start,
    until,
)


def test_ranks_die_with_their_supervisor_and_the_run_is_lost(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", *DETACHED, ranks=2))
    until(lambda: len(contained.processes("t1.1.7")) == 4, "two ranks and two grandchildren")
    ranks = {entry["pid"] for entry in channel.wait_event("t1.1.7", "started")["ranks"]}
    os.kill(contained.supervisor_pid("t1.1.7"), signal.SIGKILL)
    until(lambda: not any(is_alive(pid) for pid in ranks), "the death of the ranks")
    ended = channel.wait_event("t1.1.7", "ended")
    assert (ended["reason"], ended["cause"]) == ("lost", "supervisor_killed")
    assert contained.processes("t1.1.7") == [], "ended is the last word"
    with pytest.raises(Refusal, match="lost"):
        channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP), secrets={})


@pytest.mark.parametrize("how", ["exec 3>&-; exec setsid sleep 1000", "exec env -i setsid sleep 1000"])
def test_leftovers_are_found_by_their_environment_or_by_the_lock_they_keep(tmp_path: Path, how: str) -> None:
    host = Host(tmp_path / "host", cgroup=False)
    try:
        channel = host.channel()
        start(channel, make_plan("t1.1.7", "sh", "-c", f"( sh -c '{how}' & echo $! ); sleep 1000"))
        log = channel.wait(lambda: channel.stream("t1.1.7", "rank0.log"))
        child = int(log)
        until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", "the detached child")
        os.kill(host.supervisor_pid("t1.1.7"), signal.SIGKILL)
        assert channel.wait_event("t1.1.7", "ended")["reason"] == "lost"
        assert not is_alive(child)
    finally:
        host.clean()


def test_a_follow_that_comes_later_ends_what_a_dead_supervisor_left(host: Host) -> None:
    first = host.channel()
    start(first, make_plan("t1.1.7", *DETACHED))
    until(lambda: len(host.processes("t1.1.7")) == 2, "rank and grandchild")
    first.process.kill()
    host.kill_parents("t1.1.7")
    until(lambda: len(host.processes("t1.1.7")) == 1, "the death of the rank")
    host.channel()
    until(lambda: (host.run_dir("t1.1.7") / "ended").exists(), "the record of the end")
    assert host.processes("t1.1.7") == []


def test_a_slot_is_free_only_when_every_process_of_its_rank_is_gone(host: Host) -> None:
    channel = host.channel()
    plan = make_plan("t1.1.7", "sh", "-c", "sleep 1000 & exec sleep 1001")
    start(channel, plan)
    channel.close()
    until(lambda: len(host.processes("t1.1.7")) == 2, "rank and child")
    host.kill_parents("t1.1.7")
    until(lambda: len(host.processes("t1.1.7")) == 1, "the death of the rank")
    code, output = host.command("start", "t2.1.8", stdin=json.dumps(make_plan("t2.1.8", *SLEEP)).encode())
    assert code == 1
    assert json.loads(output)["code"] == "slot_busy"
    os.kill(host.processes("t1.1.7")[0], signal.SIGKILL)
    until(lambda: not host.processes("t1.1.7"), "the death of the child")
    code, output = host.command("start", "t2.1.8", stdin=json.dumps(make_plan("t2.1.8", "true")).encode())
    assert (code, json.loads(output)["ok"]) == (0, True)


def test_a_busy_slot_names_its_holder_and_leaves_nothing_behind(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    with pytest.raises(Refusal) as refused:
        channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    assert refused.value.code == "slot_busy"
    assert (refused.value.answer["slot"], refused.value.answer["run"]) == (0, "t1.1.7")
    assert not host.run_dir("t2.1.8").exists()
    assert channel.call("status")["slots"] == {"0": {"held_by": "t1.1.7"}}
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    assert channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})["state"] == "prepared"


def test_fence_ends_a_living_run_and_forbids_its_return(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", *DETACHED))
    until(lambda: len(contained.processes("t1.1.7")) == 2, "rank and grandchild")
    assert channel.call("fence", run="t1.1.7", token=7, wait_s=10)["clear"] is True
    assert contained.processes("t1.1.7") == []
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "fenced"
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP), secrets={})


def test_fence_ends_a_run_whose_supervisor_is_stopped(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", *DETACHED))
    until(lambda: len(contained.processes("t1.1.7")) == 2, "rank and grandchild")
    os.kill(contained.supervisor_pid("t1.1.7"), signal.SIGSTOP)
    assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True
    assert contained.processes("t1.1.7") == []


def test_fence_of_a_run_that_never_was_here_is_clear_and_keeps_it_away(host: Host) -> None:
    channel = host.channel()
    assert channel.call("fence", run="t9.1.3", token=3) == {"re": "q1", "ok": True, "clear": True, "raw": b""}
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan("t9.1.3", *SLEEP), secrets={})
    with pytest.raises(Refusal, match="stale_token"):
        channel.call("fence", run="t9.1.3", token=2)


def test_fence_of_an_old_run_spares_the_slots_next_holder(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "true"))
    channel.wait_event("t1.1.7", "ended")
    start(channel, make_plan("t2.1.8", *SLEEP))
    assert channel.call("fence", run="t1.1.7", token=7)["clear"] is True
    assert channel.call("status")["runs"]["t2.1.8"]["state"] == "running"


def test_stop_of_an_unknown_run_refuses_its_late_start(host: Host) -> None:
    channel = host.channel()
    channel.call("stop", run="t1.1.7", grace_s=1)
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP), secrets={})


def test_a_token_lower_than_the_slots_last_one_is_stale(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "true"))
    channel.wait_event("t1.1.7", "ended")
    with pytest.raises(Refusal) as refused:
        channel.call("prepare", plan=make_plan("t2.1.6", *SLEEP), secrets={})
    assert (refused.value.code, refused.value.answer["recorded"]) == ("stale_token", 7)
    other = make_plan("t2.1.6", "true", store="store-2")
    assert channel.call("prepare", plan=other, secrets={})["state"] == "prepared", "tokens of two stores do not compare"
    assert channel.call("probe")["stores"] == {"store-1": 7, "store-2": 6}


def test_a_repeated_start_attaches_and_a_repeated_request_gets_the_first_answer(host: Host) -> None:
    channel = host.channel()
    plan = make_plan("t1.1.7", *SLEEP)
    first = start(channel, plan)
    again = host.channel().call("prepare", plan=plan, secrets={})
    assert (again["state"], again["attached"], again["port"]) == ("running", True, first["port"])
    channel.send(id="same", cmd="stop", run="t1.1.7", grace_s=0)
    assert channel.answer("same")["ok"]
    channel.send(id="same", cmd="fence", run="t1.1.7", token=7)
    assert "clear" not in channel.answer("same")
    channel.wait_event("t1.1.7", "ended")
    assert channel.call("prepare", plan=plan, secrets={})["state"] == "ended"


def test_two_prepares_at_once_make_one_run(host: Host) -> None:
    channels = [host.channel() for _ in range(3)]
    plan = make_plan("t1.1.7", *SLEEP)
    keys = [channel.post("prepare", plan=plan, secrets={}) for channel in channels]
    answers = [channel.answer(key) for channel, key in zip(channels, keys, strict=True)]
    assert sorted(answer["attached"] for answer in answers) == [False, True, True]
    assert len({answer["port"] for answer in answers}) == 1


def test_a_run_that_nobody_renews_ends_itself(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP, orphan_timeout_s=1.0, grace_s=0))
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "orphaned"


def test_a_renewal_counts_from_the_hosts_own_reading(host: Host) -> None:
    channel = host.channel()
    plan = make_plan("t1.1.7", *SLEEP, orphan_timeout_s=1.5, grace_s=0)
    start(channel, plan)
    reading = channel.call("probe")["boottime_s"]
    channel.send(cmd="renew", boottime_s=reading, runs=["t1.1.7"], orphan_timeout_s=3.0)
    channel.send(cmd="renew", boottime_s=reading - 1, runs=["t1.1.7"], orphan_timeout_s=900)
    channel.wait_event("t1.1.7", "ended")
    assert 3.0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - reading < 10.0
    with pytest.raises(Refusal, match="boottime_s"):
        channel.call("renew", boottime_s=reading + 1e6, runs=["t1.1.7"], orphan_timeout_s=900)


def test_a_fence_that_was_sent_last_is_carried_out(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    channel.post("fence", run="t1.1.7", token=7)
    channel.close()
    assert host.processes("t1.1.7") == []


def test_a_run_that_was_never_started_may_be_prepared_again(host: Host) -> None:
    channel = host.channel()
    plan = make_plan("t1.1.7", "true")
    channel.call("prepare", plan=plan, secrets={})
    pid = host.supervisor_pid("t1.1.7")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "the death of the supervisor")
    with pytest.raises(Refusal, match="not_prepared"):
        channel.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=1)
    start(channel, plan)
    channel.wait_event("t1.1.7", "ended")


@pytest.mark.parametrize("change", ["boot", "pid"])
def test_a_reboot_and_a_reused_pid_are_told_apart(tmp_path: Path, change: str) -> None:
    host = Host(tmp_path / "host")
    try:
        channel = host.channel()
        start(channel, make_plan("t1.1.7", *SLEEP))
        channel.close()
        pid = host.supervisor_pid("t1.1.7")
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid) and not host.processes("t1.1.7"), "the death of the run")
        path = host.run_dir("t1.1.7") / "supervisor.json"
        known = json.loads(path.read_text())
        # Content of the file as after a reboot, or after another process got the pid.
        known.update({"boot_id": "another"} if change == "boot" else {"pid": os.getpid()})
        path.write_text(json.dumps(known))
        code, output = host.command("start", "t1.1.7", stdin=json.dumps(make_plan("t1.1.7", *SLEEP)).encode())
        answer = json.loads(output)
        assert (code, answer["code"]) == (1, "lost")
        assert answer["cause"] == ("reboot" if change == "boot" else "supervisor_killed")
        assert ("rebooted" if change == "boot" else "belongs to another process") in answer["message"]
        assert is_alive(os.getpid())
    finally:
        host.clean()


def test_collect_removes_ended_runs_only_and_keeps_them_from_starting(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "true"))
    channel.wait_event("t1.1.7", "ended")
    start(channel, make_plan("t2.1.8", *SLEEP))
    assert channel.call("collect", older_than_s=3600)["removed"] == []
    until(lambda: channel.call("collect", older_than_s=0)["removed"] == ["t1.1.7"], "the removal")
    assert host.run_dir("t2.1.8").exists()
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP), secrets={})
