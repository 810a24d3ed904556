"""Jobs of Slurm beside a script written by hand: start, rate of submissions, and a training through short jobs.

A real cluster of two nodes on this machine (Slurm of Debian), one rank per node, gloo. The script by hand is ``sbatch``
with ``srun torchrun``, as the tutorials of PyTorch have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind
from bench.engine_worlds import POOL, World, quiet
from bench.first_step import RANKS, SCRIPT, last_step
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row
from testbed.slurm import SlurmCluster, missing
from testbed.standalone import free_port, wait_until

BY_HAND, ENGINE, BARE, UNBROKEN = "sbatch + srun torchrun", "ours", "bare sbatch", "ours, one job"
PARTITIONS = {"main": {"Default": "YES", "MaxTime": 60}, "short": {"MaxTime": 1}}
#: Trainings that are cut into jobs take this long, in steps of a tenth of a second: five jobs of a minute.
STEPS = 1700
COUNT = """
import sys, time, torch
import airflow_provider_dtrain.train as dtrain

with dtrain.init() as ctx:
    model = ctx.prepare(torch.nn.Linear(8, 1))
    step = ctx.restore_checkpoint()
    print(f"from {step} at {time.time():.3f}", flush=True)
    while step < int(sys.argv[1]) and not ctx.should_stop:
        time.sleep(0.1)
        step += 1
        ctx.sync(step)
    ctx.save_checkpoint(step)
    print(f"to {step} at {time.time():.3f}", flush=True)
"""
BATCH = """#!/bin/bash
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpu-bind=none {python} -m torch.distributed.run --nnodes={ranks} --nproc-per-node=1 \\
  --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:{port} {script}
"""
_RUN = re.compile(r"from (\d+) at ([\d.]+)(?:.*?to (\d+) at ([\d.]+))?", re.DOTALL)


class SlurmBench:
    """A world whose pool is a Slurm cluster."""

    def __init__(self, home: Path, cluster: SlurmCluster) -> None:
        os.environ.update(cluster.environment)
        self.home, self.cluster, self.world = home, cluster, World(home)
        (home / "code" / "train.py").write_text(SCRIPT)
        (home / "code" / "count.py").write_text(COUNT)
        self.set_pool()

    def set_pool(self, **options: Any) -> None:
        kind = scheduler_kind("slurm")
        document = kind.checked({"slots": "cpu", "slots_per_node": 1, "python": sys.executable, **options})
        store = self.world.hook.store
        store.pools.set_scheduler(POOL, backend="slurm", slot_type="cpu", scheduler=document)

    # -- start ---------------------------------------------------------------------------------
    def by_hand(self) -> float:
        """Return the seconds from ``sbatch`` to the later of the two first steps."""
        script, output = self.home / "batch.sh", self.home / f"by-hand-{time.monotonic_ns()}"
        code = self.home / "code" / "train.py"
        script.write_text(BATCH.format(python=sys.executable, ranks=RANKS, port=free_port(), script=code))
        begun = time.time()
        options = [f"--nodes={RANKS}", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={output}"]
        number = subprocess.check_output(["sbatch", "--parsable", *options, str(script)], text=True).strip()

        def steps() -> str:
            text = output.read_text() if output.exists() else ""
            return text if text.count("first step at") == RANKS else ""

        text = wait_until(steps, timeout_s=300, what=f"the first step of job {number}", poll_s=0.05)
        self.idle()
        return last_step(text) - begun

    def ours(self) -> dict[str, float]:
        """Return the seconds from the submission of a trial to the later of the two first steps, and to the grant."""
        begun = time.time()
        ticket, view, texts = asyncio.run(self._trial("python train.py"))
        self.idle()
        (job,) = self.world.hook.store.external_jobs.of_trial(ticket.trial_id)
        assert job.started_at is not None
        assert job.submitted_at is not None
        return {"start": last_step(*texts) - begun, "grant": view.granted_at.timestamp() - begun}

    async def _trial(self, entrypoint: str, **more: Any) -> tuple[Any, Any, list[str]]:
        """Run a trial to its end. Return ticket, last attempt, and the logs of the ranks of all attempts."""
        section = {"variables": {"OMP_NUM_THREADS": "1"}}
        ticket = self.world.submit(entrypoint, slots=RANKS, environment=section, preemption_timeout=10, **more)
        outcome = await (await self.world.follow(ticket))[1]
        assert outcome.failure is None, outcome.failure
        store = self.world.hook.store
        attempts = store.attempts.of_trial(ticket.trial_id)
        texts = [rank.log_tail for one in attempts for rank in store.events.ranks(one.attempt_id)]
        return ticket, attempts[-1], texts

    def idle(self) -> None:
        """Wait until the cluster is idle, so that no program waits for the end of the one before."""
        wait_until(lambda: not self.queue(), timeout_s=120, what="an idle cluster", poll_s=0.1)
        wait_until(
            lambda: set(self.cluster.node_states().values()) == {"idle"}, timeout_s=120, what="idle nodes", poll_s=0.1
        )

    def queue(self) -> list[str]:
        return subprocess.check_output(["squeue", "-h", "-o", "%j"], text=True).splitlines()

    # -- submissions ---------------------------------------------------------------------------
    def bare_submissions(self, count: int) -> float:
        """Return the jobs per second of ``sbatch``, one after the other."""
        begun = time.monotonic()
        for _ in range(count):
            argv = ["sbatch", "--begin=now+1hour", "--nodes=1", "--output=/dev/null", "--wrap", "true"]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        rate = count / (time.monotonic() - begun)
        self.cancel()
        return rate

    def our_submissions(self, count: int) -> float:
        """Return the jobs per second of trials that are submitted together."""
        self.set_pool(sbatch_options=["--begin=now+1hour"])

        async def work() -> float:
            begun = time.monotonic()
            tickets = [self.world.submit("python train.py", slots=RANKS) for _ in range(count)]
            followers = [(await self.world.follow(ticket))[1] for ticket in tickets]
            store = self.world.hook.store

            def are_submitted() -> bool:
                return sum(job.number is not None for job in store.external_jobs.live(POOL)) >= count

            await asyncio.to_thread(wait_until, are_submitted, timeout_s=300, what="the submissions", poll_s=0.02)
            rate = count / (time.monotonic() - begun)
            for ticket in tickets:
                store.control.kill(ticket.trial_id, "bench")
            await asyncio.wait(followers, timeout=120)
            return rate

        try:
            return asyncio.run(work())
        finally:
            self.cancel()
            self.set_pool()

    def cancel(self) -> None:
        subprocess.run(["scancel", "--user", "root"], check=True)
        self.idle()

    # -- short jobs ----------------------------------------------------------------------------
    def training(self, partition: str, notes: list[str]) -> float:
        """Return the seconds of a training from its first to its last step."""
        self.set_pool(partition=partition)
        try:
            ticket, _, texts = asyncio.run(self._trial(f"python count.py {STEPS}"))
        finally:
            self.set_pool()
        found = [_RUN.search(text) for text in texts[::RANKS]]
        runs = [tuple(map(float, match.groups(default="0"))) for match in found if match]
        jobs = len(self.world.hook.store.external_jobs.of_trial(ticket.trial_id))
        pairs = list(zip(runs, runs[1:], strict=False))
        repeated = sum(max(0.0, one[2] - other[0]) for one, other in pairs) if jobs > 1 else 0.0
        gaps = sorted(other[1] - one[3] for one, other in pairs)
        notes.append(
            f"partition {partition}: {jobs} jobs, {repeated:.0f} steps trained twice, "
            f"between two jobs {', '.join(f'{gap:.1f}' for gap in gaps) or 'nothing'} s"
        )
        return max(run[3] for run in runs) - runs[0][1]


@contextlib.contextmanager
def slurm_bench() -> Iterator[SlurmBench]:
    """Yield a cluster of two nodes and a pool of it."""
    with tempfile.TemporaryDirectory(prefix="w") as home:
        folder = Path(tempfile.mkdtemp(prefix="dtrain-slurm-bench-", dir="/var/tmp"))  # noqa: S108 - Slurm's daemons enter it
        folder.chmod(0o755)
        with SlurmCluster(folder, nodes=RANKS, gpus_per_node=0, partitions=PARTITIONS) as cluster:
            made = SlurmBench(Path(home), cluster)
            try:
                yield made
            finally:
                made.world.hook.links.close_all()


def measure(run: Run) -> None:
    quiet()
    with slurm_bench() as made:
        # It installs the supervisor.
        made.ours()
        run.turns({BY_HAND: lambda: {"start": made.by_hand()}, ENGINE: made.ours})
        count = run.size(40, 8)
        sides = {BARE: lambda: made.bare_submissions(count), ENGINE: lambda: made.our_submissions(count)}
        run.turns(sides, "submit", rounds=run.size(3, 1))
        if not run.is_quick:
            notes: list[str] = []
            run.add("short jobs", UNBROKEN, made.training("main", notes))
            run.add("short jobs", ENGINE, made.training("short", notes))
            for note in notes:
                run.note(note)


BENCH = Bench(
    what="Jobs of Slurm, 2 nodes with one rank each",
    rows=(
        Row(
            name="start",
            what="From the submission to the later of the two first steps, on an idle cluster",
            unit="s",
            sides={BY_HAND: PEER, ENGINE: OURS},
            base=BY_HAND,
            goals=(Goal(side=ENGINE, at_most=1.1, of=BY_HAND),),
        ),
        Row(
            name="grant",
            what="From the submission to the grant, when all nodes of the job answer",
            unit="s",
            sides={ENGINE: OURS},
        ),
        Row(
            name="submit",
            what="Jobs submitted per second",
            unit="1/s",
            sides={BARE: LIMIT, ENGINE: OURS},
            base=BARE,
        ),
        Row(
            name="short jobs",
            what="A training of 170 s through jobs of a minute, from its first to its last step",
            unit="s",
            sides={UNBROKEN: OURS, ENGINE: OURS},
            base=UNBROKEN,
        ),
    ),
    measure=measure,
    rounds=(7, 1),
    missing=missing,
)
