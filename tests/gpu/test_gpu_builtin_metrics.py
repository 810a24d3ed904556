"""Built-in metrics and the snapshot of memory on a real GPU."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.event_lines import lines_of

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
#: Trains some steps, prints the exact weights, and then allocates until the memory runs out if it is asked to.
TRAIN = """
import hashlib, os, torch
import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.reports import builtin_metrics

builtin_metrics.EARLY_S = builtin_metrics.LEAST_S = 0.0
config = {"scheduling_unit": 5, "reproducibility": {"deterministic": True},
          "optimizations": {"mixed_precision": "bf16"}, "profiling": eval(os.environ["TEST_PROFILING"])}
with dtrain.init(hparams={"global_batch_size": 64}, config=config, device="cuda:0") as ctx:
    data = torch.utils.data.TensorDataset(torch.randn(64 * 20, 256, generator=torch.Generator().manual_seed(1)))
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    net, optimizer = ctx.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for (inputs,) in ctx.loader(data):
        ctx.backward(net(ctx.to_device(inputs)).square().mean())
        ctx.step(optimizer, clip_grad_norm=1.0)
    weights = torch.cat([p.detach().flatten() for p in net.parameters()]).cpu().numpy().tobytes()
    print("weights", hashlib.sha256(weights).hexdigest())
    held = []
    def hoard():
        while os.environ.get("TEST_HOARD"):
            held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    hoard()
"""
#: Products of both layers forward, and backward for the weights; the inputs of the first one need no gradient.
OPERATIONS = 2 * 64 * 256 * 512 * 2 * 3 - 2 * 64 * 256 * 512


def train(folder: Path, profiling: dict[str, object], **variables: str) -> tuple[int, str]:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(TRAIN)
    paths = {"DTRAIN_EVENTS": str(folder / "events"), "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
    env = {**os.environ, **paths, "PYTHONPATH": str(ROOT), "TEST_PROFILING": repr(profiling), **variables}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_operations_are_counted_on_the_gpu_and_the_weights_stay_bit_for_bit(tmp_path: Path) -> None:
    code, plain = train(tmp_path / "plain", {"enabled": False})
    assert code == 0, plain
    code, output = train(tmp_path / "all", {"count_flops": True, "memory_snapshot": True, "device_peak_flops": 1e15})
    assert code == 0, output
    assert [line for line in output.splitlines() if line.startswith("weights")] == plain.splitlines()[-1:]
    found = [event["metrics"] for event in lines_of(tmp_path / "all" / "events") if event["kind"] == "builtin"]
    last = [metrics for metrics in found if "flops_per_second" in metrics][-1]
    assert last["flops_per_second"] / last["samples_per_second"] == pytest.approx(OPERATIONS / 64)
    assert last["model_flops_utilization"] == pytest.approx(last["flops_per_second"] / 1e15)
    assert last["gradient_norm"] > 0
    assert not (tmp_path / "all" / "traces").exists()


def test_memory_that_runs_out_leaves_a_snapshot_that_names_the_place(tmp_path: Path) -> None:
    code, output = train(tmp_path / "run", {"memory_snapshot": True}, TEST_HOARD="1")
    assert code == 1, output
    message = json.loads((tmp_path / "run" / "error.json").read_text())["message"]
    assert message.startswith("OutOfMemoryError: CUDA out of memory.")
    assert "Most memory was allocated by train.py:" in message
    assert "in hoard" in message
    (path,) = (tmp_path / "run" / "traces").iterdir()
    snapshot = pickle.loads(path.read_bytes())
    assert snapshot["segments"]
    assert any(event["action"] == "oom" for events in snapshot["device_traces"] for event in events)
