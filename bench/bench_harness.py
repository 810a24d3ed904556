"""Overhead per batch of a harness over the bare loop: both APIs of this package, and installed peers.

A network 64-256-2, global batch 64, 2,000 batches. In each run a harness and the bare loop alternate every 20 batches
in one process. Runs of all harnesses are interleaved. With two ranks, bare DistributedDataParallel and the plain script
alternate in the same processes, on a network whose step takes 5 ms or more.

    python bench/bench_harness.py [--rounds 5] [--peers-python PATH] [--only script,trial]

--peers-python: an interpreter with torch and any of the packages determined, accelerate, lightning.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OURS = {"script": "plain script", "script_reports": "plain script, a report per batch", "trial": "trial class"}
PEERS = {"determined": "determined", "accelerate": "accelerate", "lightning": "lightning"}
GOALS = {"script": "<= 5 us", "trial": "<= 5 us", "script_reports": "< 50 us"}
DDP_GOAL = 0.02


def run(python: str, *arguments: str, **env: str) -> dict | None:
    """Return the result of a run, None after a failure, whose reason is printed."""
    command = [python, str(HERE / "harness_loops.py"), *arguments]
    everything = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env}
    done = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=600)
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{arguments[0]}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
    return None


def missing(python: str | None, package: str) -> str | None:
    """Return the reason why a peer cannot run, None when it can."""
    if python is None:
        return "--peers-python is not set"
    code = f"import importlib.metadata, {package}; print(importlib.metadata.version('{package}'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["import failed"])[-1]


def over_bare(result: dict) -> tuple[float, float]:
    """Return microseconds per batch of the bare loop, and those added by the harness, as medians over the turns."""
    extra = statistics.median(loop - bare for loop, bare in zip(result["loop"], result["bare"], strict=True))
    return statistics.median(result["bare"]), extra


def single(arguments: argparse.Namespace) -> None:
    """Print the table of one process."""
    wanted = [name for name in [*OURS, *PEERS] if not arguments.only or name in arguments.only.split(",")]
    results: dict[str, list[dict]] = {name: [] for name in wanted}
    reasons = {name: missing(arguments.peers_python, name) for name in wanted if name in PEERS}
    for _ in range(arguments.rounds):
        for name in [name for name in wanted if not reasons.get(name)]:
            python = arguments.peers_python if name in PEERS else sys.executable
            result = run(python, name, "--batches", str(arguments.batches))
            if result is None:
                reasons[name] = "failed, see above"
            else:
                results[name].append(result)
    print(f"{'harness':<34} {'bare us':>8} {'adds us':>8} {'of bare':>8}  {'runs':<14} losses    goal")
    for name in wanted:
        label = {**OURS, **PEERS}[name]
        if reasons.get(name):
            print(f"{label:<34} skipped: {reasons[name]}")
            continue
        pairs = [over_bare(result) for result in results[name]]
        bare, extra = (statistics.median(column) for column in zip(*pairs, strict=True))
        spread = f"{min(e for _, e in pairs):.0f}..{max(e for _, e in pairs):.0f}"
        equal = "equal" if all(result["equal"] for result in results[name]) else "DIFFER"
        numbers = f"{bare:>8.0f} {extra:>8.1f} {extra / bare:>8.1%}"
        print(f"{label:<34} {numbers}  {spread:<14} {equal:<9} {GOALS.get(name, '')}")


def pair(arguments: argparse.Namespace) -> None:
    """Print the line of two ranks."""
    ratios, steps = [], []
    for _ in range(arguments.rounds):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
        common = {
            **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        command = [sys.executable, str(HERE / "harness_loops.py"), "ddp"]
        ranks = [
            subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                             stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]  # fmt: skip
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
        result = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
        bare, extra = over_bare(result)
        assert result["equal"], "parameters differ from bare DDP"
        steps.append(bare / 1e3)
        ratios.append(extra / bare)
    middle = statistics.median(ratios)
    print(
        f"2 ranks, gloo: a step of bare DDP takes {statistics.median(steps):.1f} ms, plain script adds {middle:.2%} "
        f"({min(ratios):.2%}..{max(ratios):.2%}); goal: {DDP_GOAL:.0%}; parameters equal"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--peers-python")
    parser.add_argument("--only", help="comma-separated names of loops; ddp: only two ranks")
    arguments = parser.parse_args()
    if arguments.only != "ddp":
        single(arguments)
    if not arguments.only or "ddp" in arguments.only.split(","):
        pair(arguments)


if __name__ == "__main__":
    main()
