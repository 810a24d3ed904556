"""Slow ranks of a running gang as measurements arrive."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.series.slow_causes import SlowCause
from airflow_provider_dtrain.core.series.step_times import SlowRule
from tests.support.straggler_gangs import START_S, Forward, Gang


def slow_from(start: int, end: int = 10**6, rank: int = 2, factor: float = 1.6) -> Forward:
    return lambda one, second: 0.1 * (factor if one == rank and start <= second < end else 1)


def test_a_straggler_is_named_once_within_two_minutes_and_again_when_it_ends() -> None:
    gang = Gang()
    found = gang.run(1200, slow_from(300, 600), {2: {"cpu_throttled": 71.0}})
    (named_at, first), (ended_at, last) = found
    (one,) = first.named
    assert (one.rank, one.host, one.finding.cause) == (2, "h2", SlowCause.CPU_QUOTA)
    assert 300 < named_at <= 390
    assert abs(one.since_s - START_S - 300) <= 10
    assert one.ratio == pytest.approx(1.55, abs=0.1)
    assert one.cost == pytest.approx(0.06 / 0.21, rel=0.1)
    assert 600 < ended_at <= 680
    assert list(last.ended) == [2]
    assert abs(last.ended[2] - START_S - 600) <= 20


def test_a_healthy_gang_names_none() -> None:
    assert Gang().run(3600) == []


def test_a_gang_whose_first_steps_are_slow_names_none() -> None:
    assert Gang().run(600, slow_from(0, 30, factor=10)) == []


def test_a_phase_of_one_rank_and_ranks_that_are_slow_by_turns_name_none() -> None:
    assert Gang().run(1200, lambda rank, second: 0.5 if rank == 0 and second % 120 < 15 else 0.1) == []
    assert Gang().run(1200, lambda rank, second: 0.2 if rank == (second // 10) % 4 else 0.1) == []


def test_of_several_slow_ranks_the_slowest_comes_first() -> None:
    factors = {2: 1.5, 5: 2.0}
    ((_, found), *_) = Gang(8).run(120, lambda rank, _: 0.1 * factors.get(rank, 1))
    assert [one.rank for one in found.named] == [5, 2]


def test_two_ranks_are_enough() -> None:
    ((_, found),) = Gang(2).run(120, slow_from(0, rank=1))
    assert [one.rank for one in found.named] == [1]
    assert Gang(1).run(120, slow_from(0, rank=0)) == []


def test_a_longer_time_and_a_larger_share_name_later_or_never() -> None:
    ((named_at, _),) = Gang(rule=SlowRule(after_s=300)).run(600, slow_from(0))
    assert 300 <= named_at <= 330
    assert Gang(rule=SlowRule(share=2)).run(600, slow_from(0)) == []


def test_the_device_of_the_rank_and_its_host_give_the_cause() -> None:
    facts = {rank: {"gpu_thermal_slowdown": 90.0 if rank == 2 else 0.0, "gpu_temperature": 60.0} for rank in range(4)}
    ((_, found),) = Gang().run(120, slow_from(0), facts)
    assert found.named[0].finding.cause == SlowCause.GPU_THERMAL
    ((_, found),) = Gang().run(120, slow_from(0), {one: {"cpu_steal": 20.0 * (one == 2)} for one in range(4)})
    assert found.named[0].finding.cause == SlowCause.CPU_STEAL


def test_another_cause_is_named_once_it_stays() -> None:
    gang = Gang()
    ((_, found),) = gang.run(120, slow_from(0), {2: {"cpu_steal": 30.0}})
    assert found.named[0].finding.cause == SlowCause.CPU_STEAL
    ((_, found),) = gang.run(300, slow_from(0), {2: {"cpu_steal": 0.0, "cpu_throttled": 80.0}})
    assert (found.named, [one.finding.cause for one in found.changed]) == ((), [SlowCause.CPU_QUOTA])


def test_a_new_follower_does_not_name_a_rank_again_and_names_its_end() -> None:
    gang = Gang(named={2: SlowCause.UNKNOWN})
    assert gang.run(300, slow_from(0)) == []
    ((_, found),) = gang.run(300)
    assert (list(found.ended), found.named) == ([2], ())


def test_a_host_that_is_no_longer_read_leaves_the_others_to_be_compared() -> None:
    gang = Gang()
    assert gang.run(60) == []
    silent = gang.places.pop(3)
    assert silent.host == "h3"
    ((named_at, found),) = gang.run(600, slow_from(60, rank=1))
    assert [one.rank for one in found.named] == [1]
    assert 120 < named_at <= 180


def test_measurements_of_another_hosts_rank_are_left_out() -> None:
    gang = Gang()
    far = gang.measured(2, 0, slow_from(0, factor=50), {})
    for _ in range(3):
        gang.watch.add("h1", far)
    assert gang.run(300) == []


def test_the_window_does_not_grow() -> None:
    gang = Gang(2)
    gang.run(300)
    size = sum(map(len, gang.watch._sums.values()))
    gang.run(3000)
    assert sum(map(len, gang.watch._sums.values())) == size
