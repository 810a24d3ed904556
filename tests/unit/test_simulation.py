from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_dtrain.core.scheduling.model import Placement, PoolOptions
from airflow_provider_dtrain.core.simulation.baseline_policies import (
    EasyBackfill,
    FirstInFirstOut,
    PriorityWithoutReservation,
)
from airflow_provider_dtrain.core.simulation.report import percentile, summarise
from airflow_provider_dtrain.core.simulation.simulator import (
    Orders,
    SimulatedJob,
    SimulationOutcome,
    hosts_of,
    simulate,
    split,
)

ONE = hosts_of([(1, 8)])
TWO = hosts_of([(2, 8)])
BASELINES = [FirstInFirstOut, PriorityWithoutReservation, EasyBackfill]


def job(job_id: str, submit_s: float, slots: int, duration_s: float, **fields) -> SimulatedJob:
    return SimulatedJob(job_id=job_id, submit_s=submit_s, slots=slots, duration_s=duration_s, **fields)


def ends(outcome: SimulationOutcome) -> dict[str, float]:
    return {completion.job.job_id: completion.end_s for completion in outcome.completions}


#: One host of 8: b and d share it, c needs all of it.
QUEUE = [job("a", 0, 8, 100), job("b", 10, 4, 50), job("c", 20, 8, 10), job("d", 30, 4, 50)]


def test_first_in_first_out_lets_nothing_pass_the_first_that_waits():
    outcome = simulate(QUEUE, ONE, FirstInFirstOut(ONE, PoolOptions()))
    assert ends(outcome) == {"a": 100, "b": 150, "c": 160, "d": 210}


def test_priority_order_without_reservation_starts_whatever_fits():
    outcome = simulate(QUEUE, ONE, PriorityWithoutReservation(ONE, PoolOptions()))
    assert ends(outcome) == {"a": 100, "b": 150, "d": 150, "c": 160}


def test_priority_order_looks_at_the_priority_before_the_submission():
    jobs = [*QUEUE, job("urgent", 40, 8, 5, priority=1)]
    outcome = simulate(jobs, ONE, PriorityWithoutReservation(ONE, PoolOptions()))
    assert ends(outcome) == {"a": 100, "urgent": 105, "b": 155, "d": 155, "c": 165}


def test_easy_backfill_fills_up_with_what_ends_in_time():
    outcome = simulate(QUEUE, ONE, EasyBackfill(ONE, PoolOptions()))
    assert ends(outcome) == {"a": 100, "b": 150, "d": 150, "c": 160}


def test_easy_backfill_never_delays_the_first_that_waits():
    jobs = [*QUEUE[:3], job("d", 30, 4, 51)]
    outcome = simulate(jobs, ONE, EasyBackfill(ONE, PoolOptions()))
    assert ends(outcome) == {"a": 100, "b": 150, "c": 160, "d": 211}


def test_easy_backfill_uses_other_hosts_for_as_long_as_it_likes():
    jobs = [job("a", 0, 8, 100), job("b", 1, 2, 300), job("c", 2, 8, 10), job("d", 3, 4, 500)]
    outcome = simulate(jobs, TWO, EasyBackfill(TWO, PoolOptions()))
    assert ends(outcome) == {"a": 100, "c": 110, "b": 301, "d": 503}


def test_without_reservation_a_wide_job_waits_while_narrow_ones_come():
    narrow = [job(f"n{number}", 10 * number, 8, 15) for number in range(1, 20)]
    wide = job("wide", 11, 16, 100)
    greedy = simulate([*narrow, wide], TWO, PriorityWithoutReservation(TWO, PoolOptions()))
    strict = simulate([*narrow, wide], TWO, FirstInFirstOut(TWO, PoolOptions()))
    assert ends(greedy)["wide"] == 190 + 15 + 100
    assert ends(strict)["wide"] == 25 + 100


def test_a_job_without_slots_starts_at_once():
    for rule in BASELINES:
        outcome = simulate([job("a", 0, 8, 10), job("cpu", 1, 0, 5)], ONE, rule(ONE, PoolOptions()))
        assert ends(outcome) == {"cpu": 6, "a": 10}


def test_a_job_of_no_duration_ends_when_it_starts():
    outcome = simulate([job("a", 3, 8, 0), job("b", 3, 8, 7)], ONE, FirstInFirstOut(ONE, PoolOptions()))
    assert ends(outcome) == {"a": 3, "b": 10}


def test_the_numbers_of_a_known_outcome():
    summary = summarise(simulate(QUEUE, ONE, FirstInFirstOut(ONE, PoolOptions())))
    assert summary.jobs == 4
    assert summary.mean_wait_s == (0 + 90 + 130 + 130) / 4
    assert summary.p95_wait_s == summary.longest_wait_s == 130
    assert summary.p99_wide_wait_s is None
    assert summary.mean_completion_s == (100 + 140 + 140 + 180) / 4
    assert summary.makespan_s == 210
    assert summary.utilisation_ratio == pytest.approx((800 + 200 + 80 + 200) / (8 * 210))
    # Jobs wait from 10 to 160; half of the host is free from 100 to 150.
    assert summary.fragmentation_ratio == pytest.approx(0.5 * 50 / 150)
    assert (summary.preemptions, summary.lost_ratio) == (0, 0)


def test_only_jobs_that_no_single_host_serves_are_wide():
    jobs = [job("a", 0, 16, 10), job("b", 0, 16, 10), job("c", 0, 8, 10)]
    summary = summarise(simulate(jobs, TWO, FirstInFirstOut(TWO, PoolOptions())))
    assert summary.p99_wide_wait_s == 10
    assert summary.longest_wait_s == 20


def test_a_percentile_is_the_value_that_so_many_do_not_exceed():
    assert [percentile(range(1, 101), percent) for percent in (0.1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([7.0], 99) == 7.0
    assert percentile([1, 2, 3], 67) == 3


def test_an_outcome_without_jobs_has_no_numbers():
    outcome = simulate([], ONE, FirstInFirstOut(ONE, PoolOptions()))
    with pytest.raises(ValueError, match="No job has ended"):
        summarise(outcome)


def test_jobs_that_no_hosts_can_serve_are_left_out_and_counted():
    jobs = [job("a", 0, 12, 1), job("b", 0, 16, 1), job("c", 0, 12, 1), job("d", 0, 99, 1)]
    kept, left_out = split(jobs, TWO, PoolOptions())
    assert [each.job_id for each in kept] == ["b"]
    assert left_out == {12: 2, 99: 1}


def test_unequal_hosts_serve_what_they_sum_up_to_only_where_that_is_allowed():
    hosts = hosts_of([(1, 8), (1, 4)])
    jobs = [job("a", 0, 12, 1)]
    assert split(jobs, hosts, PoolOptions())[0] == []
    assert split(jobs, hosts, PoolOptions(allow_heterogeneous=True))[0] == jobs


def test_jobs_may_come_in_any_order():
    forward = simulate(QUEUE, ONE, FirstInFirstOut(ONE, PoolOptions()))
    backward = simulate(QUEUE[::-1], ONE, FirstInFirstOut(ONE, PoolOptions()))
    assert forward == backward


def test_progress_counts_the_jobs_that_have_ended():
    seen: list[int] = []
    jobs = [job(str(number), number, 1, 3) for number in range(2000)]
    simulate(jobs, ONE, FirstInFirstOut(ONE, PoolOptions()), on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen
    assert 0 < seen[-1] <= 2000


class Wrong:
    """A rule that orders what it is given."""

    def __init__(self, *orders: Orders) -> None:
        self.orders = list(orders)

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        pass

    def finish(self, job_id: str, now: float) -> None:
        pass

    def requeue(self, job_id: str, now: float) -> None:
        pass

    def decide(self, now: float) -> Orders:
        return self.orders.pop(0) if self.orders else Orders()


def start(*pairs: tuple[str, Sequence[int]]) -> Orders:
    return Orders(starts=[(name, Placement({"host-0001": tuple(indices)})) for name, indices in pairs])


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([start(("a", range(4)), ("b", range(3, 7)))], "not free"),
        ([start(("a", range(6, 10)))], "not free"),
        ([start(("a", range(3)))], "wants 4 slots and was given 3"),
        ([start(("a", range(4)), ("a", range(4, 8)))], "runs already"),
        ([Orders(stops=["a"])], "does not run"),
        ([start(("a", range(4)))], "starts none of 1"),
    ],
)
def test_a_rule_that_breaks_the_laws_of_slots_is_refused(orders: list[Orders], message: str):
    with pytest.raises(ValueError, match=message):
        simulate([job("a", 0, 4, 10), job("b", 0, 4, 10)], ONE, Wrong(*orders))


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(ValueError, match="Two jobs are called 'a'"):
        simulate([job("a", 0, 1, 10), job("a", 1, 1, 10)], ONE, FirstInFirstOut(ONE, PoolOptions()))


def test_a_stopped_job_holds_its_slots_for_half_of_the_cost_and_works_off_the_other_half_later():
    stopper = Wrong(
        start(("a", range(8))),
        Orders(stops=["a"]),
        start(("b", range(8))),
        start(("a", range(8))),
    )
    outcome = simulate([job("a", 0, 8, 100), job("b", 40, 8, 10)], ONE, stopper, cost_s=60)
    # a works 0-40, stops until 70; b 70-80; a loads 80-110 and works off the rest until 170.
    assert ends(outcome) == {"b": 80, "a": 170}
    assert {each.job.job_id: each.preemptions for each in outcome.completions} == {"a": 1, "b": 0}
    assert outcome.held_slot_s == 8 * (100 + 60 + 10)
    assert summarise(outcome).lost_ratio == pytest.approx(60 / 170)


def test_a_preemption_without_cost_frees_the_slots_at_once():
    stopper = Wrong(start(("a", range(8))), Orders(stops=["a"]), start(("b", range(8))), start(("a", range(8))))
    outcome = simulate([job("a", 0, 8, 100), job("b", 40, 8, 10)], ONE, stopper, cost_s=0)
    assert ends(outcome) == {"b": 50, "a": 110}


def test_a_job_in_the_middle_of_its_restart_can_be_stopped_again():
    stopper = Wrong(
        start(("a", range(8))), Orders(stops=["a"]), start(("b", range(8))), start(("a", range(8))),
        Orders(stops=["a"]), start(("c", range(8))), start(("a", range(8))),
    )  # fmt: skip
    jobs = [job("a", 0, 8, 100), job("b", 40, 8, 10), job("c", 90, 8, 10)]
    outcome = simulate(jobs, ONE, stopper, cost_s=60)
    # The second stop, at 90, comes 10 s into the restart: 20 s of it and 30 s of the new one remain.
    assert ends(outcome) == {"b": 80, "c": 130, "a": 130 + 20 + 30 + 60}
    assert outcome.held_slot_s == 8 * (100 + 2 * 60 + 20)
