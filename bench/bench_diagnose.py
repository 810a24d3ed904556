"""Verdicts of diagnoses of trainings whose bottleneck is built in: the confusion table.

Three hosts (network namespaces with one sshd each, requires root), one rank per host, gloo. A training computes for
40 ms of CPU time or of sleep per step. A slow rank has a fifth of a CPU, by a cgroup. Networks are throttled by ``tc``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.diagnosis.runs import Limits
from airflow_provider_dtrain.engine.diagnosis import Diagnosis, DiagnosisRequest
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.store.records.trials import TrialKey
from bench.engine_worlds import LOG, POOL, World, quiet
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row
from testbed import netns
from testbed.cpu_quota import CpuQuota, controller_folder
from testbed.netns import NamespaceHosts

RANKS = 3
LIMITS = Limits(steps=20, warm_up=3, most_s=240)
#: Part of a CPU that the slow rank gets.
QUOTA = 0.2
NARROW, SLOW = "100mbit", "40mbit"
SCRIPT = """
import time

import torch

import airflow_provider_dtrain.train as dtrain


class Data(torch.utils.data.Dataset):
    def __init__(self, wait_s):
        self.wait_s = wait_s

    def __len__(self):
        return 6000

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.full((32,), float(index % 7))


with dtrain.init() as ctx:
    torch.set_num_threads(1)
    model = torch.nn.Linear(32, ctx.hparams["width"])
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0001))
    for epoch in ctx.epochs(1000):
        for batch in ctx.loader(Data(ctx.hparams["load_s"])):
            end = time.thread_time() + ctx.hparams["cpu_s"]
            while time.thread_time() < end:
                pass
            time.sleep(ctx.hparams["sleep_s"] + (ctx.hparams["late_s"] if ctx.rank == 1 else 0))
            ctx.backward(model(batch).square().mean())
            ctx.step(optimizer)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training with one bottleneck, and the verdict that is right."""

    limit: str
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    #: Index of a host -> rate of its link.
    rates: Mapping[int, str] = field(default_factory=dict)
    #: Host that has a part of a CPU.
    slow_host: int | None = None


CASES = {
    "input": Case(limit="input", hyperparameters={"load_s": 0.03}),
    "narrow network": Case(
        limit="communication", hyperparameters={"width": 20_000}, rates=dict.fromkeys(range(RANKS), NARROW)
    ),
    "computing": Case(limit="compute", hyperparameters={"sleep_s": 0.2}),
    "slow rank": Case(limit="imbalance", hyperparameters={"sleep_s": 0, "cpu_s": 0.04}, slow_host=1),
    "slow link": Case(limit="communication", hyperparameters={"width": 20_000}, rates={1: SLOW}),
    "balanced": Case(limit="balanced", hyperparameters={"sleep_s": 0.14, "load_s": 0.0075, "late_s": 0.03}),
}


@contextlib.contextmanager
def built_in(case: Case, hosts: NamespaceHosts) -> Iterator[None]:
    """Give the hosts the bottleneck of a case."""
    for index, rate in case.rates.items():
        hosts.host(index).throttle(rate)
    try:
        with contextlib.ExitStack() as stack:
            if case.slow_host is not None:
                quota = stack.enter_context(CpuQuota(QUOTA))
                host = hosts.host(case.slow_host)
                for pid in [host.init_pid, *host.pids()]:
                    # A process may have ended meanwhile.
                    with contextlib.suppress(ProcessLookupError):
                        quota.add(pid)
            yield
    finally:
        for index in case.rates:
            hosts.host(index).throttle("")


async def diagnosed(world: World, name: str, case: Case) -> dict[str, Any]:
    """Return the result of one diagnosis."""
    world.runs += 1
    hyperparameters = {
        "global_batch_size": 4 * RANKS, "width": 8, "load_s": 0.0, "cpu_s": 0.0, "sleep_s": 0.04, "late_s": 0.0,
        **case.hyperparameters,
    }  # fmt: skip
    document = {
        "name": name, "entrypoint": "python train.py", "model_dir": "code", "hyperparameters": hyperparameters,
        "resources": {"slots_per_trial": RANKS, "pool": POOL},
    }  # fmt: skip
    key = TrialKey(dag_id="bench", run_id=str(world.runs), task_id="diagnose")
    request = DiagnosisRequest(
        key=key, config=document, template=None, folder=world.home, limits=LIMITS, is_confirming=False
    )
    diagnosis = Diagnosis(world.hook, request, TaskLog(LOG, 10**6), lambda text: None, watcher="bench")
    return await asyncio.wait_for(diagnosis.run(), 900)


def measure(run: Run) -> None:
    quiet()
    # A diagnosis takes half a minute on an idle machine.
    cases = {name: CASES[name] for name in run.size(list(CASES), ["input"])}
    found: dict[str, Counter[str]] = {name: Counter() for name in cases}
    named = 0
    with tempfile.TemporaryDirectory(prefix="w") as home, NamespaceHosts(count=RANKS, slots=1) as hosts:
        world = World(Path(home))
        (Path(home) / "code" / "train.py").write_text(SCRIPT)
        world.add_namespace_hosts(hosts, 1)
        try:
            for _ in range(run.rounds):
                for name, case in cases.items():
                    began, load = time.monotonic(), os.getloadavg()[0]
                    try:
                        with built_in(case, hosts):
                            result = asyncio.run(diagnosed(world, name, case))
                    except (DtrainError, TimeoutError) as error:
                        found[name]["failed"] += 1
                        run.add("wrong", name, 1)
                        run.note(f"{name}: {error}")
                        continue
                    limit = str(result["limit"])
                    found[name][limit] += 1
                    if case.slow_host is not None:
                        slow = hosts.host(case.slow_host).name
                        named += bool(result["slow_ranks"]) and f"'{slow}'" in result["slow_ranks"][0]
                    run.add("wrong", name, float(limit != case.limit))
                    run.add("duration", "ours", time.monotonic() - began)
                    shares = {part: round(share, 2) for part, share in result["shares"].items() if share is not None}
                    run.note(f"{name}: {limit} {shares}, noise {result['noise']:.2f}, load {load:.0f}")
        finally:
            world.hook.links.close_all()
    for name, counts in found.items():
        run.note(f"Verdicts of '{name}': {dict(counts)}")
    if "slow rank" in found:
        run.note(f"The slow rank was named with its host in {named} of {found['slow rank'].total()} diagnoses.")


def missing() -> str | None:
    """Return the reason why this machine cannot run it."""
    if controller_folder() is None:
        return "it needs the right to create cgroups with a CPU quota"
    return netns.missing()


BENCH = Bench(
    what="Verdicts of diagnoses, three hosts with one rank each",
    rows=(
        Row(
            name="wrong",
            what="Wrong verdict, 0 or 1; the notes have the confusion table",
            unit="verdicts",
            sides=dict.fromkeys(CASES, OURS),
            goals=tuple(Goal(side=name, at_most=0) for name in CASES),
        ),
        Row(
            name="duration",
            what="A diagnosis of five runs of 20 steps",
            unit="s",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=120),),
        ),
    ),
    measure=measure,
    rounds=(20, 1),
    missing=missing,
)
