"""Runs whose ranks are in a container of podman."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.payload import library
from testbed.containers import IMAGE, WITHOUT_PYTHON, container_argv, settings
from tests.support.containers import need_podman
from tests.support.supervisor_host import DETACHED, SLEEP, Host, Refusal, is_alive, make_plan, start, until

# Most of it is tested with a stand-in, which is faster.
pytestmark = pytest.mark.nightly
RUN = "t1.1.7"


@pytest.fixture
def podman(host: Host) -> Iterator[Host]:
    """A host with podman."""
    need_podman()
    host.env |= settings()
    yield host
    label = f"label=dtrain.run={host.run_dir(RUN)}"
    ids = listed(label)
    if ids:
        run_podman("rm", "--force", "--time", "0", *ids)


def run_podman(*arguments: str) -> str:
    argv, env = ["podman", *arguments], os.environ | settings()
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def listed(label: str) -> list[str]:
    return run_podman("ps", "--all", "--quiet", "--filter", label).split()


def containers_of(host: Host, run: str = RUN) -> list[str]:
    return listed(f"label=dtrain.run={host.run_dir(run)}")


def contained(
    host: Host, *argv: str, options: tuple[str, ...] = (), modules: Any = (), **changes: Any
) -> dict[str, Any]:
    image, python = changes.pop("image", IMAGE), changes.pop("image_python", "python3")
    run = changes.pop("run", RUN)
    command = container_argv(host.state_dir, run, *options, image=image, python=python)
    container = {"runtime": "podman", "argv": command, "modules": list(modules), **changes.pop("container", {})}
    return make_plan(run, *argv, container=container, **changes)


def clients(host: Host, run: str) -> list[int]:
    """Return the processes of podman's command for a run, which is that of its container as well."""
    label = f"dtrain.run={host.run_dir(run)}".encode()
    lines = {int(entry.name): entry / "cmdline" for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = []
    for pid, line in lines.items():
        with suppress(OSError):
            words = line.read_bytes().split(b"\0")
            found += [pid] if label in words and b"run" in words else []
    return found


@pytest.mark.each_change
def test_ranks_of_a_container_run_from_plan_to_end(podman: Host) -> None:
    channel = podman.channel()
    facts = "[dict(os.environ), os.getcwd(), os.getpid(), os.getuid()]"
    script = f"import os, json; open('made', 'w'); print(json.dumps({facts}))"
    answer = start(channel, contained(podman, "python", "-c", script, ranks=2), secrets={"PASSWORD": "hidden"})
    assert answer["image"]["executable"] == "/usr/local/bin/python3"
    assert channel.wait_event(RUN, "ended")["reason"] == "completed"
    kinds = [event["kind"] for event in channel.events(RUN)]
    assert kinds == ["prepared", "started", "exit", "exit", "ended"]
    env, folder, pid, uid = json.loads(channel.stream(RUN, "rank1.log"))
    run_dir = podman.run_dir(RUN)
    assert (env["RANK"], env["PASSWORD"], env["OF_IMAGE"], env["DTRAIN_RUN_DIR"]) == ("1", "hidden", "1", str(run_dir))
    assert (folder, uid) == (f"{run_dir}/work", os.getuid())
    assert pid < 50
    found = (run_dir / "work/made").stat()
    assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    assert not containers_of(podman)
    assert not (run_dir / "container.json").exists()
    assert "hidden" not in "".join(file.read_text(errors="replace") for file in run_dir.glob("*.json"))


def test_a_failed_rank_ends_the_others_and_its_traceback_is_reported(podman: Host) -> None:
    channel = podman.channel()
    script = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('wrong')\ntime.sleep(1000)"
    start(channel, contained(podman, "python", "-c", script, ranks=2))
    ended = channel.wait_event(RUN, "ended")
    assert (ended["reason"], ended["first_failure"]) == ("failed", 1)
    exits = {event["rank"]: event for event in channel.events(RUN) if event["kind"] == "exit"}
    assert (exits[1]["exit_code"], exits[1]["error"]["message"]) == (1, "ValueError: wrong")
    assert (exits[0]["exit_code"], exits[0]["sent_signal"]) == (-signal.SIGTERM, True)


@pytest.mark.each_change
def test_processes_that_ranks_leave_end_with_the_container(podman: Host) -> None:
    channel = podman.channel()
    start(channel, contained(podman, *DETACHED, grace_s=0.2))
    channel.wait(lambda: b"ready" in channel.stream(RUN, "rank0.log"))
    until(lambda: len(podman.processes(RUN)) == 3, "the rank, its child and the process of the container")
    channel.call("stop", run=RUN)
    assert channel.wait_event(RUN, "ended")["reason"] == "stopped"
    assert not podman.processes(RUN)
    assert not containers_of(podman)


def test_a_container_that_ends_fails_the_run_with_its_cause(podman: Host) -> None:
    channel = podman.channel()
    start(channel, contained(podman, *SLEEP))
    run_podman("kill", *containers_of(podman))
    assert channel.wait_event(RUN, "ended")["reason"] == "failed"
    event = channel.event(RUN, "exit")
    assert event is not None
    assert "podman ended the container (exit code 137)" in event["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": "localhost/dtrain-compiled:missing"}, "dtrain-compiled:missing: image not known"),
        ({"image": WITHOUT_PYTHON}, 'executable file `python3` not found|exec: "python3": executable file not found'),
        ({"options": ("--mount", "type=bind,source=/does/not/exist,target=/data")}, "/does/not/exist"),
    ],
)
def test_an_image_that_cannot_be_used_refuses_the_start(podman: Host, changes: Any, message: str) -> None:
    channel = podman.channel()
    with pytest.raises(Refusal, match=message) as caught:
        channel.call("prepare", plan=contained(podman, *SLEEP, **changes), secrets={})
    assert caught.value.code == "container"
    assert not podman.run_dir(RUN).exists()
    assert not containers_of(podman)
    # The slot is free.
    assert start(channel, make_plan("t1.2.8", "sh", "-c", "true"))["state"] == "prepared"


@pytest.mark.each_change
@pytest.mark.parametrize("victims", ["both", pytest.param("supervisor", marks=pytest.mark.nightly)])
def test_a_killed_supervisor_leaves_no_container(podman: Host, victims: str) -> None:
    channel = podman.channel()
    start(channel, contained(podman, *DETACHED))
    channel.wait(lambda: b"ready" in channel.stream(RUN, "rank0.log"))
    if victims == "both":
        podman.kill_parents(RUN)
    else:
        os.kill(podman.supervisor_pid(RUN), signal.SIGKILL)
    answer = channel.call("fence", run=RUN, token=7, wait_s=30)
    assert answer["clear"], answer
    assert not containers_of(podman)
    assert not podman.processes(RUN)


@pytest.mark.parametrize("victim", ["supervisor", "both", "podman"])
def test_a_kill_at_any_moment_of_a_start_leaves_nothing(podman: Host, victim: str) -> None:
    deadline = time.monotonic() + 150
    for number in range(12):
        run = f"t1.1.{number + 7}"
        channel = podman.channel()
        key = channel.post("prepare", plan=contained(podman, *SLEEP, run=run), secrets={})
        until(lambda run=run: (podman.run_dir(run) / "container.json").exists(), "the start")  # type: ignore[misc]
        # From the call of podman to the first process, a start takes half a second.
        select.select([], [], [], 0.05 * number)
        if victim == "podman":
            for pid in clients(podman, run):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif victim == "both":
            podman.kill_parents(run)
        else:
            os.kill(podman.supervisor_pid(run), signal.SIGKILL)
        with suppress(Refusal):
            channel.answer(key)
        # A container that is about to start is found by the next fence.
        while not channel.call("fence", run=run, token=number + 7, wait_s=30)["clear"]:
            assert time.monotonic() < deadline
        assert not containers_of(podman, run)
        assert not podman.processes(run)
        assert channel.call("status")["slots"]["0"]["held_by"] is None
    channel = podman.channel()
    start(channel, contained(podman, "sh", "-c", "true", run="t1.1.99"))
    assert channel.wait_event("t1.1.99", "ended")["reason"] == "completed"


def test_a_fence_ends_a_container_whose_first_process_is_stopped(podman: Host) -> None:
    channel = podman.channel()
    start(channel, contained(podman, *SLEEP))
    first = json.loads((podman.run_dir(RUN) / "container.json").read_text())["first"]["pid"]
    os.kill(first, signal.SIGSTOP)
    podman.kill_parents(RUN)
    answer = channel.call("fence", run=RUN, token=7, wait_s=30)
    assert answer["clear"], answer
    assert not is_alive(first)
    assert not containers_of(podman)


def test_the_slot_stays_taken_while_the_container_lives(podman: Host) -> None:
    channel = podman.channel()
    start(channel, contained(podman, *SLEEP))
    first = json.loads((podman.run_dir(RUN) / "container.json").read_text())["first"]["pid"]
    os.kill(first, signal.SIGSTOP)
    podman.kill_parents(RUN)
    other = make_plan("t2.1.9", *SLEEP)
    with pytest.raises(Refusal, match="slot_busy"):
        channel.call("prepare", plan=other, secrets={})
    assert channel.call("fence", run=RUN, token=7, wait_s=30)["clear"]
    assert channel.call("prepare", plan=other, secrets={})["state"] == "prepared"
    channel.call("fence", run="t2.1.9", token=9)


def test_a_command_runs_beside_a_rank_in_its_container(podman: Host) -> None:
    channel = podman.channel()
    start(channel, contained(podman, *SLEEP, ranks=2))
    argv = ["sh", "-c", "echo $OF_IMAGE $RANK $(id -u) $PWD; sleep 1000 & exit 3"]
    answer = channel.call("exec", run=RUN, rank=1, argv=argv, limit_s=30)
    assert (answer["exit_code"], answer["output"]) == (3, f"1 1 {os.getuid()} {podman.run_dir(RUN)}/work\n")
    assert answer["killed"] == 1
    late = channel.call("exec", run=RUN, rank=0, argv=["sleep", "1000"], limit_s=0.3)
    assert late["timed_out"]
    assert len(podman.processes(RUN)) == 3
    with pytest.raises(Refusal, match="not_running"):
        channel.call("exec", run=RUN, rank=5, argv=["true"], limit_s=1)


#: Starts ranks 0 and 1 in sessions of their own, as torchrun does. Rank 1 is in a pid namespace with other pids.
LAUNCHER = """
import os, subprocess, sys
worker = '''
import time
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.process import stacks, worker
env = RankEnvironment.read()
worker.begin(env.events_path.parent, env.launcher_log)
stacks.install(env.events_path)
def waits_here():
    time.sleep(1000)
print("joined", flush=True)
waits_here()
'''
started = []
for rank in ("0", "1"):
    env = {**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
    started.append(subprocess.Popen([sys.executable, "-c", worker], env=env, start_new_session=True))
sys.exit(started[1].wait())
"""


@pytest.mark.each_change
def test_ranks_that_a_launcher_starts_in_a_container_are_found_by_their_pids_there(podman: Host) -> None:
    channel = podman.channel()
    packed = library()
    assert podman.command("receive", "libraries", packed.digest, stdin=packed.content)[0] == 0
    folder = podman.remote_dir / "libraries"
    options = ("--mount", f"type=bind,source={folder},target={folder},ro")
    plan = contained(
        podman, "python", "-c", LAUNCHER, options=options, library=packed.digest, ranks=2, per_host=True, grace_s=5
    )
    start(channel, plan)
    channel.wait(lambda: all(b"joined" in channel.stream(RUN, f"rank{rank}.log") for rank in (0, 1)))
    written = [json.loads((podman.run_dir(RUN) / f"rank{rank}/worker.json").read_text()) for rank in (0, 1)]
    report = channel.wait(
        lambda: next((f for f in reversed(channel.frames) if f["t"] == "progress" and len(f["ranks"]) == 2), None)
    )
    for answer in (report, channel.call("stacks", run=RUN)):
        found = [one["pid"] for one in answer["ranks"]]
        assert all(pid > one["pid"] for pid, one in zip(found, written, strict=True))
        inside = [Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0] for pid in found]
        assert [int(pids.split()[1]) for pids in inside] == [one["pid"] for one in written]
    assert all("waits_here" in one["text"] for one in answer["ranks"])
    beside = channel.call("exec", run=RUN, rank=1, argv=["sh", "-c", "echo $RANK $OF_IMAGE"], limit_s=30)
    assert (beside["exit_code"], beside["output"]) == (0, "1 1\n")
    os.kill(found[1], signal.SIGKILL)
    assert channel.wait_event(RUN, "ended")["reason"] == "failed"
    assert not podman.processes(RUN)


def test_modules_of_the_image_are_reported(podman: Host) -> None:
    channel = podman.channel()
    library = podman.send_archive("libraries", {"of_library.py": ""})
    folder = podman.remote_dir / "libraries"
    options = ("--mount", f"type=bind,source={folder},target={folder},ro")
    plan = contained(
        podman, "python", "-c", "import of_library", options=options, library=library,
        container={"modules": ["json", "torch", "of_library"]},
    )  # fmt: skip
    answer = start(channel, plan)
    assert answer["image"]["modules"] == {"json": "unknown", "torch": None, "of_library": "unknown"}
    assert channel.wait_event(RUN, "ended")["reason"] == "completed"
