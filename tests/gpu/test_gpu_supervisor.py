"""A supervisor on a host with a real GPU, beside what nvidia-smi prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.nvidia_smi import START_S, smi, users, uuid
from tests.support.supervisor_host import Channel, Host, is_alive, make_plan, read_samples, start, until

pytestmark = pytest.mark.gpu

RUN = "t1.1.7"
#: Keeps the GPU busy.
MULTIPLY = (
    "import torch\n"
    "x = torch.randn(4096, 4096, device='cuda')\n"
    "while True:\n"
    "    for _ in range(50):\n"
    "        y = x @ x\n"
    "    torch.cuda.synchronize()\n"
)


def plan(run: str = RUN, **changes: Any) -> dict[str, Any]:
    return make_plan(
        run, "python", "-c", MULTIPLY, cpu_slots=False, sampling_interval_s=0.2, devices=[uuid()], **changes
    )


@contextmanager
def program() -> Iterator[int]:
    """Use the GPU by a program that no run has started."""
    process = subprocess.Popen([sys.executable, "-c", MULTIPLY])
    try:
        until(lambda: process.pid in users(), "the program on the GPU", START_S)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def busy(one_host: Host) -> tuple[Host, Channel]:
    """A host whose run uses the GPU."""
    channel = one_host.channel()
    start(channel, plan())
    until(users, "the rank on the GPU", START_S)
    return one_host, channel


def test_a_probe_lists_the_gpus_that_nvidia_smi_lists(one_host: Host) -> None:
    found = one_host.channel().call("probe")["gpus"]
    expected = smi("gpu", "index,uuid,name,memory.total")
    assert [[str(one["index"]), one["uuid"], one["name"]] for one in found] == [row[:3] for row in expected]
    for one, (*_, mebibytes) in zip(found, expected, strict=True):
        assert one["memory_bytes"] == pytest.approx(int(mebibytes) << 20, rel=0.01)


def test_the_processes_of_a_run_are_those_that_nvidia_smi_lists(busy: tuple[Host, Channel]) -> None:
    host, channel = busy
    assert users() == set(host.processes(RUN))
    listed = channel.call("preflight", slots=[{"slot": 0, "device": uuid()}])
    assert ({one["pid"] for one in listed["foreign"]}, listed["problems"]) == (users(), [])
    assert channel.call("status", slots=[{"slot": 0, "device": uuid()}])["slots"]["0"]["held_by"] == RUN
    channel.call("stop", run=RUN, grace_s=5)
    channel.wait_event(RUN, "ended")
    found = channel.call("fence", run=RUN, token=7, wait_s=10)
    assert found["clear"] is True, found
    assert users() == set()


def test_the_samples_of_a_run_agree_with_nvidia_smi(busy: tuple[Host, Channel]) -> None:
    host, _ = busy

    def agreed() -> bool:
        lines = read_samples((host.run_dir(RUN) / "samples").read_bytes())
        found = [gpu for line in lines for gpu in line.get("gpus", ())]
        [[utilization, free]] = smi("gpu", "utilization.gpu,memory.free")
        if not found or found[-1]["gpu_util"] <= 50:
            return False
        sample = found[-1]
        assert sample["uuid"] == uuid()
        return abs(sample["gpu_util"] - float(utilization)) <= 30 and sample["gpu_free_memory"] == pytest.approx(
            int(free) << 20, rel=0.05
        )

    # The first samples are of a GPU whose load still rises.
    until(agreed, "a sample that agrees with nvidia-smi", START_S)


def test_the_facts_of_a_gpu_agree_with_nvidia_smi(busy: tuple[Host, Channel]) -> None:
    host, _ = busy

    def agreed() -> bool:
        lines = read_samples((host.run_dir(RUN) / "samples").read_bytes())
        found = [gpu for line in lines for gpu in line.get("gpus", ()) if "gpu_clock" in gpu]
        [[clock, temperature]] = smi("gpu", "clocks.sm,temperature.gpu")
        if not found:
            return False
        facts = found[-1]
        assert all(facts[f"gpu_{reason}_slowdown"] in (0, 100) for reason in ("thermal", "power", "hardware"))
        assert facts.get("gpu_other_processes", 0) == 0
        return abs(facts["gpu_clock"] - float(clock)) <= 200 and abs(facts["gpu_temperature"] - float(temperature)) <= 5

    until(agreed, "facts that agree with nvidia-smi", START_S)


def test_a_later_process_of_the_account_on_the_gpu_withholds_clear_until_it_left(
    busy: tuple[Host, Channel],
) -> None:
    host, channel = busy
    with program() as pid:
        channel.call("stop", run=RUN, grace_s=5)
        channel.wait_event(RUN, "ended")
        parents = host.supervisor_pid(RUN), host.reaper_pid(RUN)
        until(lambda: not any(map(is_alive, parents)), "the end of supervisor and reaper")
        found = channel.call("fence", run=RUN, token=7, wait_s=0.1)
        assert found["clear"] is False
        assert pid in {one["pid"] for one in found["survivors"]}
    until(lambda: not users(), "a free GPU")
    assert channel.call("fence", run=RUN, token=7, wait_s=5)["clear"] is True


def test_a_killed_supervisor_leaves_nothing_on_the_gpu(busy: tuple[Host, Channel]) -> None:
    host, channel = busy
    os.kill(host.supervisor_pid(RUN), signal.SIGKILL)
    until(lambda: not users(), "a free GPU")
    until(lambda: channel.call("fence", run=RUN, token=7, wait_s=2)["clear"], "the answer clear")


def test_the_driver_takes_a_registration_for_faults_and_reports_those_of_a_program(one_host: Host) -> None:
    channel = one_host.channel()
    # An access outside of its memory: the driver reports Xid 31 or 13.
    program = (
        "import time, torch\n"
        "x = torch.zeros(8, device='cuda')\n"
        "torch.cuda.synchronize(); time.sleep(2)\n"
        "source = 'extern \"C\" __global__ void f(float* p) { p[1ull << 40] = 1; }'\n"
        "kernel = torch.cuda._compile_kernel(source, 'f')\n"
        "kernel(grid=(1, 1, 1), block=(1, 1, 1), args=(x,))\n"
        "time.sleep(1)\n"
        "torch.cuda.synchronize()\n"
    )
    start(channel, make_plan(RUN, "python", "-c", program, cpu_slots=False, sampling_interval_s=0.2, devices=[uuid()]))
    found = channel.wait_event(RUN, "exit")
    assert "illegal memory access" in found["log_tail"]
    assert {(one["uuid"], one["xid"]) for one in found["facts"]["faults"]} & {(uuid(), 13), (uuid(), 31)}
