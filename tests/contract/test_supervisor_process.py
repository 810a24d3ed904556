"""A run on one host, from its plan to its end, over ``supervisor.py follow`` as a real process."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.supervisor_host import (
    Host,
    Refusal,
    interpreters,
    is_alive,
    make_plan,
    start,
    until,
)

SLEEP = ("sh", "-c", "exec sleep 1000")
#: Prints the pid of a grandchild that left session, process group and parent, and sleeps.
DETACHED = (
    "python", "-c",
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execvp('sleep', ['sleep', '1000'])\n"
    "    os._exit(0)\n"
    "print('ready', flush=True); time.sleep(1000)\n",
)  # fmt: skip


@pytest.fixture(params=interpreters(), ids=lambda path: Path(path).parents[1].name)
def host(request: Any, tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path / "host", request.param)
    yield found
    found.clean()


@pytest.fixture(params=[True, False], ids=["cgroup", "walk"])
def contained(request: Any, tmp_path: Path) -> Iterator[Host]:
    """Once with a cgroup of its own, where the machine lets us, and once with the walk over descendants alone."""
    found = Host(tmp_path / "host", cgroup=request.param)
    yield found
    found.clean()


def test_a_run_goes_from_plan_to_end(host: Host) -> None:
    channel = host.channel()
    payload = host.send_archive("payloads", {"train.py": "import os, lib\nprint(lib.WORD, os.environ['RANK'])\n"})
    library = host.send_archive("libraries", {"lib.py": "WORD = 'hello'\n"})
    plan = make_plan("t1.1.7", "python", "train.py", ranks=2, payload=payload, library=library)
    assert start(channel, plan)["state"] == "prepared"
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"
    kinds = [event["kind"] for event in channel.events("t1.1.7")]
    assert kinds == ["prepared", "started", "exit", "exit", "ended"]
    assert [event["seq"] for event in channel.events("t1.1.7")] == [1, 2, 3, 4, 5]
    assert channel.stream("t1.1.7", "rank1.log") == b"hello 1\n"
    assert channel.close() == 0


def test_nothing_starts_before_go(host: Host) -> None:
    channel = host.channel()
    answer = channel.call("prepare", plan=make_plan("t1.1.7", "sh", "-c", "true"), secrets={})
    assert answer["state"] == "prepared"
    assert not (host.run_dir("t1.1.7") / "started").exists()
    assert not (host.run_dir("t1.1.7") / "rank0" / "log").exists()
    with pytest.raises(Refusal, match="not_prepared"):
        channel.call("go", run="t1.2.7", master_addr="127.0.0.1", master_port=1)
    for _ in range(2):
        again = channel.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=answer["port"])
        assert again["state"] in ("running", "ended")


def test_a_prepared_run_without_go_ends_at_its_deadline(host: Host) -> None:
    channel = host.channel()
    channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP, prepare_timeout_s=0.2), secrets={})
    channel.call("subscribe", run="t1.1.7", offsets={})
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "prepare_timeout"


def test_a_rank_gets_its_environment_and_nothing_else(host: Host) -> None:
    host.env["UNRELATED_TOKEN"] = "private"
    channel = host.channel()
    script = "import json, os, signal; print(json.dumps([dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid(), \
sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1], signal.getsignal(signal.SIGPIPE) is not None, \
open('/proc/self/status').read()]))"
    plan = make_plan("t1.1.7", "python", "-S", "-c", script, env={"COLOUR": "red"})
    plan["ranks"][0]["device"] = "GPU-1"
    answer = start(channel, plan, secrets={"PASSWORD": "hidden"})
    channel.wait_event("t1.1.7", "ended")
    env, cwd, leads, fds, _, status = json.loads(channel.stream("t1.1.7", "rank0.log"))
    run_dir = str(host.run_dir("t1.1.7"))
    assert "UNRELATED_TOKEN" not in env
    assert (env["COLOUR"], env["PASSWORD"], env["RANK"]) == ("red", "hidden", "0")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", str(answer["port"]))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-1", "PCI_BUS_ID")
    assert (env["DTRAIN_RUN"], env["DTRAIN_RUN_DIR"]) == ("t1.1.7", run_dir)
    assert cwd == run_dir + "/work"
    assert leads
    assert fds == [0, 1, 2, 3], "standard streams and the slot's lock"
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn", "Umask")))
    assert int(masks["SigBlk"], 16) == 0
    assert masks["Umask"] == "0077"


def test_secrets_are_nowhere_on_the_disk(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP), secrets={"PASSWORD": "very-hidden"})
    assert not (host.run_dir("t1.1.7") / "secrets.json").exists()
    for path in host.state_dir.rglob("*"):
        if stat.S_ISREG(path.lstat().st_mode):
            assert b"very-hidden" not in path.read_bytes()


def test_the_first_failing_rank_stops_the_others_and_is_named(host: Host) -> None:
    channel = host.channel()
    script = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('bad loss')\ntime.sleep(1000)"
    start(channel, make_plan("t1.1.7", "python", "-c", script, ranks=3))
    ended = channel.wait_event("t1.1.7", "ended")
    assert (ended["reason"], ended["first_failure"]) == ("failed", 1)
    exits = {event["rank"]: event for event in channel.events("t1.1.7") if event["kind"] == "exit"}
    assert exits[1]["exit_code"] == 1
    assert exits[1]["error"]["message"] == "ValueError: bad loss"
    assert "Traceback" in exits[1]["error"]["traceback"]
    assert not exits[1]["sent_signal"]
    for rank in (0, 2):
        assert (exits[rank]["exit_code"], exits[rank]["sent_signal"]) == (-signal.SIGTERM, True)


def test_a_program_that_does_not_exist_is_named(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "no-such-program"))
    channel.wait_event("t1.1.7", "ended")
    exit_ = channel.event("t1.1.7", "exit")
    assert exit_ is not None
    assert exit_["exit_code"] == 127
    assert "no-such-program" in exit_["error"]["message"]


def test_stop_ends_ranks_that_ignore_sigterm_after_the_grace(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done", ranks=2))
    channel.wait(lambda: b"ready" in channel.stream("t1.1.7", "rank1.log"))
    channel.wait(lambda: b"ready" in channel.stream("t1.1.7", "rank0.log"))
    begun = time.monotonic()
    assert channel.call("stop", run="t1.1.7", grace_s=0.5)["ok"]
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "stopped"
    assert time.monotonic() - begun >= 0.5
    exits = [event for event in channel.events("t1.1.7") if event["kind"] == "exit"]
    assert [(event["exit_code"], event["sent_signal"]) for event in exits] == [(-signal.SIGKILL, True)] * 2
    assert channel.call("stop", run="t1.1.7", grace_s=0)["ok"], "a second stop is harmless"


def test_sigterm_reaches_the_whole_session_of_a_rank(host: Host) -> None:
    channel = host.channel()
    script = "set -m; sh -c 'trap \"echo child; exit 0\" TERM; echo up; while :; do sleep 0.05; done' & \
trap 'wait; exit 0' TERM; wait; wait"
    start(channel, make_plan("t1.1.7", "bash", "-c", script))
    channel.wait(lambda: b"up" in channel.stream("t1.1.7", "rank0.log"))
    channel.call("stop", run="t1.1.7", grace_s=15)
    channel.wait_event("t1.1.7", "ended")
    assert b"child" in channel.stream("t1.1.7", "rank0.log")


def test_children_that_called_setsid_do_not_survive_a_stop(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", *DETACHED))
    channel.wait(lambda: b"ready" in channel.stream("t1.1.7", "rank0.log"))
    until(lambda: len(contained.processes("t1.1.7")) == 2, "the grandchild")
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    assert contained.processes("t1.1.7") == []


def test_children_that_outlive_their_rank_end_with_the_run(contained: Host) -> None:
    channel = contained.channel()
    start(channel, make_plan("t1.1.7", "sh", "-c", "setsid sleep 1000 & env -i setsid sleep 1001 & exit 0"))
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"
    assert contained.processes("t1.1.7") == []


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


def test_a_follow_that_comes_later_ends_what_a_dead_supervisor_left(host: Host) -> None:
    first = host.channel()
    start(first, make_plan("t1.1.7", *DETACHED))
    until(lambda: len(host.processes("t1.1.7")) == 2, "rank and grandchild")
    first.process.kill()
    os.kill(host.supervisor_pid("t1.1.7"), signal.SIGKILL)
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
    os.kill(host.supervisor_pid("t1.1.7"), signal.SIGKILL)
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


def test_a_run_that_takes_too_long_is_ended(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP, timeout_s=0.3))
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "timeout"


def test_runs_go_on_when_the_channel_ends(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    assert channel.close() == 0
    again = host.channel()
    assert again.call("status")["runs"]["t1.1.7"]["state"] == "running"
    again.wait(lambda: any(frame["t"] == "beat" and frame["runs"] == ["t1.1.7"] for frame in again.frames))


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
        # What the same file would say after a reboot, and after the pid went to another process.
        known.update({"boot_id": "another"} if change == "boot" else {"pid": os.getpid()})
        path.write_text(json.dumps(known))
        code, output = host.command("start", "t1.1.7", stdin=json.dumps(make_plan("t1.1.7", *SLEEP)).encode())
        answer = json.loads(output)
        assert (code, answer["code"]) == (1, "lost")
        assert answer["cause"] == ("reboot" if change == "boot" else "supervisor_killed")
        assert ("started anew" if change == "boot" else "belongs to another process") in answer["message"]
        assert is_alive(os.getpid())
    finally:
        host.clean()


def test_an_absent_archive_is_asked_for(host: Host) -> None:
    channel = host.channel()
    digest = "a" * 64
    with pytest.raises(Refusal) as refused:
        channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP, payload=digest), secrets={})
    assert (refused.value.code, refused.value.answer["missing"]) == ("need", [digest])
    assert channel.call("have", kind="payloads", digests=[digest])["missing"] == [digest]
    code, output = host.command("receive", "payloads", digest, stdin=b"something else")
    assert (code, json.loads(output)["code"]) == (1, "digest")
    assert not list(host.remote_dir.rglob("*.tmp"))


def test_the_rendezvous_port_is_held_and_rank_0_can_listen_on_it(host: Host) -> None:
    channel = host.channel()
    script = "import os, socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); \
s.bind(('0.0.0.0', int(os.environ['MASTER_PORT']))); s.listen(); print('listening')"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        low = taken.getsockname()[1]
        plan = make_plan("t1.1.7", "python", "-c", script, port_range=[low, min(low + 5, 65535)])
        port = channel.call("prepare", plan=plan, secrets={})["port"]
    assert low < port <= low + 5
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("0.0.0.0", port))
    channel.call("subscribe", run="t1.1.7", offsets={}, logs="all")
    channel.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=port)
    channel.wait_event("t1.1.7", "ended")
    assert channel.stream("t1.1.7", "rank0.log") == b"listening\n"


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


def test_a_requested_stop_is_a_file_that_ranks_see(host: Host) -> None:
    channel = host.channel()
    loop = 'while [ ! -e "$DTRAIN_RUN_DIR/stop_requested" ]; do sleep 0.02; done'
    start(channel, make_plan("t1.1.7", "sh", "-c", loop))
    channel.call("request_stop", run="t1.1.7")
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"


def test_files_travel_there_and_back(host: Host) -> None:
    from tests.contract.supervisor_host import archive

    tar = archive({"step-1/model.bin": "weights", "step-1/meta.json": "{}"})
    assert host.command("put", "t1.1.7", "checkpoints", stdin=tar)[0] == 0
    code, fetched = host.command("fetch", "t1.1.7", "checkpoints/step-1")
    assert code == 0
    assert host.command("put", "t2.1.7", "restored", stdin=fetched)[0] == 0
    assert (host.run_dir("t2.1.7") / "restored" / "step-1" / "model.bin").read_text() == "weights"
    for path in ("../t2.1.7", "/etc", "checkpoints/../../x", ""):
        assert host.command("fetch", "t1.1.7", path)[0] != 0
    (host.run_dir("t1.1.7") / "link").symlink_to("/etc")
    assert host.command("fetch", "t1.1.7", "link/passwd")[0] == 1
    channel = host.channel()
    assert channel.call("prepare", plan=make_plan("t1.1.7", "true"), secrets={})["attached"] is False


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0 or os.system(f"mkdir -p {tmp_path}/full && mount -t tmpfs -o size=256k none {tmp_path}/full"):
        pytest.skip("mounting a small tmpfs needs root")
    host = Host(tmp_path / "host")
    host.state_dir = tmp_path / "full" / "state"
    try:
        channel = host.channel()
        (tmp_path / "full" / "ballast").write_bytes(b"x" * 200_000)
        with pytest.raises(Refusal, match="disk_full"):
            channel.call("prepare", plan=make_plan("t1.1.7", "true"), secrets={})
        (tmp_path / "full" / "ballast").unlink()
        # A rank that fills the disk cannot hide its own end.
        start(channel, make_plan("t1.2.7", "sh", "-c", "cat /dev/zero > fill; exit 3"), logs="none")
        assert channel.wait_event("t1.2.7", "ended")["reason"] == "failed"
        exit_ = channel.event("t1.2.7", "exit")
        assert exit_ is not None
        assert exit_["exit_code"] == 3
    finally:
        host.clean()
        os.system(f"umount -l {tmp_path}/full")


def test_a_state_dir_on_a_network_file_system_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import supervisor as s\n"
        "s.mount_of = lambda path: ('/home', 'nfs4')\n"
        "try: s.Layout('r', sys.argv[2]).ensure()\n"
        "except s.Refused as error: print(error.code, error.message)\n"
    )
    import subprocess

    from tests.contract.supervisor_host import SUPERVISOR

    argv = [sys.executable, "-c", script, str(SUPERVISOR.parent), str(tmp_path / "state")]
    output = subprocess.run(argv, capture_output=True, check=True, timeout=30).stdout.decode()
    assert output.startswith("state_dir ")
    assert "nfs4" in output
