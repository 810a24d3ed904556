"""Containers of a daemon, which are in no process tree of the supervisor: a stand-in for docker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.containers import container_argv
from tests.support.stand_in_runtime import docker
from tests.support.supervisor_host import DETACHED, SLEEP, Host, Refusal, is_alive, make_plan, start, until

RUN = "t1.1.7"


@pytest.fixture
def daemon(host: Host, tmp_path: Path) -> Iterator[Path]:
    """The folder of a runtime that ``host`` has."""
    with docker(tmp_path / "runtime") as folder:
        host.env["PATH"] = f"{folder}:{host.env['PATH']}"
        yield folder


def contained(host: Host, *argv: str, run: str = RUN, image: str = "image", **changes: Any) -> dict[str, Any]:
    command = container_argv(host.state_dir, run, image=image, runtime="docker")
    return make_plan(run, *argv, container={"runtime": "docker", "argv": command}, **changes)


def calls(daemon: Path) -> list[str]:
    return [json.loads(line)[0] for line in (daemon / "calls").read_text().splitlines()]


def first_process(host: Host, run: str = RUN) -> int:
    pid: int = json.loads((host.run_dir(run) / "container.json").read_text())["first"]["pid"]
    return pid


def test_a_run_goes_from_plan_to_end(host: Host, daemon: Path) -> None:
    channel = host.channel()
    plan = contained(host, "sh", "-c", "echo $OF_IMAGE $RANK; test $RANK = 0", ranks=2)
    start(channel, plan)
    ended = channel.wait_event(RUN, "ended")
    assert (ended["reason"], ended["first_failure"]) == ("failed", 1)
    assert channel.stream(RUN, "rank1.log") == b"1 1\n"
    assert not (host.run_dir(RUN) / "container.json").exists()
    assert calls(daemon)[-1] == "ps"
    assert channel.call("fence", run=RUN, token=7)["clear"]


def test_a_stop_reaches_the_ranks_and_not_the_runtime(host: Host, daemon: Path) -> None:
    channel = host.channel()
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True)\n"
    script += "time.sleep(1000)"
    start(channel, contained(host, "python", "-c", script))
    channel.wait(lambda: b"ready" in channel.stream(RUN, "rank0.log"))
    channel.call("stop", run=RUN, grace_s=30)
    assert channel.wait_event(RUN, "exit")["exit_code"] == 7
    assert channel.wait_event(RUN, "ended")["reason"] == "stopped"


def test_a_missing_image_refuses_the_start_and_leaves_nothing(host: Host, daemon: Path) -> None:
    channel = host.channel()
    with pytest.raises(Refusal, match="Unable to find image") as caught:
        channel.call("prepare", plan=contained(host, *SLEEP, image="missing"), secrets={})
    assert (caught.value.code, caught.value.answer["status"]) == ("container", 125)
    assert not host.run_dir(RUN).exists()


def test_a_second_start_leaves_the_container_of_the_first_alone(host: Host, daemon: Path) -> None:
    channel = host.channel()
    plan = contained(host, *SLEEP, launch="one")
    start(channel, plan)
    assert channel.call("prepare", plan=plan, secrets={})["attached"]
    with pytest.raises(Refusal, match="other_launch"):
        channel.call("prepare", plan={**plan, "launch": "two"}, secrets={})
    assert is_alive(first_process(host))
    assert channel.call("fence", run=RUN, token=7)["clear"]


def test_the_daemons_processes_end_with_the_supervisor(host: Host, daemon: Path) -> None:
    channel = host.channel()
    start(channel, contained(host, *DETACHED))
    channel.wait(lambda: b"ready" in channel.stream(RUN, "rank0.log"))
    first = first_process(host)
    host.kill_parents(RUN)
    # A process that ends has no environment any longer, and is still there.
    until(lambda: not host.processes(RUN) and not is_alive(first), "the end of the container")
    assert channel.call("fence", run=RUN, token=7)["clear"]


def test_nothing_is_clear_before_the_runtime_has_confirmed_the_end(host: Host, daemon: Path) -> None:
    channel = host.channel()
    start(channel, contained(host, *SLEEP))
    (daemon / "keeps").touch()
    host.kill_parents(RUN)
    # Until then, another process of the host may try the same.
    doubts = until(lambda: channel.call("fence", run=RUN, token=7, wait_s=0.2).get("doubts"), "doubts")
    assert "docker has not ended container" in doubts[0]
    assert "did not receive an exit event" in doubts[0]
    assert channel.call("status")["slots"]["0"]["held_by"] == RUN
    with pytest.raises(Refusal, match="slot_busy"):
        channel.call("prepare", plan=make_plan("t2.1.9", *SLEEP), secrets={})
    (daemon / "keeps").unlink()
    until(lambda: channel.call("fence", run=RUN, token=7)["clear"], "clear")
    assert channel.call("status")["slots"]["0"]["held_by"] is None


@pytest.mark.parametrize("file", ["down", pytest.param("hang", marks=pytest.mark.nightly)])
def test_a_runtime_that_does_not_answer_keeps_the_slot_stuck(host: Host, daemon: Path, file: str) -> None:
    channel = host.channel()
    start(channel, contained(host, *SLEEP))
    (daemon / file).touch()
    channel.call("stop", run=RUN, grace_s=0)
    text = channel.wait_event(RUN, "warning")["text"]
    assert "docker cannot list its containers" in text
    assert channel.event(RUN, "ended") is None
    # The fence kills the supervisor, and asks the runtime itself.
    answer = channel.call("fence", run=RUN, token=7, wait_s=20 if file == "hang" else 6)
    assert not answer["clear"]
    (daemon / file).unlink()
    until(lambda: channel.call("fence", run=RUN, token=7)["clear"], "clear")
    assert not host.processes(RUN)


def test_a_supervisor_that_is_killed_while_its_container_starts_leaves_none(host: Host, daemon: Path) -> None:
    channel = host.channel()
    (daemon / "slow").touch()
    channel.post("prepare", plan=contained(host, *SLEEP), secrets={})
    until(lambda: (daemon / "calls").exists() and "run" in calls(daemon), "the start of the container")
    host.kill_parents(RUN)
    assert channel.call("fence", run=RUN, token=7)["clear"]
    (daemon / "slow").unlink()
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=contained(host, *SLEEP), secrets={})
    assert not host.processes(RUN)


def test_a_fence_ends_a_container_that_starts(host: Host, daemon: Path) -> None:
    channel = host.channel()
    (daemon / "slow").touch()
    key = channel.post("prepare", plan=contained(host, *SLEEP), secrets={})
    until(lambda: (daemon / "calls").exists() and "run" in calls(daemon), "the start of the container")
    assert channel.call("fence", run=RUN, token=7)["clear"]
    with pytest.raises(Refusal):
        channel.answer(key)
    assert not (host.run_dir(RUN) / "container.json").exists()


def test_a_killed_first_process_fails_the_run(host: Host, daemon: Path) -> None:
    channel = host.channel()
    start(channel, contained(host, *SLEEP, ranks=2))
    os.kill(first_process(host), signal.SIGKILL)
    ended = channel.wait_event(RUN, "ended")
    assert (ended["reason"], ended["first_failure"]) == ("failed", 0)
    error = channel.wait_event(RUN, "exit")["error"]["message"]
    assert "docker ended the container (exit code 137)" in error


def test_a_start_that_was_cut_off_is_repeated(host: Host, daemon: Path) -> None:
    channel = host.channel()
    plan = contained(host, *SLEEP)
    channel.call("prepare", plan=plan, secrets={})
    before = first_process(host)
    host.kill_parents(RUN)
    assert start(channel, plan)["attached"] is False
    assert first_process(host) != before
    channel.call("fence", run=RUN, token=7)
