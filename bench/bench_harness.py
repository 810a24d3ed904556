"""Time per batch that a harness adds to a bare loop, and the time until its first batch.

Each harness runs in a process of its own, in which it alternates with the bare loop every 20 batches
(harness_loops.py). With two ranks, bare DDP and the plain script alternate in the same processes. CPU times change less
than the wall clock on a busy machine.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from functools import partial

from bench.framework.measuring import Run
from bench.framework.peers import PeerError
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row

OURS_BY_NAME = {
    "script": "plain script",
    "script_silent": "plain script without reports",
    "script_in_trial": "plain script in a trial (timings)",
    "script_measured": "plain script in a trial, tokens and FLOPs counted",
    "trial": "trial class",
}
PEERS = ("determined", "accelerate", "fabric", "lightning")
#: Those of a quick run.
FEW = ("script", "trial", "accelerate")
BARE, SCRIPT = "bare loop", OURS_BY_NAME["script"]


def result_of(python: str, *arguments: str) -> dict:
    """Return the result of a program of harness_loops.py."""
    command = [python, "-m", "bench.harness_loops", *arguments]
    everything = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=600)
    if done.returncode:
        failure = RuntimeError if python == sys.executable else PeerError
        raise failure(done.stderr.strip()[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def over_bare(run: Run, python: str, name: str, side: str) -> dict[str, float]:
    """Return what a harness adds to the bare loop per batch, in microseconds: CPU and wall clock."""
    found = result_of(python, name, "--batches", str(run.size(2000, 400)))
    if not found["equal"]:
        run.note(f"The losses of {side} DIFFER from those of the bare loop.")
    added = {}
    for clock, row in ((1, "batch, CPU"), (0, "batch")):
        bare, loop = ([block[clock] for block in found[which]] for which in ("bare", "loop"))
        run.add(row, BARE, statistics.median(bare))
        added[row] = statistics.median(one - other for one, other in zip(loop, bare, strict=True))
    return added


def first_batch(run: Run) -> None:
    """Add the times from the start of a process until its first batch."""

    def time_of(name: str) -> dict[str, float]:
        started = time.time()
        found = result_of(sys.executable, name)
        return {"first batch": 1e3 * (found["at"] - started), "first batch, CPU": 1e3 * found["cpu"]}

    run.turns({BARE: partial(time_of, "first_bare"), SCRIPT: partial(time_of, "first_script")})


def pair(run: Run) -> None:
    """Add the steps of two ranks."""
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
    command = [sys.executable, "-m", "bench.harness_loops", "ddp", "--step-ms", "15", "--pairs", str(run.size(20, 4))]
    ranks = []
    for rank in ("0", "1"):
        own = common | {"RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    found = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
    run.add("step of 2 ranks", DDP, *(value / 1e3 for value in found["bare"]))
    run.add("step of 2 ranks", SCRIPT, *(value / 1e3 for value in found["loop"]))
    run.note(f"2 ranks: {found['samples']} samples, parameters {'equal' if found['equal'] else 'DIFFER'}.")


def measure(run: Run) -> None:
    peers = run.peer("training")
    pythons = dict.fromkeys(OURS_BY_NAME, sys.executable) | (dict.fromkeys(PEERS, peers) if peers else {})
    run.turns(
        {
            side: partial(over_bare, run, python, name, side)
            for name, python in pythons.items()
            for side in [OURS_BY_NAME.get(name, name)]
            if not run.is_quick or name in FEW
        }
    )
    first_batch(run)
    pair(run)


DDP = "bare DDP"
SIDES = {BARE: LIMIT, **dict.fromkeys(OURS_BY_NAME.values(), OURS), **dict.fromkeys(PEERS, PEER)}
BENCH = Bench(
    what="What a training harness adds to the bare loop, with clipping and a report of each batch",
    rows=(
        Row(
            name="batch, CPU",
            what="CPU time that a harness adds to a batch, beside that of the bare loop itself",
            unit="us of CPU",
            sides=SIDES,
            base=BARE,
            goals=(Goal(side=SCRIPT, at_most=0.1, of=BARE),),
        ),
        Row(name="batch", what="The same, wall clock", unit="us", sides=SIDES, base=BARE),
        Row(
            name="first batch",
            what="From the start of a process",
            unit="ms",
            sides={BARE: LIMIT, SCRIPT: OURS},
            base=BARE,
        ),
        Row(
            name="first batch, CPU",
            what="The same",
            unit="ms of CPU",
            sides={BARE: LIMIT, SCRIPT: OURS},
            base=BARE,
            goals=(Goal(side=SCRIPT, at_most=1.05, of=BARE),),
        ),
        Row(
            name="step of 2 ranks",
            what="A step of about 15 ms over gloo",
            unit="ms",
            sides={DDP: LIMIT, SCRIPT: OURS},
            base=DDP,
            goals=(Goal(side=SCRIPT, at_most=1.02, of=DDP),),
        ),
    ),
    measure=measure,
    rounds=(5, 1),
)
