"""A launcher, the one process of a run on a host, and the ranks that it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.supervisor_host import Host, is_alive, make_plan, start, until

RUN = "t1.1.7"
#: Starts a worker in a session of its own, as torchrun does, and writes what it finds.
LAUNCHER = """
import json, os, subprocess, sys, time
locks = sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2)[:-1]
env = {**os.environ, "RANK": "1"}
worker = subprocess.Popen(["sleep", "1000"], start_new_session=True, env=env)
found = {"locks": locks, "pid": os.getpid(), "worker": worker.pid, "devices": os.environ["CUDA_VISIBLE_DEVICES"]}
with open("found.part", "w") as file:
    json.dump(found, file)
os.rename("found.part", "found")
code = sys.argv[1]
if code == "0":
    worker.kill()
    worker.wait()
elif code == "1":
    with open("../rank1/error.json", "w") as file:
        json.dump({"message": "ValueError: of rank 1"}, file)
    sys.exit(1)
else:
    time.sleep(1000)
"""


def launched(host: Host, code: str) -> dict[str, Any]:
    devices = ("GPU-0", "GPU-1", "GPU-2")
    plan = make_plan(RUN, "python", "-c", LAUNCHER, code, ranks=3, devices=devices, per_host=True, grace_s=1)
    return {**plan, "cpu_slots": False}


def report(host: Host) -> dict[str, Any]:
    path = Path(host.run_dir(RUN), "work", "found")
    until(path.exists, "the launcher's report")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("code", ["0", "1", "kill"])
def test_a_launcher_has_all_slots_of_the_host_and_ends_with_its_ranks(host: Host, code: str) -> None:
    channel = host.channel()
    start(channel, launched(host, code))
    started = channel.wait_event(RUN, "started")
    assert [one["rank"] for one in started["ranks"]] == [0]
    found = report(host)
    assert found["devices"] == "GPU-0,GPU-1,GPU-2"
    # Of each slot, for this account and for the machine.
    assert found["locks"] == [3, 4, 5, 6, 7, 8]
    if code == "kill":
        channel.call("stop", run=RUN, grace_s=0)
    ended = channel.wait_event(RUN, "ended")
    exits = {event["rank"]: event for event in channel.events(RUN) if event["kind"] == "exit"}
    assert not is_alive(found["worker"])
    assert sorted(exits) == [0, 1, 2]
    if code == "1":
        assert (ended["reason"], ended["first_failure"]) == ("failed", 1)
        assert exits[1]["error"]["message"] == "ValueError: of rank 1"
        assert [exits[rank]["sent_signal"] for rank in (0, 1, 2)] == [True, False, True]
    else:
        assert ended["reason"] == ("completed" if code == "0" else "stopped")
        assert ended["first_failure"] is None
