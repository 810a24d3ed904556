"""Time from the grant to the first training step, compared with the same two ranks started by plain ssh.

Two hosts (network namespaces with one sshd each, requires root), one rank per host, gloo. Both start the same script
without open connections; the engine is also measured with its channels open. Rounds are interleaved.

    python bench/bench_launch.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from testbed.netns import NamespaceHosts, missing  # noqa: E402

SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 64)).sum().backward()
optimizer.step()
print(f"first step at {time.time():.3f}", flush=True)
"""
CONFIG = {
    "name": "bench",
    "entrypoint": "python first_step.py",
    "model_dir": "code",
    "max_restarts": 0,
    "resources": {"slots_per_trial": 2, "pool": "bench"},
}
_STEP = re.compile(r"first step at ([\d.]+)")


def plain_ssh(hosts: NamespaceHosts, port: int) -> float:
    """Return the seconds from two ssh commands to the later of the two first steps."""
    chief = hosts.host(0).address
    started, processes = time.time(), []
    for rank, host in enumerate(hosts):
        variables = f"RANK={rank} WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR={chief} MASTER_PORT={port} OMP_NUM_THREADS=1"
        command = [
            "ssh", "-p", str(host.port), "-i", str(host.private_key), "-o", "StrictHostKeyChecking=no",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"{host.user}@{host.address}",
            f"GLOO_SOCKET_IFNAME=eth0 {variables} {sys.executable} {ROOT}/.bench-first-step.py",
        ]  # fmt: skip
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    return max(float(_STEP.search(output)[1]) for output in outputs) - started


class Ours:
    """The provider's engine with its own store."""

    def __init__(self, hosts: NamespaceHosts, home: Path) -> None:
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        os.environ["AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN"] = f"sqlite:///{home}/dtrain.db"
        self.home, self.runs = home, 0
        (home / "code").mkdir()
        (home / "code" / "first_step.py").write_text(SCRIPT)
        self.hook = DtrainHook()
        for host in hosts:
            self._add(host)

    def _add(self, host: object) -> None:
        from airflow.sdk import Connection

        from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
        from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
        from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport, hook_from_connection

        conn_id = host.name.lower().replace("-", "_")
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = host.airflow_conn()
        connection = Connection.get(conn_id)
        address = HostAddress(
            name=host.name, remote_dir=".dtrain", state_dir=None, python=sys.executable,
            make_transport=lambda: SSHTransport(host.name, lambda: hook_from_connection(connection)),
        )  # fmt: skip
        link = self.hook.links.get(address)
        facts = link.call("probe").result(30)
        record = host_record_from_facts(
            host.name, pool="bench", conn_id=conn_id, facts=facts, hello=link.hello, slots="cpu:1",
            remote_dir=".dtrain", python=sys.executable,
        )  # fmt: skip
        self.hook.store.hosts.add(record)

    def run(self, *, cold: bool) -> float:
        """Return the seconds from the grant to the later of the two first steps."""
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog
        from airflow_provider_dtrain.engine.session.runtime import take_over
        from airflow_provider_dtrain.engine.submission.submit import render, submit
        from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
        from airflow_provider_dtrain.store.records.trials import TrialKey

        if cold:
            self.hook.links.close_all()
        self.runs += 1
        key = TrialKey(dag_id="bench", run_id=str(self.runs), task_id="train")
        ticket = submit(self.hook, render(self.hook, CONFIG, None, self.home), key=key, folder=self.home)

        async def main() -> None:
            log = TaskLog(logging.getLogger("bench"), 10**6)
            runner = AttemptRunner(await take_over(self.hook, ticket.trial_id, log, watcher="bench"))
            outcome = await runner.run(BackgroundRecovery(self.hook))
            assert outcome is not None
            assert outcome.failure is None, outcome.failure

        asyncio.run(main())
        view = self.hook.store.attempts.get(ticket.attempt_id)
        tails = [rank.log_tail for rank in self.hook.store.events.ranks(ticket.attempt_id)]
        return max(float(_STEP.search(tail)[1]) for tail in tails) - view.granted_at.timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    if why := missing():
        sys.exit(f"This benchmark cannot run: {why}")
    logging.disable(logging.INFO)
    figures: dict[str, list[float]] = {"plain ssh": [], "ours, channels open": [], "ours, nothing open": []}
    script = ROOT / ".bench-first-step.py"
    with tempfile.TemporaryDirectory() as home, NamespaceHosts(count=2, slots=1) as hosts:
        script.write_text(SCRIPT)
        try:
            ours = Ours(hosts, Path(home))
            ours.run(cold=True)
            for number in range(rounds):
                figures["plain ssh"].append(plain_ssh(hosts, 29500 + number))
                figures["ours, channels open"].append(ours.run(cold=False))
                figures["ours, nothing open"].append(ours.run(cold=True))
        finally:
            script.unlink()
    base = statistics.median(figures["plain ssh"])
    print(f"{'grant to first step, 2 hosts x 1 rank':40} {'median s':>9} {'min s':>7} {'max s':>7} {'ratio':>6}")
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"{name:40} {median:9.2f} {min(values):7.2f} {max(values):7.2f} {median / base:6.2f}")
    print("goal: ratio at most 1.25")


if __name__ == "__main__":
    main()
