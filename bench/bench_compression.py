"""Step time with compressed gradients against float32, on a network limited to 100 Mbit/s.

    python bench/bench_compression.py [rounds]

Two connected network namespaces (requires root), one gloo rank in each. The variants alternate every two steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RATE, BLOCK, GOAL = "100mbit", 2, 0.6
VARIANTS = {"none": False, "fp16": "fp16", "bf16": "bf16"}


def rank(rounds: int) -> None:
    sys.path.insert(0, str(ROOT))
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


def measure(rounds: int) -> dict[str, list[float]]:
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
                ["ip", "netns", "exec", spaces[number], sys.executable, __file__, str(rounds), "--rank"],
                env={**common, "RANK": str(number), "GLOO_SOCKET_IFNAME": links[number]},
                stdout=subprocess.PIPE, text=True,
            ) for number in range(2)
        ]  # fmt: skip
        output = [process.communicate(timeout=600)[0] for process in ranks][0]
    finally:
        disconnect(spaces)
    (found,) = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
    return found


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    if "--rank" in sys.argv:
        rank(rounds)
        return 0
    if os.geteuid() != 0:
        print("Nothing measured: network namespaces require root.")
        return 0
    times = measure(rounds)
    print(f"1.3 M parameters, batch 64, 2 ranks, {RATE}")
    print(f"{'gradient_compression':<22} {'ms/step':>9} {'of none':>8}")
    for name, values in times.items():
        part = statistics.median(a / b for a, b in zip(values, times["none"], strict=True))
        print(f"{name:<22} {statistics.median(values) * 1e3:>9.1f} {part:>8.2f}")
        if name != "none":
            print(f"    goal <= {GOAL} of uncompressed: {'met' if part <= GOAL else 'MISSED'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
