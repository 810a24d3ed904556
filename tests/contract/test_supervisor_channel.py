"""Content of a follow channel: streams from offsets, windows, invalid input, network checks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_dtrain.core.logs.clock import samples_of
from tests.support.supervisor_host import Channel, Host, Refusal, make_plan, start, until

NONCE = "0123456789abcdef"


def finished(host: Host, script: str, run: str = "t1.1.7", **changes: Any) -> Channel:
    """A run that has ended, and a channel that has seen none of it."""
    channel = host.channel()
    start(channel, make_plan(run, "sh", "-c", script, **changes), logs="none")
    channel.wait_event(run, "ended")
    channel.close()
    return host.channel()


def test_everything_a_rank_wrote_comes_before_the_end(host: Host) -> None:
    channel = host.channel()
    script = 'yes 0123456789 | head -c 700000; for i in 1 2 3; do echo "line $i" >> "$DTRAIN_EVENTS"; done; printf end'
    start(channel, make_plan("t1.1.7", "sh", "-c", script, ranks=2))
    channel.wait_event("t1.1.7", "ended")
    data = [frame for frame in channel.frames if frame["t"] == "data"]
    assert data[-1]["stream"] == "supervisor.events"
    for rank in (0, 1):
        log = channel.stream("t1.1.7", f"rank{rank}.log")
        assert len(log) == 700_003
        assert log.endswith(b"end")
        assert channel.stream("t1.1.7", f"rank{rank}.events") == b"line 1\nline 2\nline 3\n"


def test_the_end_waits_for_a_log_that_nobody_acknowledges(host: Host) -> None:
    channel = finished(host, "yes 0123456789 | head -c 3000000", log_limit_bytes=1 << 24)
    channel.acks = False
    channel.call("subscribe", run="t1.1.7", offsets={}, logs="rank0")
    channel.wait(lambda: len(channel.stream("t1.1.7", "rank0.log")) >= 1 << 20)
    channel.call("status")
    assert len(channel.stream("t1.1.7", "rank0.log")) == 1 << 20, "one window and not a byte more"
    assert channel.event("t1.1.7", "ended") is None
    channel.acks = True
    channel.send(cmd="ack", run="t1.1.7", stream="rank0.log", offset=1 << 20)
    channel.wait_event("t1.1.7", "ended")
    assert len(channel.stream("t1.1.7", "rank0.log")) == 3_000_000


def test_streams_go_on_from_the_offsets_that_are_asked_for(host: Host) -> None:
    channel = finished(host, "printf 0123456789; echo one >> $DTRAIN_EVENTS; echo two >> $DTRAIN_EVENTS")
    channel.call("subscribe", run="t1.1.7", offsets={"rank0.log": 4, "rank0.events": 4}, logs="all")
    channel.wait_event("t1.1.7", "ended")
    assert channel.stream("t1.1.7", "rank0.log") == b"456789"
    assert channel.stream("t1.1.7", "rank0.events") == b"two\n"
    assert next(f for f in channel.frames if f.get("stream") == "rank0.log")["offset"] == 4
    size = (host.run_dir("t1.1.7") / "events.supervisor").stat().st_size
    other = host.channel()
    other.call("subscribe", run="t1.1.7", offsets={"supervisor.events": size, "rank0.log": 10}, logs="none")
    other.call("status")
    assert other.stream("t1.1.7", "supervisor.events") == b""


def test_a_file_shorter_than_its_offset_begins_a_new_epoch(host: Host) -> None:
    channel = finished(host, "printf 0123456789")
    channel.call("subscribe", run="t1.1.7", offsets={"rank0.log": 5000}, logs="all")
    channel.wait_event("t1.1.7", "ended")
    gap, data = (frame for frame in channel.frames if frame.get("stream") == "rank0.log")
    assert (gap["t"], gap["offset"], gap["epoch"]) == ("gap", 5000, 1)
    assert (data["t"], data["offset"], data["epoch"], data["raw"]) == ("data", 0, 1, b"0123456789")


@pytest.mark.parametrize("left_bytes", [None, 0, 40])
def test_an_end_that_was_removed_from_the_events_is_written_again(host: Host, left_bytes: int | None) -> None:
    channel = finished(host, "true")
    path = host.run_dir("t1.1.7") / "events.supervisor"
    if left_bytes is None:
        path.unlink()
    else:
        os.truncate(path, left_bytes)
    channel.call("subscribe", run="t1.1.7", offsets={}, logs="none")
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"


def test_events_come_in_whole_lines_and_a_torn_last_one_is_counted(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "sh", "-c", 'printf "whole\\ntorn" >> $DTRAIN_EVENTS; exec sleep 1000'))
    channel.wait(lambda: channel.stream("t1.1.7", "rank0.events") == b"whole\n")
    channel.call("stop", run="t1.1.7", grace_s=0)
    channel.wait_event("t1.1.7", "ended")
    assert channel.stream("t1.1.7", "rank0.events") == b"whole\n"
    gap = next(frame for frame in channel.frames if frame["t"] == "gap")
    assert (gap["stream"], gap["offset"], gap["skip_bytes"]) == ("rank0.events", 6, 4)


def test_a_log_beyond_its_limit_keeps_head_and_tail(host: Host) -> None:
    channel = host.channel()
    script = "yes 0123456789 | head -c 8000000; echo; echo last; sleep 1000"
    start(channel, make_plan("t1.1.7", "sh", "-c", script, log_limit_bytes=1 << 20), logs="none")
    path = host.run_dir("t1.1.7") / "rank0" / "log"
    until(lambda: path.exists() and path.stat().st_size > 8_000_000, "the log")
    until(lambda: (path.parent / "gaps.json").exists() and path.stat().st_blocks * 512 <= 1 << 20, "the cut")
    channel.call("subscribe", run="t1.1.7", offsets={}, logs="all")
    channel.wait(lambda: channel.stream("t1.1.7", "rank0.log").endswith(b"last\n"))
    gap = next(frame for frame in channel.frames if frame["t"] == "gap")
    assert gap["skip_bytes"] > 6_000_000
    log = channel.stream("t1.1.7", "rank0.log")
    assert b"\0" not in log
    assert len(log) + gap["skip_bytes"] == path.stat().st_size


def test_several_runs_share_one_channel(host: Host) -> None:
    channel = host.channel()
    for trial in range(3):
        plan = make_plan(f"t{trial}.1.7", "sh", "-c", f"echo run {trial}; sleep 0.3")
        plan["ranks"][0]["slot"] = trial
        start(channel, plan)
    for trial in range(3):
        channel.wait_event(f"t{trial}.1.7", "ended")
        assert channel.stream(f"t{trial}.1.7", "rank0.log") == f"run {trial}\n".encode()


def test_only_the_logs_that_are_wanted_are_sent(host: Host) -> None:
    channel = finished(host, "echo hello", ranks=2)
    channel.call("subscribe", run="t1.1.7", offsets={})
    channel.wait_event("t1.1.7", "ended")
    assert channel.stream("t1.1.7", "rank0.log") == b"hello\n"
    assert channel.stream("t1.1.7", "rank1.log") == b""
    answer = channel.call("read", run="t1.1.7", stream="rank1.log", offset=-4, length=3)
    assert (answer["raw"], answer["size"]) == (b"llo", 6)
    with pytest.raises(Refusal, match="unknown_stream"):
        channel.call("read", run="t1.1.7", stream="rank5.log", offset=0, length=1)


def test_new_output_comes_at_once_without_inotify_as_well(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    try:
        limit = Path("/proc/sys/fs/inotify/max_user_instances")
        if os.geteuid() != 0 or not os.access(limit, os.W_OK) or shutil.which("unshare") is None:
            pytest.skip("needs root and unshare: a user namespace without inotify")
        enter = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > "$0"; exec "$@"', str(limit)]
        channel = Channel(host, [*enter, *host.argv("follow")])
        host.channels.append(channel)
        start(channel, make_plan("t1.1.7", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done"))
        channel.wait_event("t1.1.7", "ended")
        assert channel.stream("t1.1.7", "rank0.log") == b"1\n2\n3\n"
        assert not any(os.readlink(f"/proc/{channel.process.pid}/fd/{fd}") == "anon_inode:inotify"
                       for fd in os.listdir(f"/proc/{channel.process.pid}/fd"))  # fmt: skip
    finally:
        host.clean()


@pytest.mark.parametrize(
    "nonsense",
    [b"hello\n", b"[1, 2]\n", b'{"id": 5, "cmd": "status"}\n', b'{"id": "1"}\n', b"\xff\xfe\n", b"[" * 200_000 + b"\n",
     b"x" * ((8 << 20) + 2)],
    ids=["words", "list", "id", "no-cmd", "bytes", "depth", "length"],
)  # fmt: skip
def test_nonsense_ends_the_channel_with_a_reason_and_spares_the_runs(tmp_path: Path, nonsense: bytes) -> None:
    host = Host(tmp_path / "host")
    try:
        channel = host.channel()
        start(channel, make_plan("t1.1.7", "sleep", "1000"))
        channel.send_raw(nonsense)
        channel.wait(lambda: "None" in channel.answers)
        assert channel.answers["None"]["code"] == "protocol"
        assert channel.process.wait(20) == 2
        assert len(host.processes("t1.1.7")) == 1
    finally:
        host.clean()


def test_an_unknown_command_is_refused_and_the_channel_lives(host: Host) -> None:
    channel = host.channel()
    with pytest.raises(Refusal, match="unknown_command"):
        channel.call("reboot")
    for cmd, arguments in (
        ("stop", {"run": "../../etc"}),
        ("subscribe", {"run": "t1.1.7\n"}),
        ("fence", {"run": "t1.1"}),
        ("have", {"kind": "supervisor", "digests": []}),
        ("have", {"kind": "payloads", "digests": ["../x"]}),
        ("read", {"run": "t1.1.7", "stream": "rank0.log/../../x", "offset": 0, "length": 1}),
    ):
        with pytest.raises(Refusal, match="bad_plan"):
            channel.call(cmd, **arguments)
    with pytest.raises(Refusal, match="unknown_run"):
        channel.call("subscribe", run="t1.1.7", offsets={})
    assert channel.call("status")["runs"] == {}


def test_a_bad_plan_names_the_field(host: Host) -> None:
    channel = host.channel()
    for field, change in (
        ("plan.argv", {"argv": "python"}),
        ("plan.run", {"run": "t1.1.7/../x"}),
        ("plan.token", {"token": 8}),
        ("plan.payload", {"payload": "../../x"}),
        ("plan.ranks", {"ranks": []}),
        ("plan.env", {"env": {"A=B": "c"}}),
        ("plan.env.A", {"env": {"A": 1}}),
        ("plan.port_range.1", {"port_range": [20, 10]}),
        ("plan.grace_s", {"grace_s": float("nan")}),
        ("plan.timeout_s", {"timeout_s": True}),
    ):
        with pytest.raises(Refusal) as refused:
            channel.call("prepare", plan={**make_plan("t1.1.7", "true"), **change}, secrets={})
        assert (refused.value.code, refused.value.answer["field"]) == ("bad_plan", field)
    assert not (host.state_dir / "runs").is_dir() or not list((host.state_dir / "runs").iterdir())


def test_hosts_find_each_other_by_a_nonce(host: Host, tmp_path: Path) -> None:
    one, other = host.channel(), Host(tmp_path / "other").channel()
    host.channels.append(other)
    found = one.call("net_listen", nonce=NONCE, port_range=None, interface="lo")
    assert not any(address["address"].startswith(("127.", "fe80")) for address in found["addresses"])
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        targets = [{"address": "127.0.0.1", "port": found["port"]}, {"address": "::1", "port": found["port"]},
                   {"address": "127.0.0.1", "port": silent.getsockname()[1]}]  # fmt: skip
        reached, reached6, refused = other.call("net_connect", nonce=NONCE, targets=targets, timeout_s=5)["results"]
        assert reached["ok"]
        assert (reached["source_address"], reached["interface"]) == ("127.0.0.1", "lo")
        assert reached6["ok"] or not socket.has_ipv6
        assert not refused["ok"]
        assert "refused" in refused["error"]
    wrong = other.call("net_connect", nonce="another-nonce", targets=targets[:1], timeout_s=5)["results"][0]
    assert (wrong["ok"], wrong["error"]) == (False, "another program answers there")
    one.call("net_close", nonce=NONCE)
    closed = other.call("net_connect", nonce=NONCE, targets=targets[:1], timeout_s=5)["results"][0]
    assert not closed["ok"]


def test_a_check_of_the_network_listens_on_the_named_interface_only(host: Host) -> None:
    channel = host.channel()
    port = channel.call("net_listen", nonce=NONCE, port_range=None, interface="lo")["port"]
    assert listening_on(port) <= {"127.0.0.1", "::1"}
    assert "127.0.0.1" in listening_on(port)
    channel.call("net_close", nonce=NONCE)
    assert listening_on(port) == set()


def test_a_check_of_the_network_listens_on_the_addresses_that_it_offers(host: Host) -> None:
    channel = host.channel()
    found = channel.call("net_listen", nonce=NONCE, port_range=None)
    assert listening_on(found["port"]) == {offer["address"] for offer in found["addresses"]}


def listening_on(port: int) -> set[str]:
    """Return the addresses of this machine on which a port listens."""
    found = psutil.net_connections("tcp")
    return {one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port}


def test_preflight_looks_into_the_named_interpreter_without_importing(host: Host, tmp_path: Path) -> None:
    channel = host.channel()
    shared = tmp_path / "shared"
    found = channel.call(
        "preflight", python=sys.executable, modules=["json", "no_such_module"], slots=[{"index": 0, "device": None}],
        shared_paths=[str(shared)], nonce=NONCE,
    )  # fmt: skip
    assert found["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert found["modules"] == {"json": "unknown", "no_such_module": None}
    assert found["foreign"] == found["problems"] == []
    assert found["shared"][str(shared)]["writable"]
    channel.call("net_close", nonce=NONCE)
    assert list(shared.iterdir()) == []
    assert "packages" not in found
    listed = channel.call("preflight", python=sys.executable, modules=[], slots=[], packages=True)
    assert listed["packages"]["sqlalchemy"] == importlib.metadata.version("sqlalchemy")
    assert listed["driver"] is None
    absent = channel.call("preflight", python="no-such-python", modules=["json"], slots=[], shared_paths=[], nonce="")
    assert absent["python"] is None
    assert "no-such-python" in absent["problems"][0]


def test_preflight_names_each_folder_that_is_not_the_same_below_both_paths(host: Host, tmp_path: Path) -> None:
    for name in ("data", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")

    channel = host.channel()

    def problems(**mount: str) -> list[str]:
        paths = {name: str(tmp_path / path) for name, path in mount.items()}
        found: list[str] = channel.call("preflight", mounts=[paths])["mounts"]
        return [words.replace(str(tmp_path), "") for words in found]

    assert problems(host_path="data", container_path="data") == []
    assert problems(host_path="data", container_path="link") == []
    assert problems(host_path="data", container_path="other") == ["/other is another folder than /data"]
    missing = "cannot be used: No such file or directory"
    assert problems(host_path="data", container_path="absent") == [f"/absent {missing}"]
    assert problems(host_path="absent", container_path="data") == [f"/absent {missing}"]


def test_a_probe_tells_the_facts_of_the_host(host: Host) -> None:
    channel = host.channel()
    facts = channel.call("probe")
    assert facts["executable"] == channel.hello["executable"]
    assert facts["machine_id"] == channel.hello["machine_id"]
    assert facts["cpu_count"] == len(os.sched_getaffinity(0))
    assert facts["memory_bytes"] > 0
    assert facts["disk_free_bytes"] > 0
    assert {"pid_ns", "boot_id", "gpus", "torch", "interfaces", "container_runtime", "wall_s"} <= facts.keys()


@pytest.mark.nightly
def test_commands_for_people_print_one_json_document(host: Host) -> None:
    plan = make_plan("t1.1.7", "sh", "-c", "echo $MASTER_PORT; exec sleep 1000")
    code, output = host.command("start", "t1.1.7", stdin=json.dumps(plan).encode())
    assert (code, json.loads(output)["state"]) == (0, "running")
    assert json.loads(host.command("status", "t1.1.7")[1])["runs"]["t1.1.7"]["state"] == "running"
    assert json.loads(host.command("fence", "t1.1.7", "7")[1]) == {"ok": True, "clear": True}
    assert json.loads(host.command("stop", "t1.1.7", "--grace-s", "0")[1]) == {"ok": True}
    assert json.loads(host.command("collect", "--older-than-s", "0")[1])["removed"] == ["t1.1.7"]
    assert json.loads(host.command("probe")[1])["ok"]


def test_a_killed_follow_disturbs_nobody(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "sh", "-c", "while :; do echo tick; sleep 0.02; done"))
    channel.wait(lambda: b"tick" in channel.stream("t1.1.7", "rank0.log"))
    channel.process.send_signal(signal.SIGKILL)
    path = host.run_dir("t1.1.7") / "rank0" / "log"
    size = path.stat().st_size
    until(lambda: path.stat().st_size > size, "more output")
    other = host.channel()
    other.call("subscribe", run="t1.1.7", offsets={"rank0.log": size}, logs="all")
    other.wait(lambda: other.stream("t1.1.7", "rank0.log"))


#: Runs the supervisor's file; the first fork of its zygote fails.
FAILING_FORK = """
import errno, os, runpy, sys
fork, follow, failed = os.fork, os.getpid(), []
def fork_later():
    if os.getpid() != follow and not failed:
        failed.append(1)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = fork_later
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_failed_fork_refuses_one_start_and_no_later_one(host: Host) -> None:
    python, _, *arguments = host.argv("follow")
    channel = Channel(host, [python, "-c", FAILING_FORK, *arguments])
    host.channels.append(channel)
    with pytest.raises(Refusal, match="ulimit -u") as refused:
        channel.call("prepare", plan=make_plan("t1.1.7", "true"), secrets={})
    assert refused.value.code == "os_error"
    assert channel.call("prepare", plan=make_plan("t1.1.7", "true"), secrets={})["state"] == "prepared"


def test_a_channel_without_its_zygote_ends_and_the_next_one_starts_runs(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "sh", "-c", "exec sleep 1000"))
    (zygote,) = psutil.Process(channel.process.pid).children()
    zygote.kill()
    with pytest.raises(EOFError):
        channel.wait(lambda: False)
    assert channel.process.wait(20) == 0
    other = host.channel()
    assert other.call("status")["runs"]["t1.1.7"]["state"] == "running"
    plan = make_plan("t2.1.8", "true")
    plan["ranks"][0]["slot"] = 1
    assert other.call("prepare", plan=plan, secrets={})["state"] == "prepared"


def test_the_clock_of_a_log_says_when_its_bytes_were_written(host: Host) -> None:
    begin = time.time()
    channel = finished(host, "echo one; sleep 0.7; printf 'two\\nthree'")
    answer = channel.call("read", run="t1.1.7", stream="rank0.clock", offset=0, length=1 << 20)
    samples = samples_of(answer["raw"], 0.0)
    assert [size for size, _ in samples] == [4, 13]
    assert begin < samples[0][1] < samples[1][1] < time.time()
    assert samples[1][1] - samples[0][1] > 0.3
    with pytest.raises(Refusal, match="unknown_stream"):
        channel.call("read", run="t1.1.7", stream="rank1.clock", offset=0, length=1)
