"""Commands in the environment of a rank, by a real supervisor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_dtrain.supervisor.limits import EXEC_BYTES
from tests.support.supervisor_host import SLEEP, Channel, Host, Refusal, make_plan, start, until

RUN = "t1.1.7"
#: Seconds that processes of these tests sleep. A process that another run left behind has another number.
LONG_S = f"6{os.getpid():09}.25"


@pytest.fixture
def channel(one_host: Host) -> Channel:
    """A channel to a host on which a rank sleeps."""
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP, env={"OWN": "yes", "DTRAIN_SECRETS": "{}"}))
    channel.wait_event(RUN, "started")
    return channel


def run(channel: Channel, *argv: str, timeout_s: float = 60, rank: int = 0) -> Any:
    return channel.call("exec", run=RUN, rank=rank, argv=list(argv), limit_s=timeout_s)


def python(channel: Channel, code: str, **more: Any) -> Any:
    return run(channel, sys.executable, "-c", code, **more)


def is_running(mark: str) -> bool:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.info["cmdline"] or ()))
    return any(mark in one and "exec" not in one for one in found)


def test_a_command_has_the_environment_and_folder_of_its_rank(channel: Channel, one_host: Host) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['OWN'], os.environ['RANK'], 'DTRAIN_SECRETS' in os.environ)"
    found = python(channel, code + "; print('problem', file=sys.stderr); sys.exit(3)")
    lines = sorted(found["output"].splitlines())
    assert lines == sorted([f"{(one_host.run_dir(RUN) / 'work').resolve()} yes 0 False", "problem"])
    assert (found["exit_code"], found["timed_out"], found["killed"]) == (3, False, 0)
    assert found["size_bytes"] == len(found["output"])
    assert python(channel, "import os; os.kill(os.getpid(), 9)")["exit_code"] == -9
    absent = run(channel, "no-such-program")
    assert absent["exit_code"] == 127
    assert "cannot execute 'no-such-program': No such file" in absent["output"]
    assert channel.event(RUN, "exit") is None


def test_a_long_output_is_cut_and_counted(channel: Channel) -> None:
    found = python(channel, "import os\nfor _ in range(300): os.write(1, b'\\0' * 10000)")
    assert (found["exit_code"], found["size_bytes"], len(found["output"])) == (0, 3_000_000, EXEC_BYTES)


def test_a_command_that_never_ends_is_killed_in_time(channel: Channel) -> None:
    found = python(channel, f"import time; print('begun', flush=True); time.sleep({LONG_S})", timeout_s=2)
    assert (found["exit_code"], found["timed_out"], found["output"], found["killed"]) == (None, True, "begun\n", 1)
    assert not is_running(LONG_S)


def test_processes_that_a_command_leaves_behind_are_killed(channel: Channel) -> None:
    code = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        f"            time.sleep({LONG_S})\n"
        "        os._exit(0)\n"
        "time.sleep(0.5)\n"
        "print('done')\n"
    )
    started = time.monotonic()
    found = python(channel, code)
    assert (found["exit_code"], found["output"]) == (0, "done\n")
    assert found["killed"] >= 3
    assert time.monotonic() - started < 40
    assert not is_running(LONG_S)


def test_a_command_ends_with_the_channel_that_requested_it(one_host: Host, channel: Channel) -> None:
    other = one_host.channel()
    mark = Path(one_host.run_dir(RUN) / "work" / "begun")
    code = f"import os, time; open('begun', 'w').close(); os.fork(); time.sleep({LONG_S})"
    other.post("exec", run=RUN, rank=0, argv=[sys.executable, "-c", code], limit_s=600)
    until(mark.exists)
    other.close()
    until(lambda: not is_running(LONG_S))
    assert run(channel, "true")["exit_code"] == 0


#: A command whose process outlives it, in a session of its own and without the environment of its rank.
HIDDEN = (
    "import os, sys, time\n"
    "open('begun', 'w').close()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    f"    os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep({LONG_S})'], {{}})\n"
    f"time.sleep({LONG_S})\n"
)


def hidden(channel: Channel, one_host: Host) -> None:
    """Start a command that hides a process, and return once it runs."""
    channel.post("exec", run=RUN, rank=0, argv=[sys.executable, "-c", HIDDEN], limit_s=600)
    until((one_host.run_dir(RUN) / "work" / "begun").exists)


def test_a_command_ends_with_its_rank(channel: Channel, one_host: Host) -> None:
    hidden(channel, one_host)
    [rank] = channel.event(RUN, "started")["ranks"]
    os.kill(rank["pid"], 9)
    until(lambda: not is_running(LONG_S))


@pytest.mark.parametrize("kills_helper", [False, True])
def test_a_fence_is_clear_only_without_processes_of_commands(
    channel: Channel, one_host: Host, kills_helper: bool
) -> None:
    hidden(channel, one_host)
    until(lambda: is_running(LONG_S))
    if kills_helper:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if words[3:5] == ["exec", RUN] and str(one_host.run_dir(RUN).parents[1]) in words:
                process.kill()
                break
        else:
            raise AssertionError("there is no process above the command")
    found = one_host.channel().call("fence", run=RUN, token=7, wait_s=30)
    assert found["clear"], found
    assert not is_running(LONG_S)


def test_a_request_that_cannot_be_served_is_refused(channel: Channel) -> None:
    with pytest.raises(Refusal, match="not_running"):
        run(channel, "true", rank=5)
    for wrong in ({"argv": []}, {"argv": ["a\0b"]}, {"argv": "true"}, {"limit_s": float(10**6)}, {"rank": -1}):
        with pytest.raises(Refusal, match="bad_plan"):
            channel.call("exec", **{"run": RUN, "rank": 0, "argv": ["true"], "limit_s": 5, **wrong})
