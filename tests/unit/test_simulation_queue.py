"""The queue of a pool on a simulated clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.decision import PassDecision, run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.simulation.baseline_policies import PriorityWithoutReservation
from airflow_provider_dtrain.core.simulation.queue_policy import SimulatedQueue
from airflow_provider_dtrain.core.simulation.report import summarise
from airflow_provider_dtrain.core.simulation.simulator import (
    Orders,
    SimulatedJob,
    SimulatedPolicy,
    SimulationOutcome,
    hosts_of,
    simulate,
    split,
)
from airflow_provider_dtrain.core.simulation.trace import read_jobs, with_not_preemptible
from tests.support.budgets import budget

EXCERPT = Path(__file__).parents[1] / "data" / "philly_excerpt.csv"
ONE = hosts_of([(1, 8)])
TWO = hosts_of([(2, 8)])
OFF = PoolOptions(preemption="off")
SLICES = PoolOptions(preemption="slices", min_run_s=1800.0)
HOUR = 3600


def job(job_id: str, submit_s: float, slots: int, duration_s: float, **fields) -> SimulatedJob:
    return SimulatedJob(job_id=job_id, submit_s=submit_s, slots=slots, duration_s=duration_s, **fields)


def ends(jobs: list[SimulatedJob], hosts: list[Host], options: PoolOptions, cost_s: float = 60) -> dict[str, float]:
    outcome = simulate(jobs, hosts, SimulatedQueue(hosts, options, cost_s=cost_s), cost_s=cost_s)
    return {completion.job.job_id: completion.end_s for completion in outcome.completions}


def test_jobs_start_in_order_and_pass_what_does_not_fit():
    jobs = [job("a", 0, 4, 100), job("b", 10, 16, 50), job("c", 20, 4, 30)]
    assert ends(jobs, TWO, replace(OFF, reservations=0)) == {"c": 50, "a": 100, "b": 150}


def test_a_wide_job_keeps_hosts_so_that_narrow_ones_do_not_starve_it():
    narrow = [job(f"n{number}", 10 * number, 8, 15) for number in range(1, 20)]
    assert ends([*narrow, job("wide", 11, 16, 100)], TWO, OFF)["wide"] == 25 + 100


def test_a_fresh_job_interrupts_one_that_held_its_slots_for_two_hours():
    jobs = [job("long", 0, 8, 10 * HOUR), job("short", 9000, 8, 600)]
    # long works 9000 s and stops for 30 s; short runs until 9630; long loads for 30 s and works the rest.
    assert ends(jobs, ONE, SLICES) == {"short": 9630, "long": 9630 + 30 + 27000}


def test_the_moment_at_which_a_job_is_no_longer_fresh_changes_the_decision():
    jobs = [job("long", 0, 8, 10 * HOUR), job("short", 5000, 8, 600)]
    options = replace(SLICES, fresh_s=8 * 7200.0)
    assert ends(jobs, ONE, options) == {"short": 7200 + 30 + 600, "long": 7830 + 30 + 36000 - 7200}


def test_a_job_runs_for_half_an_hour_before_it_is_interrupted_again():
    jobs = [job("long", 0, 8, 10 * HOUR), job("short", 9000, 8, 600), job("next", 9700, 8, 600)]
    found = ends(jobs, ONE, SLICES)
    assert found["next"] == 9630 + 1800 + 30 + 600
    assert found["long"] == found["next"] + 30 + 36000 - 9000 - (1800 - 30)


def test_a_costly_preemption_waits_for_twenty_times_its_cost():
    jobs = [job("long", 0, 8, 10 * HOUR), job("urgent", 10, 8, 600, priority=1)]
    options = PoolOptions(preemption="priority", min_run_s=1800.0)
    assert ends(jobs, ONE, options, cost_s=60)["urgent"] == 1800 + 30 + 600
    assert ends(jobs, ONE, options, cost_s=200)["urgent"] == 4000 + 100 + 600


def test_a_worse_class_of_the_same_priority_is_interrupted_only_with_slices():
    jobs = [job("long", 0, 8, 10 * HOUR), job("short", 9000, 8, 600)]
    for rule in ("off", "priority"):
        assert ends(jobs, ONE, PoolOptions(preemption=rule)) == {"long": 36000, "short": 36600}


def test_a_job_that_cannot_be_stopped_is_not():
    jobs = [job("long", 0, 8, 10 * HOUR, is_preemptible=False), job("short", 9000, 8, 600)]
    assert ends(jobs, ONE, SLICES) == {"long": 36000, "short": 36600}


def test_only_as_many_jobs_are_stopped_as_needed():
    jobs = [*(job(f"l{number}", 0, 4, 10 * HOUR) for number in range(4)), job("short", 9000, 4, 600)]
    outcome = simulate(jobs, TWO, SimulatedQueue(TWO, SLICES))
    assert sum(completion.preemptions for completion in outcome.completions) == 1


@cache
def excerpt() -> tuple[SimulatedJob, ...]:
    with EXCERPT.open(encoding="utf-8", newline="") as file:
        return tuple(read_jobs(file))


def conserved(jobs: list[SimulatedJob], outcome: SimulationOutcome) -> None:
    """Check that every job ended once, none early, and that work is what was held but for the cost of preemptions."""
    assert sorted(each.job.job_id for each in outcome.completions) == sorted(job.job_id for job in jobs)
    expected = 0.0
    for each in outcome.completions:
        lost = outcome.cost_s * each.preemptions
        assert each.end_s - each.first_start_s >= each.job.duration_s + lost - 1e-6
        assert each.wait_s >= lost - 1e-6
        expected += each.job.slots * (each.job.duration_s + lost)
    assert outcome.held_slot_s == pytest.approx(expected)


@pytest.mark.parametrize("preemption", ["off", "priority", "slices"])
def test_no_work_is_lost_or_done_twice_on_the_excerpt(preemption):
    hosts = hosts_of([(5, 8)])
    jobs, left_out = split(with_not_preemptible(excerpt(), 0.2, 0), hosts, PoolOptions())
    assert left_out == {12: 5}
    jobs = [replace(each, priority=41 if int(each.job_id) % 7 == 0 else 42) for each in jobs]
    outcome = simulate(jobs, hosts, SimulatedQueue(hosts, PoolOptions(preemption=preemption)))
    conserved(jobs, outcome)
    assert any(each.preemptions for each in outcome.completions) == (preemption != "off")
    assert all(each.job.is_preemptible for each in outcome.completions if each.preemptions)


def test_the_same_trace_has_the_same_outcome():
    hosts = hosts_of([(3, 8), (2, 4)])
    jobs = split(excerpt()[:200], hosts, PoolOptions())[0]
    first, second = (simulate(jobs, hosts, SimulatedQueue(hosts, SLICES)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("max_wait_h", [1, 4, 8, 20])
def test_protected_jobs_of_many_groups_displace_reservations_without_trouble(max_wait_h):
    hosts = hosts_of([(5, 8)])
    options = replace(SLICES, max_wait_s=max_wait_h * HOUR)
    jobs = split(excerpt(), hosts, options)[0]
    assert len({job.group for job in jobs}) > 5
    conserved(jobs, simulate(jobs, hosts, SimulatedQueue(hosts, options)))


def run_on_excerpt(make, options: PoolOptions) -> SimulationOutcome:
    hosts = hosts_of([(5, 8)])
    return simulate(split(excerpt(), hosts, options)[0], hosts, make(hosts, options))


def test_slices_shorten_completions_and_the_longest_waits_of_the_excerpt():
    greedy = summarise(run_on_excerpt(PriorityWithoutReservation, SLICES))
    ours = summarise(run_on_excerpt(SimulatedQueue, SLICES))
    assert ours.mean_completion_s < 0.8 * greedy.mean_completion_s
    assert ours.longest_wait_s < 0.5 * greedy.longest_wait_s


@dataclass
class Book:
    """Accounting of one gang, as in the store."""

    request: GangRequest
    since: float
    placement: Placement | None = None
    started: float = 0.0
    is_ending: bool = False

    def count_to(self, now: float, *, is_eligible: bool = True) -> None:
        field = "held_s" if self.placement is not None else "waited_s"
        grown = getattr(self.request, field) + (now - self.since if is_eligible or self.placement else 0.0)
        self.request, self.since = replace(self.request, **{field: grown}), now


class Snapshots:
    """The same pool as the store has it: nothing but rows is kept between two calls of ``run_pass``."""

    def __init__(self, hosts: list[Host], options: PoolOptions, cost_s: float = 60.0) -> None:
        self.hosts, self.options, self.cost_s = hosts, options, cost_s
        self.waiting: dict[str, Book] = {}
        self.running: dict[str, Book] = {}

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        request = GangRequest(
            job.job_id, job.slots, priority=job.priority, sequence=sequence, group=job.group,
            max_runtime_s=job.max_runtime_s, is_preemptible=job.is_preemptible,
        )  # fmt: skip
        self.waiting[job.job_id] = Book(request, now)

    def finish(self, job_id: str, now: float) -> None:
        del self.running[job_id]

    def requeue(self, job_id: str, now: float) -> None:
        book = self.waiting[job_id] = self.running.pop(job_id)
        book.count_to(now)
        book.placement, book.is_ending = None, False

    def decide(self, now: float) -> Orders:
        for book in (*self.waiting.values(), *self.running.values()):
            book.count_to(now)
        requests = [book.request for book in self.waiting.values()]
        decision = run_pass(self.snapshot(), requests, self.options, [self.gang(b, now) for b in self.running.values()])
        for job_id, placement in decision.grants:
            book = self.running[job_id] = self.waiting.pop(job_id)
            book.placement, book.started = placement, now
        for victim, _ in decision.preemptions:
            self.running[victim].is_ending = True
        self.remember(decision)
        return Orders(
            starts=decision.grants, stops=[victim for victim, _ in decision.preemptions], due_s=decision.next_due_s
        )

    def remember(self, decision: PassDecision) -> None:
        kept: dict[str, list[str]] = {}
        for host, job_id in decision.reserved.items():
            kept.setdefault(job_id, []).append(host)
        for job_id, book in self.waiting.items():
            assert job_id not in decision.ineligible
            claim, hosts = decision.claims.get(job_id), tuple(kept.get(job_id, ()))
            book.request = replace(book.request, claim=claim, reserved_hosts=hosts)
        for book in self.running.values():
            book.request = replace(book.request, claim=None, reserved_hosts=())

    def snapshot(self) -> list[Host]:
        held: dict[str, set[int]] = {host.name: set() for host in self.hosts}
        for book in self.running.values():
            assert book.placement is not None
            for name, indices in book.placement.slots.items():
                held[name].update(indices)
        return [replace(host, held=frozenset(held[host.name])) for host in self.hosts]

    def gang(self, book: Book, now: float) -> RunningGang:
        request, ran = book.request, now - book.started
        assert book.placement is not None
        return RunningGang(
            request_id=request.request_id, placement=book.placement, owner=request.request_id,
            priority=request.priority, sequence=request.sequence, group=request.group, held_s=request.held_s,
            waited_s=request.waited_s, ran_s=ran, is_preemptible=request.is_preemptible, cost_s=self.cost_s,
            is_ending=book.is_ending,
            ends_in_s=None if request.max_runtime_s is None else max(0.0, request.max_runtime_s - ran),
        )  # fmt: skip


def history(outcome: SimulationOutcome) -> list[tuple[str, float, float, int]]:
    return [(each.job.job_id, each.first_start_s, each.end_s, each.preemptions) for each in outcome.completions]


@pytest.mark.parametrize("preemption", ["off", "priority", "slices"])
def test_the_queue_with_a_memory_decides_as_passes_over_stored_rows_do(preemption):
    hosts = hosts_of([(3, 8), (2, 4)])
    options = PoolOptions(preemption=preemption, max_wait_s=6 * HOUR)
    jobs = split(excerpt()[:150], hosts, options)[0]
    jobs = [replace(each, priority=41 if int(each.job_id) % 7 == 0 else 42) for each in jobs]
    with_memory = simulate(jobs, hosts, SimulatedQueue(hosts, options))
    from_rows = simulate(jobs, hosts, Snapshots(hosts, options))
    assert history(with_memory) == history(from_rows)


small_jobs = st.lists(
    st.builds(
        SimulatedJob,
        job_id=st.just(""),
        submit_s=st.integers(0, 5 * HOUR).map(float),
        slots=st.sampled_from([0, 1, 1, 2, 3, 4, 8, 12, 16, 20]),
        duration_s=st.integers(0, 12 * HOUR).map(float),
        group=st.sampled_from(["", "a", "b"]),
        priority=st.sampled_from([41, 42]),
        max_runtime_s=st.none() | st.just(12.0 * HOUR) | st.just(13.0 * HOUR),
        is_preemptible=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)
small_options = st.builds(
    PoolOptions,
    preemption=st.sampled_from(["off", "priority", "slices"]),
    reservations=st.integers(0, 3),
    max_wait_s=st.sampled_from([0.0, HOUR, 36.0 * HOUR]),
    protected_share=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    min_run_s=st.sampled_from([0.0, 60.0, 1800.0]),
    fit=st.sampled_from(["best", "worst"]),
    allow_heterogeneous=st.booleans(),
)


@settings(max_examples=budget(60), deadline=None)
@given(small_jobs, small_options, st.sampled_from([0.0, 60.0, 601.0]))
def test_every_small_trace_ends_with_all_its_work_done(jobs, options, cost_s):
    hosts = hosts_of([(2, 8), (1, 4)])
    named, _ = split([replace(each, job_id=str(number)) for number, each in enumerate(jobs)], hosts, options)
    rules: list[SimulatedPolicy] = [SimulatedQueue(hosts, options, cost_s=cost_s), Snapshots(hosts, options, cost_s)]
    outcomes = [simulate(named, hosts, rule, cost_s=cost_s) for rule in rules]
    for outcome in outcomes:
        conserved(named, outcome)
    assert history(outcomes[0]) == history(outcomes[1])
