"""Time from the grant to the first training step, compared with the same two ranks started by plain ssh.

Two hosts (network namespaces with one sshd each, requires root), one rank per host, gloo. Plain ssh opens a connection
for each rank, as an operator that runs a command over SSH does.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.engine_worlds import World, quiet
from bench.first_step import LAUNCHES_BEFORE, RANKS, SCRIPT, last_step, launch
from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from testbed.netns import NamespaceHosts, missing
from testbed.standalone import free_port

SSH, OPEN, WARM, COLD = "plain ssh", "ours, executed", "ours, warm", "ours, executed, no open channels"


def plain_ssh(hosts: NamespaceHosts) -> float:
    """Return the seconds from two ssh commands to the later of the two first steps."""
    chief, port = hosts.host(0).address, free_port()
    started, processes = time.time(), []
    for rank, host in enumerate(hosts):
        variables = (
            f"RANK={rank} WORLD_SIZE={RANKS} LOCAL_RANK=0 MASTER_ADDR={chief} MASTER_PORT={port} OMP_NUM_THREADS=1"
        )
        command = [
            "ssh", "-p", str(host.port), "-i", str(host.private_key), "-o", "StrictHostKeyChecking=no",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"{host.user}@{host.address}",
            f"GLOO_SOCKET_IFNAME=eth0 {variables} {sys.executable} -c {shlex.quote(SCRIPT)}",
        ]  # fmt: skip
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return last_step(*(process.communicate(timeout=600)[0] for process in processes)) - started


def measure(run: Run) -> None:
    quiet()
    with tempfile.TemporaryDirectory(prefix="w") as home, NamespaceHosts(count=RANKS, slots=1) as hosts:
        world = World(Path(home))
        (Path(home) / "code" / "train.py").write_text(SCRIPT)
        world.add_namespace_hosts(hosts, 1)

        def ours(*, is_warm: bool, is_open: bool = True) -> dict[str, float]:
            if not is_open:
                world.hook.links.close_all()
            return asyncio.run(launch(world, is_warm=is_warm))

        try:
            for _ in range(LAUNCHES_BEFORE):
                ours(is_warm=True)
            run.turns(
                {
                    SSH: lambda: {"grant": plain_ssh(hosts)},
                    WARM: lambda: ours(is_warm=True),
                    OPEN: lambda: ours(is_warm=False),
                    COLD: lambda: ours(is_warm=False, is_open=False),
                }
            )
        finally:
            world.hook.links.close_all()


BENCH = Bench(
    what="Grant to first step, 2 hosts with one rank each",
    rows=(
        Row(
            name="grant",
            what="From the grant, or the two ssh commands, to the later of the two first steps",
            unit="s",
            sides={SSH: PEER, WARM: OURS, OPEN: OURS, COLD: OURS},
            base=SSH,
            goals=(Goal(side=OPEN, at_most=1.25, of=SSH),),
        ),
    ),
    measure=measure,
    rounds=(7, 2),
    missing=missing,
)
