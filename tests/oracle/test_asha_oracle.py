"""Comparison with Syne Tune's ASHA on the same curves, reported in the same order.

Syne Tune is installed without its dependencies (xgboost, and with it NVIDIA's libraries), which ASHA does not use.

Syne Tune's rule (0.16) continues a trial if at most n / d entries of its rung are strictly better, where n includes the
trial. Our rule continues it if fewer than max(1, n // d) are better, where an earlier equal entry counts as better.
The rules differ in two cases:

- the entry with exactly n // d better ones continues in Syne Tune when n >= d, and stops here;
- equal entries all continue in Syne Tune, and only the earliest one continues here.

A report that reaches several rungs is entered by Syne Tune only in the highest one, here in each until one stops it.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pytest

from testbed.rungs import Rungs


@pytest.fixture(scope="module", autouse=True)
def _syne_tune() -> None:
    """Import Syne Tune with the first test: every worker collects this module, and pandas takes a second."""
    pytest.importorskip("syne_tune.optimizer.schedulers.asha", reason="syne-tune is not installed")


class Theirs:
    """One bracket of Syne Tune, with numbered trials."""

    def __init__(self, num_rungs: int, divisor: int) -> None:
        from syne_tune.config_space import uniform
        from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

        self.scheduler = AsynchronousSuccessiveHalving(
            {"x": uniform(0, 1)},
            metric="loss",
            time_attr="epoch",
            max_t=divisor ** (num_rungs - 1),
            grace_period=1,
            reduction_factor=divisor,
            random_seed=1,
        )
        self.trials: dict[int, Any] = {}

    def report(self, trial: int, length: int, metric: float) -> str:
        from syne_tune.backend.trial_status import Trial

        if trial not in self.trials:
            self.trials[trial] = Trial(trial, {"x": 0.5}, datetime(2020, 1, 1))
            self.scheduler.on_trial_add(self.trials[trial])
        return str(self.scheduler.on_trial_result(self.trials[trial], {"loss": metric, "epoch": length}))


def curves(count: int, length: int, seed: int) -> list[list[float]]:
    """Return the loss of each trial after each unit: power laws that cross, with noise."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        floor, gain, rate = chance.random(), chance.random(), chance.uniform(0.2, 1.5)
        made.append([floor + gain * unit**-rate + chance.gauss(0, 0.02) for unit in range(1, length + 1)])
    return made


@pytest.mark.parametrize("divisor", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_decisions_are_those_of_syne_tune_but_for_one_place_in_a_rung(divisor: int, seed: int) -> None:
    num_rungs = 4 if divisor < 4 else 3
    length = divisor ** (num_rungs - 1)
    ours, theirs, chance = Rungs(num_rungs, length, divisor), Theirs(num_rungs, divisor), random.Random(seed)
    losses, running, at = curves(60, length, seed), list(range(60)), dict.fromkeys(range(60), 0)
    agreed = 0
    while running:
        # Eight trials run at a time; the next one to report is drawn at random.
        trial = chance.choice(running[:8])
        at[trial] += 1
        loss = losses[trial][at[trial] - 1]
        answer, other = ours.report(trial, at[trial], loss), theirs.report(trial, at[trial], loss)
        if answer != "continue":
            running.remove(trial)
        if (answer == "continue") == (other == "CONTINUE"):
            agreed += 1
            continue
        rung = ours.lengths.index(at[trial])
        entries = ours.entries(rung)
        assert (answer, other) == ("stop", "CONTINUE")
        assert len(entries) >= divisor
        assert entries.index(trial) == len(entries) // divisor
    assert agreed > 60


@pytest.mark.parametrize("divisor", [2, 3, 4])
def test_the_one_place_where_the_rules_differ(divisor: int) -> None:
    ours, theirs = Rungs(2, divisor, divisor), Theirs(2, divisor)
    for trial in range(2 * divisor - 1):
        metric = 1.0 - trial / 100 if trial < divisor else 2.0 + trial
        ours.report(trial, 1, metric)
        theirs.report(trial, 1, metric)
    # The 2d-th entry with exactly two better ones: 2d // d = 2.
    between = (1.0 - (divisor - 2) / 100 + 1.0 - (divisor - 3) / 100) / 2 if divisor > 2 else 1.5
    assert theirs.report(99, 1, between) == "CONTINUE"
    assert ours.report(99, 1, between) == "stop"
    assert ours.entries(0).index(99) == 2


def test_of_equals_syne_tune_lets_all_go_on_and_we_only_the_first() -> None:
    ours, theirs = Rungs(2, 3, 3), Theirs(2, 3)
    assert [theirs.report(trial, 1, 1.0) for trial in range(6)] == ["CONTINUE"] * 6
    assert [ours.report(trial, 1, 1.0) for trial in range(6)] == ["continue", *["stop"] * 5]


def test_syne_tune_skips_the_rungs_below_the_one_that_a_report_reaches() -> None:
    ours, theirs = Rungs(3, 9, 3), Theirs(3, 3)
    for rungs in (ours, theirs):
        rungs.report(0, 1, 1.0)
        rungs.report(0, 3, 1.0)
        rungs.report(1, 3, 0.5)
    assert [len(ours.entries(rung)) for rung in (0, 1)] == [2, 2]
    (bracket,) = theirs.scheduler.brackets
    assert [len(recorded) for _, recorded in reversed(bracket.rungs)][:2] == [1, 2]
