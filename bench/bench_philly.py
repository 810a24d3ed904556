"""A public trace of 82,000 jobs on 80 hosts of 8 slots: this package's queue, compared with simpler rules.

The variable DTRAIN_BENCH_TRACE names the trace, a CSV file with the columns job_id, submit_s, gpus, duration_s. Without
it, and with ``--quick``, an excerpt of 500 jobs runs on 4 hosts, in rows of its own. The trace (CC BY 4.0) is not part
of this repository: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX
ATC 2019. Wait = completion - submission - duration. Wide jobs need more slots than a host has. Jobs that the hosts can
never serve are excluded. Only EASY backfill knows run times. Each job is an experiment of its own, except in the row of
virtual clusters, which share the hosts equally.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_provider_dtrain.core.scheduling.model import Host, PoolOptions
from airflow_provider_dtrain.core.simulation.baseline_policies import (
    EasyBackfill,
    FirstInFirstOut,
    PriorityWithoutReservation,
)
from airflow_provider_dtrain.core.simulation.queue_policy import SimulatedQueue
from airflow_provider_dtrain.core.simulation.report import Summary, summarise
from airflow_provider_dtrain.core.simulation.simulator import SimulatedJob, SimulatedPolicy, hosts_of, simulate, split
from airflow_provider_dtrain.core.simulation.trace import read_jobs, with_not_preemptible
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal
from bench.framework.rows import Row as TableRow

COST_S = 60.0
HOSTS = 80
SLICES = PoolOptions(preemption="slices")
EXCERPT = Path(__file__).parents[1] / "tests" / "data" / "philly_excerpt.csv"
EXCERPT_HOSTS = 4


def ours(hosts: list[Host], options: PoolOptions) -> SimulatedPolicy:
    return SimulatedQueue(hosts, options, cost_s=COST_S)


@dataclass(frozen=True, kw_only=True)
class Rule:
    name: str
    make: Callable[[list[Host], PoolOptions], SimulatedPolicy] = ours
    options: PoolOptions = SLICES
    hosts: int = HOSTS
    choose: Callable[[list[SimulatedJob]], list[SimulatedJob]] = field(default=lambda jobs: jobs)
    is_shared: bool = False


def first_half(jobs: list[SimulatedJob]) -> list[SimulatedJob]:
    return jobs[: len(jobs) // 2]


def second_half(jobs: list[SimulatedJob]) -> list[SimulatedJob]:
    return jobs[len(jobs) // 2 :]


def quarter_fixed(jobs: list[SimulatedJob]) -> list[SimulatedJob]:
    return with_not_preemptible(jobs, 0.25, seed=0)


GREEDY = PriorityWithoutReservation
RULES = [
    Rule(name="slices"),
    Rule(name="priority order, no reservation", make=GREEDY),
    Rule(name="EASY backfill, run times known", make=EasyBackfill),
    Rule(name="first in, first out", make=FirstInFirstOut),
    Rule(name="slices, 25 % not preemptible", choose=quarter_fixed),
    Rule(name="slices, virtual clusters", is_shared=True),
    Rule(name="no preemption", options=PoolOptions(preemption="off")),
    Rule(name="slices, 72 hosts", hosts=72),
    Rule(name="priority order, 72 hosts", make=GREEDY, hosts=72),
    Rule(name="slices, first half", choose=first_half),
    Rule(name="priority order, first half", make=GREEDY, choose=first_half),
    Rule(name="slices, second half", choose=second_half),
    Rule(name="priority order, second half", make=GREEDY, choose=second_half),
]


def summary_of(rule: Rule, jobs: list[SimulatedJob], count: int) -> Summary:
    """Return the summary of one rule on a number of hosts."""
    hosts = hosts_of([(count, 8)])
    kept, _ = split(rule.choose(jobs), hosts, rule.options)
    kept = kept if rule.is_shared else [replace(job, group="") for job in kept]
    return summarise(simulate(kept, hosts, rule.make(hosts, rule.options), cost_s=COST_S))


def measure(run: Run) -> None:
    named = os.environ.get("DTRAIN_BENCH_TRACE")
    path = Path(named) if named and not run.is_quick else EXCERPT
    with path.open(encoding="utf-8", newline="") as file:
        jobs = read_jobs(file, source=str(path))
    run.note(f"{len(jobs)} jobs of {path.name}, {COST_S:.0f} s lost per preemption.")
    of = "excerpt: " if path == EXCERPT else ""
    run.add(f"{of}completion", DURATION, sum(job.duration_s for job in jobs) / len(jobs) / 3600)
    for rule in RULES:
        summary = summary_of(rule, jobs, EXCERPT_HOSTS * rule.hosts // HOSTS if path == EXCERPT else rule.hosts)
        run.add(f"{of}completion", rule.name, summary.mean_completion_s / 3600)
        run.add(f"{of}longest wait", rule.name, summary.longest_wait_s / 3600)
        if summary.p99_wide_wait_s is not None:
            run.add(f"{of}wait of wide jobs", rule.name, summary.p99_wide_wait_s / 3600)
        run.add(f"{of}preemptions", rule.name, summary.preemptions)


DURATION = "mean duration"
SIDES = {rule.name: OURS if rule.make is ours else PEER for rule in RULES}


def _row(name: str, what: str, unit: str, at_most: float | None) -> TableRow:
    goals = () if at_most is None else (Goal(side="slices", at_most=at_most),)
    sides = {**SIDES, DURATION: LIMIT} if name.endswith("completion") else SIDES
    return TableRow(name=name, what=what, unit=unit, sides=sides, goals=goals)


BENCH = Bench(
    what="A trace of a shared cluster, simulated",
    rows=(
        _row("completion", "Mean time from submission to completion", "h", 4.0),
        _row("wait of wide jobs", "99th percentile, jobs of more than 8 slots", "h", 30),
        _row("longest wait", "Of any job", "h", 36),
        _row("preemptions", "Their number", "preemptions", None),
        *(
            _row(f"excerpt: {name}", f"The same, {EXCERPT_HOSTS} hosts", unit, None)
            for name, unit in (
                ("completion", "h"),
                ("wait of wide jobs", "h"),
                ("longest wait", "h"),
                ("preemptions", ""),
            )
        ),
    ),
    measure=measure,
    rounds=(1, 1),
)
