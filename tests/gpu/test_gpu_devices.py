"""Devices and rendezvous of a gang on a real GPU, beside torchrun and the stand-in for machines without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvidia_smi import START_S, smi, users, uuid
from tests.support.supervisor_host import Host, make_plan, start, until
from tests.support.torchrun import CUDA_STAND_IN, as_gang, under_torchrun

pytestmark = pytest.mark.gpu
UNKNOWN = "GPU-00000000-0000-0000-0000-000000000000"

CHOOSE_DEVICE = """
import torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
total = torch.ones(1, device="cuda")
dist.all_reduce(total)
device = torch.cuda.get_device_properties(torch.cuda.current_device())
report(device=str(device.uuid), count=torch.cuda.device_count(), sum=total.item())
dist.destroy_process_group()
"""
LIBRARY = """
import torch
import airflow_provider_dtrain.train as dtrain
with dtrain.init() as ctx:
    x = torch.ones(8, device="cuda").sum().item()
    report(device=str(ctx.device), current=torch.cuda.current_device(), sum=x)
"""


def test_a_script_of_pytorchs_documentation_gets_the_device_that_it_gets_under_torchrun(tmp_path: Path) -> None:
    theirs = under_torchrun(tmp_path / "torchrun", CHOOSE_DEVICE, 1, 1, env={"CUDA_VISIBLE_DEVICES": uuid()})
    ours = as_gang(tmp_path / "gang", CHOOSE_DEVICE, 1, 1, devices=[uuid()])
    assert ours == theirs == {0: {"device": uuid().removeprefix("GPU-"), "count": 1, "sum": 1.0}}
    until(lambda: not users(), "a free GPU")


def test_the_library_makes_the_gpu_the_current_device(tmp_path: Path) -> None:
    found = as_gang(tmp_path / "gang", LIBRARY, 1, 1, devices=[uuid()])
    assert found == {0: {"device": "cuda:0", "current": 0, "sum": 8.0}}


@pytest.mark.parametrize(
    "visible", ["{gpu}", "{gpu},{gpu}", "0", "0,0", "", "{gpu},{unknown}", "{unknown},{gpu}", "0,7", "7,0"]
)
def test_the_stand_in_reads_a_list_of_devices_as_cuda_does(visible: str) -> None:
    machine = ",".join(row[0] for row in smi("gpu", "uuid"))
    listed = visible.format(gpu=uuid(), unknown=UNKNOWN)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": listed, "TEST_DEVICES": machine}
    environ["PYTHONPATH"] = str(CUDA_STAND_IN.parent)
    code = (
        "import torch; real = torch.cuda.device_count()\n"
        "import json, cuda_stand_in; print(json.dumps([real, torch.cuda.device_count()]))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environ, capture_output=True, check=True)
    real, stood_in = json.loads(done.stdout)
    assert stood_in == real


def test_a_rank_on_the_gpu_of_another_rank_is_named(one_host: Host) -> None:
    # CUDA ends the list before the unknown device, so both ranks use the one GPU.
    work = "import time, torch\nx = torch.zeros(64 << 20, device='cuda')\ntime.sleep(1000)\n"
    channel = one_host.channel()
    plan: dict[str, Any] = make_plan(
        "t1.1.7", "python", "-c", work, ranks=2, devices=[uuid(), UNKNOWN], cpu_slots=False, sampling_interval_s=0.2
    )
    start(channel, plan)
    until(lambda: len(users()) == 2, "both ranks on the GPU", START_S)

    def warning() -> str | None:
        channel.read()
        event = channel.event("t1.1.7", "warning")
        return str(event["text"]) if event else None

    text = until(warning, "the warning", START_S)
    assert text.startswith("rank 1 holds ")
    assert " MiB on the device of rank 0: call torch.cuda.set_device(" in text
    # The rank may still be making its context, without its tensor.
    assert int(text.split()[3]) > 0
    channel.call("stop", run="t1.1.7", grace_s=5)
    channel.wait_event("t1.1.7", "ended")
    until(lambda: not users(), "a free GPU")
