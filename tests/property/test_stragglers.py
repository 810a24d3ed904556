"""Slow ranks of generated gangs: noise names none, a slow rank is named whatever the noise."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.series.step_times import Pace, SlowRule, compare, median_of, ratios
from airflow_provider_dtrain.core.series.stragglers import Changes
from tests.support.straggler_gangs import Gang

SEEDS = st.integers(0, 2**32)


def noisy(seed: int, sigma: float, pauses: float):
    """Return forward passes with noise of each second, and pauses of single ranks, e.g. for a checkpoint."""

    def forward(rank: int, second: int) -> float:
        dice = random.Random(f"{seed} {rank} {second}")
        pause = 3.0 if dice.random() < pauses else 1.0
        return 0.1 * pause * max(0.3, dice.gauss(1.0, sigma))

    return forward


@pytest.mark.nightly
@given(seed=SEEDS, ranks=st.integers(2, 16), sigma=st.floats(0, 0.12), pauses=st.floats(0, 0.1))
def test_noise_and_pauses_of_healthy_ranks_name_none(seed: int, ranks: int, sigma: float, pauses: float) -> None:
    assert Gang(ranks).run(300, noisy(seed, sigma, pauses)) == []


@pytest.mark.nightly
@given(
    seed=SEEDS, ranks=st.integers(2, 16), sigma=st.floats(0, 0.08), factor=st.floats(1.6, 5), start=st.integers(0, 200)
)
def test_a_slow_rank_is_named_within_two_minutes_and_no_other(
    seed: int, ranks: int, sigma: float, factor: float, start: int
) -> None:
    healthy = noisy(seed, sigma, 0.0)
    found = Gang(ranks).run(
        420, lambda rank, second: healthy(rank, second) * (factor if (rank, second) >= (ranks - 1, start) else 1)
    )
    named = [(at, one.rank) for at, changes in found for one in changes.named]
    assert [rank for _, rank in named] == [ranks - 1]
    assert named[0][0] <= start + 120
    assert not any(changes.ended for _, changes in found)


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=20))
def test_ratios_are_those_of_the_definition(busy: list[float]) -> None:
    paces = {rank: Pace(step_s=1.0, busy_s=one, moments=[one] * 6) for rank, one in enumerate(busy)}
    for rank, ratio in ratios(paces).items():
        others = median(one for other, one in enumerate(busy) if other != rank)
        assert ratio is not None
        assert abs(ratio - busy[rank] / others) < 1e-9 * ratio


@given(
    st.lists(st.lists(st.none() | st.floats(0, 10), min_size=8, max_size=8), min_size=0, max_size=8), st.floats(1.05, 3)
)
def test_fewer_than_half_of_the_ranks_are_slow(moments: list[list[float | None]], share: float) -> None:
    paces = {
        rank: Pace(step_s=1.0, busy_s=busy, moments=one)
        for rank, one in enumerate(moments)
        if (busy := median_of(one)) is not None
    }
    found = compare(paces, SlowRule(share=share), 10)
    assert sum(one.is_slow for one in found.values()) <= len(paces) / 2


def test_an_empty_check_changes_nothing() -> None:
    assert Gang().watch.check() == Changes()
