"""Processes that outlive a supervisor, its reaper, or both, and how a fence answers for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.payload import supervisor
from testbed.netns import NamespaceHosts
from testbed.programs import unpack
from tests.support.supervisor_host import (
    SLEEP,
    Channel,
    Host,
    Refusal,
    is_alive,
    make_plan,
    start,
    until,
)

pytest_plugins = ["testbed.netns.plugin"]

RUN = "t1.1.7"
#: Prints the pid of a grandchild that has nothing of its run: no environment, no descriptor, no session, no parent.
LEAK = (
    "python", "-c",
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print(os.getpid(), flush=True)\n"
    "        os.closerange(0, 256)\n"
    "        os.execve('/bin/sleep', ['sleep', '1000'], {})\n"
    "    os._exit(0)\n"
    "time.sleep(1000)\n",
)  # fmt: skip
#: The same, but for the session of its rank.
LEAK_IN_SESSION = (*LEAK[:2], LEAK[2].replace("    os.setsid()\n", ""))


@pytest.fixture
def leaks() -> Iterator[list[int]]:
    found: list[int] = []
    yield found
    for pid in found:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def leak(channel: Channel, leaks: list[int], run: str = RUN, argv: tuple[str, ...] = LEAK, slot: int = 0) -> int:
    """Start a run that leaks a process, and return its pid once it runs ``sleep``."""
    plan = make_plan(run, *argv)
    plan["ranks"][0]["slot"] = slot
    start(channel, plan)
    pid = int(channel.wait(lambda: channel.stream(run, "rank0.log")))
    leaks.append(pid)
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the leaked process")
    return pid


def test_what_a_killed_supervisor_leaves_is_ended_by_its_reaper_before_fence_answers_clear(
    account: Callable[..., Host], leaks: list[int]
) -> None:
    host = account()
    channel = host.channel()
    pid = leak(channel, leaks)
    os.kill(host.supervisor_pid(RUN), signal.SIGKILL)
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert not is_alive(pid)
    assert not is_alive(host.reaper_pid(RUN))


def test_root_without_a_cgroup_loses_nothing_by_a_killed_supervisor(tmp_path: Path, leaks: list[int]) -> None:
    host = Host(tmp_path / "host", cgroup=False)
    try:
        channel = host.channel()
        pid = leak(channel, leaks)
        os.kill(host.supervisor_pid(RUN), signal.SIGKILL)
        assert channel.wait_event(RUN, "ended")["reason"] == "lost"
        assert not is_alive(pid)
    finally:
        host.clean()


@pytest.mark.parametrize("argv", [LEAK, LEAK_IN_SESSION], ids=["own session", "session of its rank"])
def test_what_outlives_supervisor_and_reaper_is_named_and_not_clear_until_it_has_ended(
    account: Callable[..., Host], leaks: list[int], argv: tuple[str, ...]
) -> None:
    host = account()
    channel = host.channel()
    pid = leak(channel, leaks, argv=argv)
    host.kill_parents(RUN)

    def survivors() -> list[tuple[int, str]]:
        found = channel.call("fence", run=RUN, token=7, wait_s=0.1)
        assert found["clear"] is False
        return [(one["pid"], one["command"]) for one in found["survivors"]]

    # The rank itself may take a moment to die with its supervisor.
    until(lambda: survivors() == [(pid, "sleep 1000")], "the leaked process as the only survivor")
    assert is_alive(pid), "what is only suspected is not killed"
    assert channel.call("status")["slots"]["0"]["held_by"] == RUN
    with pytest.raises(Refusal, match="slot_busy"):
        channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "the end of the leaked process")
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert channel.call("status")["slots"]["0"]["held_by"] is None
    assert channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})["state"] == "prepared"


def test_followers_learn_of_a_lost_run_although_something_of_it_lives(
    account: Callable[..., Host], leaks: list[int]
) -> None:
    host = account()
    channel = host.channel()
    pid = leak(channel, leaks)
    host.kill_parents(RUN)
    assert channel.wait_event(RUN, "ended")["reason"] == "lost"
    assert not (host.run_dir(RUN) / "ended").exists()
    os.kill(pid, signal.SIGKILL)
    until((host.run_dir(RUN) / "ended").exists, "the record of the end")


def test_a_reaper_that_is_stopped_is_woken_by_the_fence(account: Callable[..., Host], leaks: list[int]) -> None:
    host = account()
    channel = host.channel()
    pid = leak(channel, leaks)
    os.kill(host.reaper_pid(RUN), signal.SIGSTOP)
    os.kill(host.supervisor_pid(RUN), signal.SIGKILL)
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert not is_alive(pid)


def test_a_run_whose_reaper_is_killed_goes_on_to_its_end(account: Callable[..., Host]) -> None:
    host = account()
    channel = host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    os.kill(host.reaper_pid(RUN), signal.SIGKILL)
    assert channel.call("status")["runs"][RUN]["state"] == "running"
    channel.call("stop", run=RUN, grace_s=5)
    assert channel.wait_event(RUN, "ended")["reason"] == "stopped"


def test_the_reaper_ends_with_its_run_and_ignores_the_signals_of_a_shutdown(account: Callable[..., Host]) -> None:
    host = account()
    channel = host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    reaper = host.reaper_pid(RUN)
    os.kill(reaper, signal.SIGTERM)
    os.kill(reaper, signal.SIGHUP)
    assert sorted(os.listdir(f"/proc/{reaper}/fd"), key=int) == ["0", "1", "2"]
    channel.call("stop", run=RUN, grace_s=5)
    channel.wait_event(RUN, "ended")
    until(lambda: not is_alive(reaper), "the end of the reaper")
    assert not (host.run_dir(RUN) / "swept").exists(), "the supervisor has said itself that nothing is left"


def test_other_runs_and_what_the_user_started_otherwise_are_no_survivors(
    account: Callable[..., Host], leaks: list[int]
) -> None:
    host = account()
    other = account("other", lock_dir=host.lock_dir)
    # Inherited by the same process as the leaks of a run, but older than the run.
    command = ["sh", "-c", "setsid sleep 1001 >&- 2>&- & echo $!"]
    leaks.append(int(subprocess.run(command, capture_output=True, **host.account).stdout))
    channel, second = host.channel(), other.channel()
    start(channel, make_plan(RUN, *SLEEP))
    # A run in the same folder, one of another folder of the same account, and a program of the user.
    leak(channel, leaks, "t2.1.8", slot=1)
    leak(second, leaks, "t3.1.9", slot=2)
    shell = subprocess.Popen(["sleep", "1000"], start_new_session=True, **host.account)
    try:
        host.kill_parents(RUN)
        assert channel.call("fence", run=RUN, token=7)["clear"] is True
        assert all(is_alive(pid) for pid in [*leaks, shell.pid])
    finally:
        shell.kill()
        shell.wait()


def roles(host: Host) -> set[int]:
    """Return the living processes of this program for a host's folders."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.fsencode(host.state_dir) in (entry / "cmdline").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return {pid for pid in found if is_alive(pid)}


@pytest.mark.parametrize("is_late", [False, True], ids=["attached", "refused"])
def test_the_reaper_of_a_start_that_did_not_start_the_run_proves_nothing_about_it(
    account: Callable[..., Host], leaks: list[int], is_late: bool
) -> None:
    host = account()
    channel = host.channel()
    pid = leak(channel, leaks)

    def start_again() -> None:
        before = roles(host)
        with suppress(Refusal):
            channel.call("prepare", plan=make_plan(RUN, *LEAK), secrets={})
        until(lambda: roles(host) <= before, "the end of the second reaper")

    if not is_late:
        start_again()
    host.kill_parents(RUN)
    if is_late:
        channel.call("fence", run=RUN, token=7, wait_s=0.1)
        start_again()
    until(lambda: not host.processes(RUN), "the end of the rank")
    found = channel.call("fence", run=RUN, token=7, wait_s=0.1)
    assert is_alive(pid)
    assert (found["clear"], [one["pid"] for one in found.get("survivors", ())]) == (False, [pid])


def test_a_process_that_starts_after_the_end_of_a_run_is_not_a_suspect_of_it(
    account: Callable[..., Host], leaks: list[int]
) -> None:
    host = account()
    channel = host.channel()
    start(channel, make_plan(RUN, "true"))
    channel.wait_event(RUN, "ended")
    parents = host.supervisor_pid(RUN), host.reaper_pid(RUN)
    until(lambda: not any(map(is_alive, parents)), "the end of supervisor and reaper")
    command = ["sh", "-c", "setsid sleep 1001 >&- 2>&- & echo $!"]
    leaks.append(int(subprocess.run(command, capture_output=True, **host.account).stdout))
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert is_alive(leaks[0])


@pytest.mark.nightly
@pytest.mark.netns
def test_root_on_a_machine_of_its_own_without_cgroups_learns_what_outlives_supervisor_and_reaper(
    hosts: NamespaceHosts,
) -> None:
    host = hosts.host(0)
    program = unpack(supervisor(), host.home)

    def role(*arguments: str, given: str = "") -> Any:
        command = ["env", "DTRAIN_NO_CGROUP=1", sys.executable, str(program), *arguments]
        done = host.exec(command, stdin=given.encode(), timeout_s=60)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    answer = role("start", RUN, given=json.dumps(make_plan(RUN, *LEAK)))
    assert answer["state"] == "running", answer
    state = next((host.folder / "var-tmp").glob("dtrain-0/*/runs"))
    (state / RUN / "rank0" / "log").touch()
    pid = int(until(lambda: (state / RUN / "rank0" / "log").read_text(), "the leak"))
    known = json.loads((state / RUN / "supervisor.json").read_text())
    assert role("probe")["lock_dir"] == "/run/lock"
    host.exec(["kill", "-9", str(known["reaper"]["pid"]), str(known["pid"])])
    until(
        lambda: [one["pid"] for one in role("fence", RUN, "7", "--wait-s", "0.1")["survivors"]] == [pid], "the survivor"
    )
    host.exec(["kill", "-9", str(pid)])
    assert role("fence", RUN, "7")["clear"] is True
