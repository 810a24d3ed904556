"""Offset of a host's clock: the true one is always within the uncertainty, and a step of a clock is noticed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.host_facts import clock_text
from airflow_provider_dtrain.engine.operations.probe_report import is_clock_wrong, warnings
from airflow_provider_dtrain.hosts.channel.clock import SAMPLES, HostClock


class Machines:
    """A machine here and a host, with their clocks."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self.now, self.offset_s, self.step_s = 1000.0, offset_s, 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now + self.step_s

    def exchange(self, there_s: float, back_s: float) -> dict[str, Any]:
        """Request a reading, which arrives after these seconds, and let its answer arrive."""
        asked_s = self.now
        self.now += there_s
        reading = {"wall_s": 1_800_000_000.0 + self.now + self.offset_s, "boottime_s": self.now + 7.0}
        self.now += back_s
        return {**reading, "asked_s": asked_s}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines()
    monkeypatch.setattr(time, "monotonic", lambda: made.monotonic())
    monkeypatch.setattr(time, "time", lambda: made.time())
    return made


DELAYS = st.floats(0.0, 30.0)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=3 * SAMPLES))
def test_the_true_offset_is_within_the_uncertainty_of_the_shortest_round_trip(
    offset_s: float, delays: list[tuple[float, float]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machines = Machines(offset_s)
        patch.setattr(time, "monotonic", machines.monotonic)
        patch.setattr(time, "time", machines.time)
        clock = HostClock(**machines.exchange(*delays[0]))
        for there_s, back_s in delays[1:]:
            clock.take(**machines.exchange(there_s, back_s))
        best = clock.best
        assert best.offset_s is not None
        assert abs(best.offset_s - offset_s) <= best.uncertainty_s + 1e-6
        assert abs(best.boot_offset_s - (7.0 - 1_800_000_000.0)) <= best.uncertainty_s + 1e-6
        assert best.uncertainty_s <= min(sum(pair) for pair in delays[-SAMPLES:]) / 2 + 1e-6


def test_a_greeting_that_was_slow_gives_way_to_a_quick_answer(machines: Machines) -> None:
    clock = HostClock(**machines.exchange(0.9, 0.1))
    assert clock.best.uncertainty_s == pytest.approx(0.5)
    assert clock.best.offset_s == pytest.approx(0.4), "all that is known is that it is between -0.1 and 0.9"
    clock.take(**machines.exchange(0.002, 0.001))
    assert clock.best.offset_s == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize("where", ["here", "there"])
def test_after_a_step_of_a_clock_only_later_readings_count(machines: Machines, where: str) -> None:
    clock = HostClock(**machines.exchange(0.001, 0.001))
    clock.take(**machines.exchange(0.0, 0.0))
    if where == "here":
        machines.step_s -= 5.0
    else:
        machines.offset_s += 5.0
    clock.take(**machines.exchange(0.2, 0.2))
    assert clock.best.offset_s == pytest.approx(5.0, abs=0.2)


def test_a_host_that_does_not_send_its_wall_clock_has_no_offset(machines: Machines) -> None:
    clock = HostClock(**{**machines.exchange(0.1, 0.1), "wall_s": None})
    assert clock.best.offset_s is None
    clock.take(**machines.exchange(0.01, 0.01))
    assert clock.best.offset_s == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "is_wrong"),
    [
        (2.1, 0.05, True),
        (-2.1, 0.05, True),
        (2.1, 0.2, False),
        (10.0, 9.0, False),
        (1.9, 0.0, False),
        (None, None, False),
    ],
)
def test_a_warning_needs_an_offset_beyond_the_limit_and_the_uncertainty(
    offset_s: float | None, uncertainty_s: float | None, is_wrong: bool
) -> None:
    facts = {"torch": "2", "clock_offset_s": offset_s, "clock_uncertainty_s": uncertainty_s}
    assert is_clock_wrong(facts) is is_wrong
    assert any("its clock is" in words for words in warnings("a", facts)) is is_wrong


def test_an_offset_is_shown_with_its_uncertainty() -> None:
    assert clock_text({"clock_offset_s": 0.1, "clock_uncertainty_s": 0.05}) == "+0.100 s ± 0.050 s"
    assert clock_text({}) == "-"
