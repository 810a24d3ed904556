"""A public trace of 82,000 jobs on 80 hosts of 8 slots: this package's queue, compared with simpler rules.

Run: ``python bench/bench_philly.py --trace philly_jobs.csv``; ``--only WORD`` selects the rows whose name contains it.
It prints a table and never fails. The trace (CC BY 4.0) is not part of this repository: Jeon et al., "Analysis of
Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019; columns job_id, submit_s, gpus,
duration_s. Wait = completion - submission - duration. Wide jobs need more slots than a host has. Jobs that the hosts
can never serve are excluded. Only EASY backfill knows run times. Each job is an experiment of its own, except in the
row of virtual clusters, which share the hosts equally.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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

COST_S = 60.0
HOSTS = 80
SLICES = PoolOptions(preemption="slices")
GOALS = {"mean_completion_s": 4.3, "p99_wide_wait_s": 38.0, "longest_wait_s": 45.0}


def ours(hosts: list[Host], options: PoolOptions) -> SimulatedPolicy:
    return SimulatedQueue(hosts, options, cost_s=COST_S)


@dataclass(frozen=True, kw_only=True)
class Row:
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
ROWS = [
    Row(name="slices"),
    Row(name="priority order, no reservation", make=GREEDY),
    Row(name="EASY backfill, run times known", make=EasyBackfill),
    Row(name="first in, first out", make=FirstInFirstOut),
    Row(name="slices, 25 % not preemptible", choose=quarter_fixed),
    Row(name="slices, virtual clusters", is_shared=True),
    Row(name="no preemption", options=PoolOptions(preemption="off")),
    Row(name="slices, 72 hosts", hosts=72),
    Row(name="priority order, 72 hosts", make=GREEDY, hosts=72),
    Row(name="slices, first half", choose=first_half),
    Row(name="priority order, first half", make=GREEDY, choose=first_half),
    Row(name="slices, second half", choose=second_half),
    Row(name="priority order, second half", make=GREEDY, choose=second_half),
]


def measure(row: Row, jobs: list[SimulatedJob]) -> tuple[Summary, float]:
    hosts, begin = hosts_of([(row.hosts, 8)]), time.perf_counter()
    kept, _ = split(row.choose(jobs), hosts, row.options)
    kept = kept if row.is_shared else [replace(job, group="") for job in kept]
    outcome = simulate(kept, hosts, row.make(hosts, row.options), cost_s=COST_S)
    return summarise(outcome), time.perf_counter() - begin


def hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:.2f}"


def print_row(name: str, summary: Summary, took_s: float) -> None:
    print(
        f"{name:<32}{hours(summary.mean_completion_s):>11}{hours(summary.p99_wide_wait_s):>10}"
        f"{hours(summary.longest_wait_s):>9}{hours(summary.mean_wait_s):>7}{summary.fragmentation_ratio:>7.1%}"
        f"{summary.preemptions:>9}{summary.lost_ratio:>8.2%}{took_s:>7.0f}",
        flush=True,
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", required=True, help="CSV file")
    parser.add_argument("--only", default="", help="only rows whose name contains this word")
    args = parser.parse_args(arguments)
    with open(args.trace, encoding="utf-8", newline="") as file:
        jobs = read_jobs(file, source=args.trace)
    print(f"{len(jobs)} jobs, {HOSTS} hosts of 8 slots, {COST_S:.0f} s lost per preemption; times in hours, took in s")
    print(
        f"{'':<32}{'completion':>11}{'p99 wait':>10}{'longest':>9}{'wait':>7}{'':>7}{'':>9}{'':>8}{'':>7}\n"
        f"{'rule':<32}{'mean':>11}{'wide':>10}{'wait':>9}{'mean':>7}{'frag.':>7}{'preempt.':>9}{'lost':>8}{'took':>7}"
    )
    for row in ROWS:
        if args.only in row.name:
            summary, took_s = measure(row, jobs)
            print_row(row.name, summary, took_s)
            if row.name == "slices":
                values = {name: getattr(summary, name) / 3600 for name in GOALS}
                is_met = all(value <= GOALS[name] for name, value in values.items())
                print(f"  goal 4.30, 38.00, 45.00: {'met' if is_met else 'missed'}")


if __name__ == "__main__":
    main(sys.argv[1:])
