"""Stacks of ranks by a real supervisor: ranks that join the library, that do not, that are stopped or native."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor import limits
from airflow_provider_dtrain.supervisor.run import profile_request as hosts_profile
from airflow_provider_dtrain.supervisor.run import stacks as hosts_side
from airflow_provider_dtrain.train.process import stacks as ranks_side
from airflow_provider_dtrain.train.reports import profiler as ranks_profiler
from tests.support.supervisor_host import SLEEP, Channel, Host, Refusal, make_plan, start

LIBRARY = str(Path(ranks_side.__file__).parents[3])
#: A rank without torch that installs the handler, and then does what the last lines say.
JOINED = (
    "import os, sys, threading, time\n"
    f"sys.path.insert(0, {LIBRARY!r})\n"
    "from pathlib import Path\n"
    "from airflow_provider_dtrain.train.process import stacks\n"
    "stacks.install(Path(os.environ['DTRAIN_EVENTS']))\n"
    "def deep(count):\n"
    "    return deep(count - 1) if count else work()\n"
)
WAITS = "def work():\n    open('ready' + os.environ['RANK'], 'w').close()\n    time.sleep(600)\n"
#: Holds the interpreter's lock in C for minutes: no other Python code can run.
NATIVE = (
    "import ctypes\n"
    "def work():\n"
    "    open('ready' + os.environ['RANK'], 'w').close()\n"
    "    ctypes.PyDLL(None).sleep(600)\n"
)


def launch(host: Host, code: str, *, ranks: int = 1) -> Channel:
    """Start ranks of a program, and return the channel once each is at its place."""
    channel = host.channel()
    start(channel, make_plan("t1.1.7", sys.executable, "-c", JOINED + code + "deep(3)\n", ranks=ranks))
    work = host.run_dir("t1.1.7") / "work"
    channel.wait(lambda: all((work / f"ready{rank}").exists() for rank in range(ranks)))
    return channel


def stacks(channel: Channel, **arguments: Any) -> dict[int, dict[str, Any]]:
    return {one["rank"]: one for one in channel.call("stacks", run="t1.1.7", **arguments)["ranks"]}


def pids(channel: Channel) -> dict[int, int]:
    return {entry["rank"]: entry["pid"] for entry in channel.wait_event("t1.1.7", "started")["ranks"]}


def test_both_sides_agree_on_signal_and_file() -> None:
    assert (hosts_side.STACK_SIGNAL, hosts_side.STACK_FILE) == (ranks_side.STACK_SIGNAL, ranks_side.STACK_FILE)


def test_running_ranks_write_their_stacks_again_and_again(host: Host) -> None:
    channel = launch(host, WAITS, ranks=2)
    for _ in range(3):
        found = stacks(channel)
        assert set(found) == {0, 1}
        for one in found.values():
            assert one["problem"] == ""
            assert one["text"].count("in deep") == 4
            assert one["text"].count("(most recent call first)") == 1, "the former answer is gone"
    assert set(stacks(channel, ranks=[1])) == {1}
    with pytest.raises(Refusal, match="not_running"):
        stacks(channel, ranks=[7])
    assert channel.event("t1.1.7", "exit") is None


def test_a_rank_in_native_code_that_holds_the_interpreter_answers(one_host: Host) -> None:
    assert "in work" in stacks(launch(one_host, NATIVE))[0]["text"]


@pytest.mark.nightly
def test_a_rank_that_cannot_answer_is_named_with_the_reason(one_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = launch(one_host, WAITS, ranks=2)
    stopped = pids(channel)[1]
    os.kill(stopped, signal.SIGSTOP)
    found = stacks(channel)
    assert "in work" in found[0]["text"]
    assert found[1]["text"] == ""
    assert "it is stopped by a signal (state T)" in found[1]["problem"]
    os.kill(stopped, signal.SIGCONT)
    assert "in work" in stacks(channel)[1]["text"]


def test_a_program_without_the_library_gets_no_signal(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    pid = pids(channel)[0]
    found = stacks(channel)[0]
    assert "has not joined the training library" in found["problem"]
    # A file of the user does not make it a rank with a handler, which the signal would not end.
    (one_host.run_dir("t1.1.7") / "rank0" / "stacks").write_text("mine")
    assert "has not joined" in stacks(channel)[0]["problem"]
    os.kill(pid, 0)


def test_ranks_that_joined_are_asked_for_a_trace_by_a_file(host: Host) -> None:
    channel = launch(host, WAITS, ranks=2)
    path = host.run_dir("t1.1.7") / ranks_profiler.REQUEST
    answer = channel.call("profile", run="t1.1.7", ranks=[1, 0, 7], batches=4, with_stack=True)
    assert answer["ranks"] == [{"rank": 0, "problem": ""}, {"rank": 1, "problem": ""}]
    written = json.loads(path.read_text())
    assert {name: written[name] for name in ("ranks", "batches", "with_stack")} == {
        "ranks": [0, 1],
        "batches": 4,
        "with_stack": True,
    }
    os.kill(pids(channel)[1], signal.SIGKILL)
    channel.wait_event("t1.1.7", "exit")
    with pytest.raises(Refusal, match="not_running"):
        channel.call("profile", run="t1.1.7", ranks=[7], batches=4)
    for fields in (
        {"ranks": [], "batches": 1},
        {"ranks": ["0"], "batches": 1},
        {"ranks": [0], "batches": 101},
        {"ranks": [0]},
    ):
        with pytest.raises(Refusal):
            channel.call("profile", run="t1.1.7", **fields)


def test_a_program_without_the_library_records_nothing_and_no_file_is_written(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    channel.wait_event("t1.1.7", "started")
    (found,) = channel.call("profile", run="t1.1.7", ranks=[0], batches=1)["ranks"]
    assert "has not joined the training library" in found["problem"]
    assert not (one_host.run_dir("t1.1.7") / ranks_profiler.REQUEST).exists()


def test_both_sides_agree_on_the_file_of_a_request_for_a_trace() -> None:
    assert hosts_profile.PROFILE_FILE == ranks_profiler.REQUEST
    assert limits.PROFILED_MOST == ranks_profiler.MOST_BATCHES


def test_a_file_that_is_no_file_is_not_opened(one_host: Host) -> None:
    channel = launch(one_host, WAITS)
    path = one_host.run_dir("t1.1.7") / "rank0" / "stacks"
    secret = one_host.run_dir("t1.1.7") / "secret"
    secret.write_text("secret")
    for replace in (lambda: os.mkfifo(path), lambda: path.symlink_to(secret), path.mkdir):
        path.rmdir() if path.is_dir() else path.unlink()
        replace()
        found = stacks(channel)[0]
        assert found["problem"]
        assert found["text"] == ""
    assert secret.read_text() == "secret"


def test_a_long_text_is_cut(one_host: Host) -> None:
    many = (
        "def work():\n"
        "    for _ in range(90):\n"
        "        threading.Thread(target=wait, args=(60,), daemon=True).start()\n"
        "    time.sleep(0.5)\n"
        "    open('ready' + os.environ['RANK'], 'w').close()\n"
        "    time.sleep(600)\n"
        "def wait(count):\n"
        "    return wait(count - 1) if count else time.sleep(600)\n"
    )
    text = stacks(launch(one_host, many))[0]["text"]
    assert text.endswith("... (cut)")
    assert limits.STACK_BYTES <= len(text) < 65_536


def test_fields_of_another_kind_are_refused(one_host: Host) -> None:
    channel = launch(one_host, WAITS)
    for wrong in ([True], ["0"], "0", [[]]):
        with pytest.raises(Refusal, match="bad_plan"):
            stacks(channel, ranks=wrong)
