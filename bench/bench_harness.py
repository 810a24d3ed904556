"""Overhead per batch of a harness over the bare loop, and the time to its first batch.

    python bench/bench_harness.py [--rounds 5] [--peers-python PATH] [--only script,trial,first,ddp]

The loop is that of the training page, with clipping and a report per batch. Network 64-256-2, global batch 64, 2,000
batches. In each run a harness and the bare loop alternate every 20 batches in one process. Runs of all harnesses are
interleaved. `first` is the time from the start of a process until its first batch. `ddp` is two ranks over gloo: bare
DistributedDataParallel and the plain script alternate in the same processes, 20 pairs of turns of half a second, at a
step of 15 ms.

--peers-python: an interpreter with torch and any of the packages determined, accelerate, lightning.

Never fails: figures depend on the machine. CPU times are less sensitive to other load than wall times.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
OURS = {
    "script": "plain script",
    "script_silent": "plain script without reports",
    "script_in_trial": "plain script in a trial (timings)",
    "trial": "trial class",
}
PEERS = {"determined": "determined", "accelerate": "accelerate", "fabric": "lightning", "lightning": "lightning"}
#: 15 us at a bare loop of 150 us.
GOALS = {"script": "<= 10 %"}
FIRST_GOAL_MS = 50
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


def over_bare(result: dict) -> list[float]:
    """Return medians over the turns: CPU microseconds per batch, bare and added, and the same of the wall clock."""
    found = []
    for clock in (1, 0):
        bare, loop = ([block[clock] for block in result[name]] for name in ("bare", "loop"))
        extra = [one - other for one, other in zip(loop, bare, strict=True)]
        found += [statistics.median(bare), statistics.median(extra)]
    return found


def single(arguments: argparse.Namespace) -> None:
    """Print the table of one process."""
    wanted = [name for name in [*OURS, *PEERS] if not arguments.only or name in arguments.only.split(",")]
    results: dict[str, list[dict]] = {name: [] for name in wanted}
    reasons = {name: missing(arguments.peers_python, PEERS[name]) for name in wanted if name in PEERS}
    for _ in range(arguments.rounds):
        for name in [name for name in wanted if not reasons.get(name)]:
            python = arguments.peers_python if name in PEERS else sys.executable
            result = run(python, name, "--batches", str(arguments.batches))
            if result is None:
                reasons[name] = "failed, see above"
            else:
                results[name].append(result)
    if wanted:
        head = f"{'bare us':>8} {'adds us':>8} {'of bare':>8}  {'runs':<12} {'wall: bare':>10} {'adds':>6}"
        print(f"CPU times, load {os.getloadavg()[0]:.1f}\n{'harness':<34} {head}  losses  goal")
    for name in wanted:
        label = OURS.get(name, name)
        if reasons.get(name):
            print(f"{label:<34} skipped: {reasons[name]}")
            continue
        runs = [over_bare(result) for result in results[name]]
        bare, extra, wall, wall_extra = (statistics.median(column) for column in zip(*runs, strict=True))
        spread = f"{min(one[1] for one in runs):.0f}..{max(one[1] for one in runs):.0f}"
        equal = "equal" if all(result["equal"] for result in results[name]) else "DIFFER"
        numbers = f"{bare:>8.0f} {extra:>8.1f} {extra / bare:>8.1%}  {spread:<12} {wall:>10.0f} {wall_extra:>6.1f}"
        print(f"{label:<34} {numbers}  {equal:<7} {GOALS.get(name, '')}")


def first(arguments: argparse.Namespace) -> None:
    """Print the time from the start of a process until its first batch."""
    found: dict[str, list[tuple[float, float]]] = {"first_bare": [], "first_script": []}
    for _ in range(arguments.first_rounds):
        for name, kept in found.items():
            started = time.time()
            result = run(sys.executable, name)
            if result is not None:
                kept.append((result["at"] - started, result["cpu"]))
    if not all(found.values()):
        return
    pairs = list(zip(*found.values(), strict=True))
    for clock, word in enumerate(("wall", "CPU")):
        bare = statistics.median(one[clock] for one, _ in pairs) * 1e3
        extra = sorted((other[clock] - one[clock]) * 1e3 for one, other in pairs)
        print(
            f"first batch, {word}: bare {bare:.0f} ms, plain script adds {statistics.median(extra):.0f} ms "
            f"({extra[0]:.0f}..{extra[-1]:.0f}, {len(extra)} pairs); goal: <= {FIRST_GOAL_MS} ms"
        )


def pair(arguments: argparse.Namespace) -> None:
    """Print the line of two ranks."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    common = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    settings = ["--step-ms", str(arguments.step_ms), "--pairs", str(arguments.pairs)]
    command = [sys.executable, str(HERE / "harness_loops.py"), "ddp", *settings]
    ranks = []
    for rank in ("0", "1"):
        own = common | {"RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    result = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
    ratios = sorted(loop / bare - 1 for loop, bare in zip(result["loop"], result["bare"], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    equal = "equal" if result["equal"] else "DIFFER"
    print(
        f"2 ranks, gloo, load {os.getloadavg()[0]:.1f}: a step of bare DDP takes "
        f"{statistics.median(result['bare']) / 1e3:.1f} ms ({result['samples']} samples), plain script adds "
        f"{middle:.2%} (quartiles {low:.2%} and {high:.2%}, {len(ratios)} pairs {ratios[0]:.2%}..{ratios[-1]:.2%}); "
        f"goal: {DDP_GOAL:.0%}; parameters {equal}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--first-rounds", type=int, default=10)
    parser.add_argument("--step-ms", type=float, default=15)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--peers-python")
    parser.add_argument("--only", help="comma-separated: names of loops, first, ddp")
    arguments = parser.parse_args()
    wanted = (arguments.only or "").split(",")
    single(arguments)
    for name, measure in (("first", first), ("ddp", pair)):
        if not arguments.only or name in wanted:
            measure(arguments)


if __name__ == "__main__":
    main()
