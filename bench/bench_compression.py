"""Step time with compressed gradients against float32, on a network limited to 100 Mbit/s.

Two connected network namespaces (requires root), one gloo rank in each. The variants alternate every two steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row

RATE, BLOCK = "100mbit", 2
VARIANTS = {"none": False, "fp16": "fp16", "bf16": "bf16"}


def rank(rounds: int) -> None:
    import torch

    import airflow_provider_dtrain.train as dtrain
    from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients

    torch.set_num_threads(1)
    with dtrain.init() as ctx:
        loops = {}
        for name, kind in VARIANTS.items():
            gradients = Gradients(ctx.distributed, lambda: ctx.device, {"gradient_compression": kind})
            model = gradients.wrap_model(torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 768)))
            loops[name] = (gradients, model, torch.optim.SGD(model.parameters(), lr=0.01))
        times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        inputs = torch.randn(64, 512)
        for number in range(rounds + 1):
            for name, (gradients, model, optimizer) in loops.items():
                ctx.distributed.barrier()
                begin = time.perf_counter()
                for _ in range(BLOCK):
                    gradients.backward(model(inputs).square().mean())
                    gradients.step(optimizer)
                ctx.distributed.barrier()
                if number:
                    times[name].append((time.perf_counter() - begin) / BLOCK)
        if ctx.distributed.get_rank() == 0:
            print("RESULT", json.dumps(times), flush=True)


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=30)


def connect(spaces: list[str], links: list[str]) -> None:
    """Create two namespaces with a slow link between them."""
    for space in spaces:
        etc = Path("/etc/netns", space)
        etc.mkdir(parents=True)
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        (etc / "resolv.conf").write_text("")  # otherwise each process group waits for a name server
        command("ip", "netns", "add", space)
    command("ip", "link", "add", links[0], "netns", spaces[0], "type", "veth", "peer", "name", links[1], "netns",
            spaces[1])  # fmt: skip
    for number, (space, link) in enumerate(zip(spaces, links, strict=True), 1):
        inside = ("ip", "netns", "exec", space)
        command(*inside, "ip", "addr", "add", f"10.250.0.{number}/24", "dev", link)
        command(*inside, "ip", "link", "set", "lo", "up")
        command(*inside, "ip", "link", "set", link, "up")
        command(*inside, "tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", RATE, "burst", "64kb", "latency",
                "400ms")  # fmt: skip


def disconnect(spaces: list[str]) -> None:
    for space in spaces:
        subprocess.run(["ip", "netns", "del", space], check=False, timeout=30, capture_output=True)
        for file in ("hosts", "resolv.conf"):
            Path("/etc/netns", space, file).unlink(missing_ok=True)
        if Path("/etc/netns", space).is_dir():
            Path("/etc/netns", space).rmdir()


def pair(rounds: int) -> dict[str, list[float]]:
    tag = f"dtc{os.getpid()}"
    spaces, links = [f"{tag}a", f"{tag}b"], ["slow0", "slow1"]
    try:
        connect(spaces, links)
        common = {
            **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "10.250.0.1", "MASTER_PORT": "29500",
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        ranks = [
            subprocess.Popen(
                ["ip", "netns", "exec", spaces[number], sys.executable, "-m", "bench.bench_compression", str(rounds)],
                env={**common, "RANK": str(number), "GLOO_SOCKET_IFNAME": links[number]},
                stdout=subprocess.PIPE, text=True,
            ) for number in range(2)
        ]  # fmt: skip
        output = [process.communicate(timeout=600)[0] for process in ranks][0]
    finally:
        disconnect(spaces)
    (found,) = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
    return found


def measure(run: Run) -> None:
    for variant, seconds in pair(run.rounds).items():
        run.add("step", variant, *(1e3 * value for value in seconds))


BENCH = Bench(
    what="1.3 M parameters, 2 ranks over gloo at 100 Mbit/s",
    rows=(
        Row(
            name="step",
            what="A step with gradient_compression",
            unit="ms",
            sides={"none": LIMIT, "fp16": OURS, "bf16": OURS},
            base="none",
            goals=tuple(Goal(side=side, at_most=0.6, of="none") for side in ("fp16", "bf16")),
        ),
    ),
    measure=measure,
    rounds=(7, 2),
    missing=lambda: None if os.geteuid() == 0 else "network namespaces require root",
)


if __name__ == "__main__":
    rank(int(sys.argv[1]))
