"""Training on a real GPU: device, exact resume, and two ranks on one device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
#: Trains for some steps on the GPU, and prints device, backend and the exact weights.
TRAIN = """
import hashlib, os, torch
import airflow_provider_dtrain.train as dtrain

config = {
    "reproducibility": {"deterministic": True},
    "optimizations": {"mixed_precision": os.environ["TEST_PRECISION"]},
}
backend = "gloo" if os.environ.get("WORLD_SIZE") == "2" else None
with dtrain.init(hparams={"global_batch_size": 8}, checkpoint_dir=os.environ["TEST_CHECKPOINTS"], config=config,
                 device="cuda:0", backend=backend) as ctx:
    torch.manual_seed(1)
    x = torch.randn(64, 16)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = ctx.prepare(model, optimizer)
    step = ctx.restore_checkpoint()
    for epoch in ctx.epochs(4):
        for inputs, targets in ctx.loader(data):
            loss = torch.nn.functional.mse_loss(model(ctx.to_device(inputs)), ctx.to_device(targets))
            ctx.backward(loss)
            ctx.step(optimizer)
            step += 1
            ctx.report(step, {"loss": loss})
            if step == int(os.environ.get("TEST_SAVE_AT", 0)):
                ctx.save_checkpoint(step)
                raise SystemExit(0)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy().tobytes()
    print("device", ctx.device.type, "step", step)
    print("weights", hashlib.sha256(weights).hexdigest())
"""


def run_script(script: Path, size: int, checkpoints: Path, variables: dict[str, str]) -> list[str]:
    """Run the training script in some processes, and return what each rank printed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    common = {"TEST_CHECKPOINTS": str(checkpoints), "TEST_PRECISION": "none", "PYTHONPATH": str(ROOT), **variables}
    if size > 1:
        common |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
        common |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {} for rank in range(size)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, **common, **rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, outputs
    return [line for output in outputs for line in output.splitlines() if line.startswith(("device", "weights"))]


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., list[str]]:
    """Train on the GPU: ``train("folder of checkpoints", size=1, TEST_SAVE_AT="13")``."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def run(checkpoints: str, size: int = 1, **variables: str) -> list[str]:
        return run_script(script, size, tmp_path / checkpoints, variables)

    return run


@pytest.mark.parametrize("precision", ["none", "bf16", "fp16"])
def test_a_run_resumed_on_the_gpu_ends_with_the_bits_of_an_unbroken_one(
    train: Callable[..., list[str]], precision: str
) -> None:
    whole = train("whole", TEST_PRECISION=precision)
    assert whole[0] == "device cuda step 32"
    assert train("broken", TEST_PRECISION=precision, TEST_SAVE_AT="13") == []
    assert train("broken", TEST_PRECISION=precision) == whole


def test_two_ranks_on_one_gpu_end_with_the_same_bits_and_resume_with_them(train: Callable[..., list[str]]) -> None:
    first, digest, *others = train("whole", 2)
    assert others == [first, digest]
    assert train("broken", 2, TEST_SAVE_AT="13") == []
    assert train("broken", 2) == [first, digest] * 2


#: Draws on the GPU, and prints what init() has set there.
ORDER = """
{before}
import airflow_provider_dtrain.train as dtrain
with dtrain.init(seed=5, config={"reproducibility": {"deterministic": True}}) as ctx:
    {after}
    numbers = torch.rand(8, device="cuda").tolist()
    print(numbers, torch.cuda.current_device(), ctx.device, torch.cuda.initial_seed(), torch.cuda.is_initialized(),
          torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark)
"""


def test_the_gpu_is_the_same_whether_torch_is_imported_before_or_after_init(tmp_path: Path) -> None:
    printed = []
    for before, after in (("import torch", ""), ("", "import torch")):
        program = ORDER.replace("{before}", before).replace("{after}", after)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert " 0 cuda:0 5 True True False" in printed[0]
