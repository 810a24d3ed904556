"""Statistics of host checks, with known answers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.host_rates import (
    HostRate,
    RateMetric,
    better,
    by_host,
    findings,
    merged,
    rates_of,
    ring_rounds_of,
    rounds_of,
    shown_value,
    slow_rates,
)

GPU = {"metric": "matmul", "slot": 0, "kind": "H100", "value": 6e14, "spread": 0.01}


def device(host: str, value: float, *, slot: int | None = 0, **more: Any) -> HostRate:
    return HostRate(host=host, metric=RateMetric.MATMUL, kind="H100", slot=slot, value=value, **more)


def link(host: str, peer: str, value: float, *, kind: str = "unknown speed", **more: Any) -> HostRate:
    return HostRate(host=host, peer=peer, metric=RateMetric.LINK, kind=kind, value=value, **more)


def mesh(rates: dict[str, tuple[float, float]], **more: Any) -> list[HostRate]:
    """Return the links between hosts, each as fast as its sender and its receiver allow: (sends, receives)."""
    pairs = itertools.permutations(rates, 2)
    return [link(one, other, min(rates[one][0], rates[other][1]), **more) for one, other in pairs]


def named(now: list[HostRate], *, past: list[HostRate] | None = None, **options: Any) -> dict[str, list[str]]:
    return by_host(findings(now, slow_rates(now, (), past or (), **options)))


# -- peers and past ------------------------------------------------------------------------------------
def test_a_device_below_its_peers_is_named_with_its_figure() -> None:
    now = [device("a", 6e14), device("b", 6.1e14), device("c", 4.5e14, slot=3)]
    sentence = "matrix products of slot 3: 450 TFLOP/s, 26% below the 605 TFLOP/s that its peers have"
    assert named(now) == {"c": [sentence]}


@pytest.mark.parametrize(("value", "is_named"), [(0.86, False), (0.84, True)])
def test_the_tolerance_is_fifteen_percent(value: float, is_named: bool) -> None:
    assert bool(named([device("a", 1.0), device("b", 1.0), device("c", value)])) is is_named


def test_another_tolerance_may_be_chosen() -> None:
    now = [device("a", 1.0), device("b", 1.0), device("c", 0.92)]
    assert list(named(now, tolerance=0.05)) == ["c"]


@pytest.mark.parametrize(("value", "is_named"), [(0.55, False), (0.45, True)])
def test_a_disk_is_named_below_half_of_its_peers(value: float, is_named: bool) -> None:
    values = {"a": 1.0, "b": 1.0, "c": value}
    now = [HostRate(host=host, metric=RateMetric.DISK_WRITE, kind="ext4", value=one) for host, one in values.items()]
    assert bool(named(now)) is is_named


def test_devices_of_other_kinds_are_no_peers() -> None:
    slow = HostRate(host="c", metric=RateMetric.MATMUL, kind="T4", slot=0, value=1e13)
    assert named([device("a", 6e14), device("b", 6e14), slow]) == {}


def test_a_host_below_its_own_past_is_named_even_if_it_is_alone() -> None:
    past = [device("a", 6e14), device("a", 6.05e14), device("a", 5.95e14)]
    text = named([device("a", 4e14)], past=past)["a"][0]
    assert text == "matrix products of slot 0: 400 TFLOP/s, 33% below the 600 TFLOP/s that it had before"


def test_two_earlier_checks_are_no_past() -> None:
    assert named([device("a", 4e14)], past=[device("a", 6e14), device("a", 6e14)]) == {}


def test_only_the_latest_values_of_the_past_count() -> None:
    past = [*[device("a", 1.0)] * 20, *[device("a", 9.0)] * 100]
    assert named([device("a", 1.0)], past=past) == {}


def test_scatter_of_the_measurement_widens_the_tolerance_up_to_half_of_the_reference() -> None:
    peers = [device("a", 1.0), device("b", 1.0)]
    assert named([*peers, device("c", 0.7, spread=0.15)]) == {}
    assert list(named([*peers, device("c", 0.45, spread=3.0)])) == ["c"]


def test_scatter_of_the_peers_widens_the_tolerance() -> None:
    values = {"a": 1.0, "b": 0.8, "c": 1.2, "d": 0.7}
    assert named([device(host, value) for host, value in values.items()]) == {}


def test_the_faster_of_two_hosts_is_never_named() -> None:
    assert list(named([device("a", 1.0), device("b", 0.5)])) == ["b"]


# -- links ------------------------------------------------------------------------------------------------
def test_a_host_that_sends_slowly_is_named_once_and_not_its_links() -> None:
    found = named(mesh({"a": (1e9, 1e9), "b": (1e8, 1e9), "c": (1e9, 1e9), "d": (1e9, 1e9)}))
    assert found == {"b": ["network: it sends 100 MB/s at most, 90% below the 1000 MB/s that its peers have"]}


def test_a_host_that_receives_slowly_is_named_among_three() -> None:
    assert list(named(mesh({"a": (1e9, 1e9), "b": (1e9, 1e8), "c": (1e9, 1e9)}))) == ["b"]


def test_a_slow_interface_is_named_for_both_directions_among_three() -> None:
    found = named(mesh({"a": (1e9, 1e9), "b": (1e8, 1e8), "c": (1e9, 1e9)}))
    assert list(found) == ["b"]
    assert len(found["b"]) == 2


def test_one_slow_link_is_named_at_both_of_its_hosts() -> None:
    links = mesh({"a": (1e9, 1e9), "b": (1e9, 1e9), "c": (1e9, 1e9)})
    links = [link("a", "b", 2e8) if (one.host, one.peer) == ("a", "b") else one for one in links]
    sentence = "network a to b: 200 MB/s, 80% below the 1000 MB/s that its peers have"
    assert named(links) == {"a": [sentence], "b": [sentence]}


def test_of_two_hosts_the_slower_direction_is_named_at_both() -> None:
    found = named([link("a", "b", 1e9), link("b", "a", 1e8)])
    assert found == {host: ["network b to a: 100 MB/s, 90% below the 1000 MB/s that its peers have"] for host in "ab"}


def test_a_host_a_fifth_slower_is_named_although_most_links_of_three_hosts_are_its_own() -> None:
    assert list(named(mesh({"a": (1e9, 1e9), "b": (8e8, 8e8), "c": (1e9, 1e9)}))) == ["b"]


def test_a_link_with_the_speed_of_its_interface_is_well() -> None:
    fast = mesh({"a": (5e9, 5e9), "b": (5e9, 5e9)}, kind="10000 Mbit/s")
    assert named([*fast, *mesh({"a": (1e9, 1e9), "c": (1e9, 1e9)}, kind="10000 Mbit/s")]) == {}


@pytest.mark.parametrize(("trip_s", "is_named"), [(0.0009, False), (0.0011, True)])
def test_a_round_trip_is_named_above_three_times_its_peers_and_a_millisecond(trip_s: float, is_named: bool) -> None:
    trips = [
        HostRate(host=one, peer=other, metric=RateMetric.ROUND_TRIP, kind="x", value=value)
        for one, other, value in (("a", "b", 1e-4), ("b", "a", 1e-4), ("a", "c", trip_s), ("c", "b", 1e-4))
    ]
    assert bool(named(trips)) is is_named


# -- rounds -------------------------------------------------------------------------------------------------
@given(st.integers(0, 40))
def test_each_pair_comes_once_and_no_host_twice_in_a_round(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    rounds = rounds_of(hosts)
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in rounds)
    found = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, found)) == sorted(map(list, itertools.combinations(sorted(hosts), 2)))
    assert len(rounds) <= count


@given(st.integers(2, 40))
def test_a_ring_needs_at_most_three_rounds_and_gives_each_host_a_link(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    rounds = ring_rounds_of(hosts)
    assert len(rounds) <= 3
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in rounds)
    assert {host for pairs in rounds for pair in pairs for host in pair} == set(hosts)


# -- healthy fleets -----------------------------------------------------------------------------------------
def test_healthy_fleets_with_scatter_of_three_percent_are_never_named() -> None:
    dice = random.Random(7)
    for _ in range(100):
        hosts = [f"h{number}" for number in range(dice.randint(1, 16))]

        def noisy(value: float) -> float:
            return value * dice.gauss(1.0, 0.03)

        def measured(hosts: list[str] = hosts) -> list[HostRate]:
            now = [device(host, noisy(6e14), slot=slot, spread=0.03) for host in hosts for slot in range(2)]
            return now + [link(one, other, noisy(1e9), spread=0.03) for one, other in itertools.permutations(hosts, 2)]

        past = [device(host, noisy(6e14), slot=slot) for host in hosts for slot in range(2) for _ in range(4)]
        now = measured()
        # As a check does, what seems slow is measured again.
        suspects = {one.rate.subject for one in slow_rates(now, (), past)}
        now = merged(now, [one for one in measured() if one.subject in suspects])
        assert named(now, past=past) == {}


def test_a_host_at_three_quarters_is_named_in_each_of_two_hundred_fleets() -> None:
    dice = random.Random(8)
    for _ in range(200):
        hosts = [f"h{number}" for number in range(dice.randint(3, 24))]
        sick = dice.choice(hosts)
        now = [device(host, 6e14 * dice.gauss(0.7 if host == sick else 1.0, 0.02), spread=0.02) for host in hosts]
        assert list(named(now)) == [sick]


# -- repetitions ---------------------------------------------------------------------------------------------
def test_the_better_of_two_measurements_counts() -> None:
    trips = [HostRate(host="a", peer="b", metric=RateMetric.ROUND_TRIP, kind="x", value=value) for value in (2.0, 1.0)]
    assert better(*trips).value == 1.0
    assert [one.value for one in merged([device("a", 1.0)], [device("a", 2.0), device("b", 3.0)])] == [2.0, 3.0]


# -- answers of hosts ------------------------------------------------------------------------------------------
def test_results_of_a_host_become_rates() -> None:
    rates, problems = rates_of("a", [GPU, {"problem": "no \x1b[31mPyTorch"}], [0])
    assert [(one.place, one.value, one.kind) for one in rates] == [("a slot 0", 6e14, "H100")]
    assert problems == ["no \\x1b[31mPyTorch"]


@pytest.mark.parametrize(
    "change",
    [
        {"value": float("nan")}, {"value": float("inf")}, {"value": -1.0}, {"value": 0}, {"value": "6e14"},
        {"value": True}, {"value": None}, {"value": 1e19}, {"value": 10**400}, {"metric": "link"}, {"metric": "x"},
        {"metric": None}, {"metric": ["matmul"]}, {"slot": 1}, {"slot": True}, {"slot": "0"}, {"kind": 7},
        {"kind": None},
    ],
)  # fmt: skip
def test_a_result_that_no_measurement_can_have_is_a_problem(change: dict[str, Any]) -> None:
    rates, problems = rates_of("a", [{**GPU, **change}], [0])
    assert (rates, problems) == ([], ["it sent a result that no measurement can have"])


@pytest.mark.parametrize("result", [None, [], "x", 7, {}, {"problem": 7}])
def test_another_value_than_a_result_is_a_problem(result: Any) -> None:
    assert rates_of("a", [result], [0]) == ([], ["it sent a result that no measurement can have"])


@pytest.mark.parametrize("spread", [float("nan"), -1, 1e9, "0", None])
def test_an_absurd_scatter_counts_as_a_large_one(spread: Any) -> None:
    [rate], _ = rates_of("a", [{**GPU, "spread": spread}], [0])
    assert rate.spread == 10.0


def test_the_first_of_two_results_for_one_device_counts() -> None:
    rates, problems = rates_of("a", [GPU, {**GPU, "value": 9e14}], [0])
    assert ([one.value for one in rates], problems) == ([6e14], [])


def test_long_texts_of_a_host_are_cut() -> None:
    rates, problems = rates_of("a", [{**GPU, "kind": "x" * 10_000}, {"problem": "y" * 10_000}], [0])
    assert len(rates[0].kind) == 200
    assert len(problems[0]) == 500


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        (RateMetric.MATMUL, 6.123e14, "612 TFLOP/s"), (RateMetric.MATMUL, 1.5e10, "0.015 TFLOP/s"),
        (RateMetric.LINK, 1.25e10, "12500 MB/s"), (RateMetric.ROUND_TRIP, 2.5e-5, "0.025 ms"),
    ],
)  # fmt: skip
def test_values_have_a_unit(metric: RateMetric, value: float, text: str) -> None:
    assert shown_value(metric, value) == text
