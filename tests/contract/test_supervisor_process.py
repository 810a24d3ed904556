"""A run on one host, from its plan to its end, over ``follow`` as a real process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import stat
import tarfile
import time
from pathlib import Path

import pytest

from tests.support.supervisor_host import (
    DETACHED,
    SLEEP,
    Host,
    Refusal,
    archive,
    make_plan,
    start,
    until,
)


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
    plan = make_plan("t1.1.7", "python", "-S", "-c", script, env={"COLOUR": "red"}, devices=["GPU-1", "GPU-0"])
    answer = start(channel, plan, secrets={"PASSWORD": "hidden"})
    channel.wait_event("t1.1.7", "ended")
    env, cwd, leads, fds, _, status = json.loads(channel.stream("t1.1.7", "rank0.log"))
    run_dir = str(host.run_dir("t1.1.7"))
    assert "UNRELATED_TOKEN" not in env
    assert (env["COLOUR"], env["PASSWORD"], env["RANK"]) == ("red", "hidden", "0")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", str(answer["port"]))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-1,GPU-0", "PCI_BUS_ID")
    assert (env["DTRAIN_RUN"], env["DTRAIN_RUN_DIR"]) == ("t1.1.7", run_dir)
    assert cwd == run_dir + "/work"
    assert leads
    assert fds == [0, 1, 2, 3, 4], "standard streams and the locks of the slot"
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


def test_a_rank_that_has_written_its_error_before_a_signal_has_failed_by_itself(host: Host) -> None:
    channel = host.channel()
    script = """if True:
        import json, os, time
        if os.environ["RANK"] == "0":
            with open(os.environ["TORCHELASTIC_ERROR_FILE"] + ".new", "w") as file:
                json.dump({"message": "KeyError: 'label'"}, file)
            os.rename(file.name, os.environ["TORCHELASTIC_ERROR_FILE"])
            open("../written", "w").close()
        while os.environ["RANK"] == "1" and not os.path.exists("../written"):
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            raise ConnectionError("Connection closed by peer")
        time.sleep(1000)
    """
    start(channel, make_plan("t1.1.7", "python", "-c", script, ranks=3))
    channel.wait_event("t1.1.7", "ended")
    exits = {event["rank"]: event for event in channel.events("t1.1.7") if event["kind"] == "exit"}
    assert [exits[rank]["exit_code"] for rank in range(3)] == [-signal.SIGTERM, 1, -signal.SIGTERM]
    assert [exits[rank]["sent_signal"] for rank in range(3)] == [False, False, True]
    assert exits[0]["error"]["message"] == "KeyError: 'label'"


def test_a_program_that_does_not_exist_is_named(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", "no-such-program"))
    channel.wait_event("t1.1.7", "ended")
    exit_ = channel.event("t1.1.7", "exit")
    assert exit_ is not None
    assert exit_["exit_code"] == 127
    assert "no-such-program" in exit_["error"]["message"]


SCRIPTS = {
    "no x": ("#!/bin/sh\necho here\n", 0o644, "The file is not executable: use 'bash run.sh' as the entrypoint"),
    "windows": (
        "#!/bin/sh\r\necho here\r\n",
        0o755,
        "which does not exist there. The lines of the file end as on Windo",
    ),
    "interpreter": ("#!/no/such/sh -u\n", 0o755, "names the interpreter '/no/such/sh -u', which does not exist there"),
    "none": ("echo here\n", 0o755, "Its first line names no interpreter (#!/bin/bash): add it, or use 'bash run.sh'"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_cannot_be_executed_is_named_with_the_reason(one_host: Host, name: str) -> None:
    text, mode, words = SCRIPTS[name]
    member = tarfile.TarInfo("run.sh")
    member.size, member.mode = len(text), mode
    content = archive({}, (member, text.encode()))
    digest = hashlib.sha256(content).hexdigest()
    assert one_host.command("receive", "payloads", digest, stdin=content)[0] == 0
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", "./run.sh", payload=digest))
    channel.wait_event("t1.1.7", "ended")
    exit_ = channel.event("t1.1.7", "exit")
    assert exit_ is not None
    assert words in exit_["error"]["message"]


def test_a_file_system_that_executes_nothing_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "noexec"
    folder.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o noexec none {folder}"):
        pytest.skip("mounting a file system needs root")
    host = Host(tmp_path / "host")
    host.state_dir = folder / "state"
    try:
        channel = host.channel()
        digest = host.send_archive("payloads", {"run.sh": "#!/bin/sh\n"})
        start(channel, make_plan("t1.1.7", "sh", "-c", "chmod +x run.sh; exec ./run.sh", payload=digest))
        channel.wait_event("t1.1.7", "ended")
        start(channel, make_plan("t2.1.8", str(host.run_dir("t1.1.7") / "work" / "run.sh")))
        channel.wait_event("t2.1.8", "ended")
        exit_ = channel.event("t2.1.8", "exit")
        assert exit_ is not None
        assert f"The file system at {folder} is mounted with noexec: use 'bash run.sh'" in exit_["error"]["message"]
    finally:
        host.clean()
        os.system(f"umount -l {folder}")


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


def test_a_rank_gets_what_describes_its_host_and_a_probe_names_the_rest(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    described = {"https_proxy": "http://proxy:3128", "SSL_CERT_FILE": "/certs", "HF_HOME": "/hf", "NCCL_IB_HCA": "mlx5"}
    host.env = {"PATH": os.environ["PATH"], **described, "LC_ALL": "de_DE.ISO-8859-1", "MINE": "1", "TERM": "dumb"}
    script = "import json, os; print(json.dumps(dict(os.environ)) + '\\n\\u2192', flush=True)"
    try:
        channel = host.channel()
        assert channel.call("probe")["withheld_variables"] == ["MINE"]
        start(channel, make_plan("t1.1.7", "python", "-c", script, env={"HF_HOME": "/from/the/plan"}))
        channel.wait_event("t1.1.7", "ended")
        first, arrow, _ = channel.stream("t1.1.7", "rank0.log").decode().split("\n")
    finally:
        host.clean()
    env = json.loads(first)
    assert {name: env.get(name) for name in described} == {**described, "HF_HOME": "/from/the/plan"}
    assert (arrow, "MINE" in env, "TERM" in env) == ("\u2192", False, False)


def test_a_rank_whose_environment_linux_refuses_names_the_largest_variables(host: Host) -> None:
    channel = host.channel()
    env = {f"LONG_{number:02}": "x" * (100_000 + number) for number in range(80)}
    start(channel, make_plan("t1.1.7", "python", "-c", "pass", env=env))
    channel.wait_event("t1.1.7", "ended")
    (end,) = [one for one in channel.events("t1.1.7", "supervisor.events") if one["kind"] == "exit"]
    assert end["exit_code"] == 127
    assert (
        "The largest are variable LONG_79 (100,087 bytes), variable LONG_78 (100,086 bytes)" in end["error"]["message"]
    )
    assert "xxx" not in end["error"]["message"]


def test_a_requested_stop_is_a_file_that_ranks_see(host: Host) -> None:
    channel = host.channel()
    loop = 'while [ ! -e "$DTRAIN_RUN_DIR/stop_requested" ]; do sleep 0.02; done'
    start(channel, make_plan("t1.1.7", "sh", "-c", loop))
    channel.call("request_stop", run="t1.1.7")
    assert channel.wait_event("t1.1.7", "ended")["reason"] == "completed"


@pytest.mark.nightly
def test_files_travel_there_and_back(host: Host) -> None:
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
        script = "yes | head -c 5000; cat /dev/zero > fill; exit 3"
        start(channel, make_plan("t1.2.7", "sh", "-c", script), logs="none")
        assert channel.wait_event("t1.2.7", "ended")["reason"] == "failed"
        exit_ = channel.event("t1.2.7", "exit")
        assert exit_ is not None
        assert exit_["exit_code"] == 3
    finally:
        host.clean()
        os.system(f"umount -l {tmp_path}/full")
