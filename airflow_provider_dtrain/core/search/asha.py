"""Asynchronous successive halving with stopping: rungs, brackets and decisions, in integers only.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020; divisor is its eta.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

Mode = Literal["aggressive", "standard", "conservative"]
Decision = Literal["continue", "stop", "complete"]

#: Rank value of a metric that cannot be compared. It ranks last.
LAST: Final = math.inf


def floor_log(number: int, base: int) -> int:
    """Return the largest e with base^e <= number.

    :param number: >= 1
    :param base: >= 2
    """
    exponent = 0
    while number >= base:
        number //= base
        exponent += 1
    return exponent


def rung_lengths(num_rungs: int, max_length: int, divisor: int) -> list[int]:
    """Return the training length at each rung, shortest first. The last one is ``max_length``.

    :param num_rungs: >= 1
    :param max_length: units of training of a trial that is never stopped, >= 1
    :param divisor: 1 / divisor of the trials continue, >= 2
    :raises ValueError: a number is out of its range
    """
    _check(num_rungs=(num_rungs, 1), max_length=(max_length, 1), divisor=(divisor, 2))
    return [max(1, max_length // divisor ** (num_rungs - 1 - rung)) for rung in range(num_rungs)]


def most_rungs(max_trials: int, max_length: int, divisor: int, max_rungs: int = 5) -> int:
    """Return the maximum number of rungs of a bracket.

    Each further rung needs ``divisor`` times the training length and ``divisor`` times the trials.

    :param max_trials: >= 1
    :param max_length: >= 1
    :param divisor: >= 2
    :param max_rungs: >= 1
    """
    return min(max_rungs, floor_log(max_length, divisor) + 1, floor_log(max_trials, divisor) + 1)


def brackets(
    mode: Mode,
    max_trials: int,
    max_length: int,
    *,
    divisor: int = 4,
    max_rungs: int = 5,
    bracket_rungs: Sequence[int] = (),
) -> list[tuple[int, int]]:
    """Return (rungs, trials) of each bracket, most rungs first. The trials add up to ``max_trials``.

    :param mode: aggressive: the bracket with most rungs alone; conservative: one with each number of rungs; standard:
        those with the middle number of rungs or more
    :param max_trials: >= 1
    :param max_length: units of training of a trial that is never stopped, >= 1
    :param divisor: >= 2
    :param max_rungs: most rungs of a bracket, >= 1
    :param bracket_rungs: rungs of each bracket, instead of what mode, lengths and trials give
    :raises ValueError: a number is out of its range, or a bracket would have no trial
    """
    _check(max_trials=(max_trials, 1), max_length=(max_length, 1), divisor=(divisor, 2), max_rungs=(max_rungs, 1))
    for rungs in bracket_rungs:
        _check(bracket_rungs=(rungs, 1))
    most = most_rungs(max_trials, max_length, divisor, max_rungs)
    first = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}
    if mode not in first:
        raise ValueError(f"mode must be aggressive, standard or conservative, got {mode!r}")
    rungs_of = sorted(bracket_rungs or range(first[mode], most + 1), reverse=True)
    weights = [Fraction(divisor ** (rungs - 1), rungs) for rungs in rungs_of]
    total = sum(weights)
    trials = [max(1, weight * max_trials // total) for weight in weights]
    trials[0] += max_trials - sum(trials)
    if trials[0] < 1:
        raise ValueError(
            f"bracket_rungs has {len(rungs_of)} brackets, which leave none of max_trials {max_trials} for the first; "
            "name fewer brackets or raise max_trials"
        )
    return list(zip(rungs_of, trials, strict=True))


def _check(**numbers: tuple[int, int]) -> None:
    for name, (value, least) in numbers.items():
        if value < least:
            raise ValueError(f"{name} is {value}; {least} or more is accepted")


def rank_value(metric: float | None, smaller_is_better: bool = True) -> float:
    """Return the sort key of a metric in a rung, smallest first.

    :data:`LAST` when the metric is not a finite number.

    :param metric: as reported; None: the trial failed
    """
    if metric is None or not math.isfinite(metric):
        return LAST
    return float(metric) if smaller_is_better else -float(metric)


def decide(index: int, count: int, divisor: int, *, is_top: bool) -> Decision:
    """Return the decision for a trial that has just entered a rung.

    :param index: entries of the rung that rank before it. Of equal entries, the earlier one ranks first
    :param count: entries of the rung, itself included
    :param divisor: >= 2
    :param is_top: whether it is the last rung
    """
    if is_top:
        return "complete"
    return "continue" if index < continuing(count, divisor) else "stop"


def continuing(count: int, divisor: int) -> int:
    """Return how many of ``count`` entries of a rung continue.

    :param count: >= 1
    :param divisor: >= 2
    """
    return max(1, count // divisor)


#: (rung, rank value) -> (entries that rank no later, all entries), both before the trial enters.
Standing = Callable[[int, float], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Result of a report."""

    #: Rungs that the trial enters with this report, lowest first; may be empty.
    entered: tuple[int, ...]
    #: The rung that it enters next; the number of rungs after it has entered the last one.
    rung: int
    decision: Decision


def advance(lengths: Sequence[int], divisor: int, *, rung: int, length: int, value: float, standing: Standing) -> Step:
    """Return the rungs that a running trial enters with a report, and the decision for it.

    The caller writes one entry with ``value`` into each rung of ``entered``, in the transaction that read the standing.

    :param lengths: of :func:`rung_lengths`
    :param rung: the rung that the trial enters next
    :param length: units that it has trained
    :param value: of :func:`rank_value`
    :param standing: called once for each rung entered, before the trial enters it
    """
    entered: list[int] = []
    decision: Decision = "continue"
    while decision == "continue" and rung < len(lengths) and length >= lengths[rung]:
        before, count = standing(rung, value)
        entered.append(rung)
        decision = decide(before, count + 1, divisor, is_top=rung == len(lengths) - 1)
        rung += 1
    return Step(entered=tuple(entered), rung=rung, decision=decision)


class _Rung:
    """Sorted entries of a rung. Of equal entries, the earlier one comes first."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int]] = []
        self.of_trial: dict[int, tuple[float, int]] = {}

    def standing(self, value: float) -> tuple[int, int]:
        return bisect.bisect_right(self.entries, (value, _ENDLESS)), len(self.entries)

    def enter(self, trial: int, value: float, order: int) -> None:
        self.of_trial[trial] = (value, order)
        bisect.insort(self.entries, (value, order))

    def leave(self, trial: int) -> None:
        entry = self.of_trial.pop(trial, None)
        if entry is not None:
            del self.entries[bisect.bisect_left(self.entries, entry)]


_ENDLESS: Final = 2**63


class Rungs:
    """Rungs of one bracket, with the trials in each of them.

    :param num_rungs: >= 1
    :param max_length: units of training of a trial that is never stopped, >= 1
    :param divisor: >= 2
    :param smaller_is_better: direction of the metric
    :raises ValueError: a number is out of its range
    """

    def __init__(self, num_rungs: int, max_length: int, divisor: int, smaller_is_better: bool = True) -> None:
        self.lengths: Final = tuple(rung_lengths(num_rungs, max_length, divisor))
        self._divisor = divisor
        self._smaller_is_better = smaller_is_better
        self._rungs = [_Rung() for _ in self.lengths]
        self._order = 0
        #: Trial -> the rung it enters next; 0 for a trial that has reported nothing.
        self._next: dict[int, int] = {}
        #: Trial -> its final decision. Later reports do not count.
        self._ended: dict[int, Decision] = {}

    def report(self, trial: int, length: int, metric: float) -> Decision:
        """Return the decision for a trial that reports a metric.

        A report after the final decision gets that decision again.

        :param trial: number of the trial
        :param length: units that it has trained
        :param metric: of its validation at that length. A value that is not finite ranks last
        """
        if trial in self._ended:
            return self._ended[trial]
        value = rank_value(metric, self._smaller_is_better)
        step = advance(
            self.lengths,
            self._divisor,
            rung=self._next.get(trial, 0),
            length=length,
            value=value,
            standing=lambda rung, value: self._rungs[rung].standing(value),
        )
        for rung in step.entered:
            self._enter(trial, rung, value)
        self._next[trial] = step.rung
        if step.decision != "continue":
            self._ended[trial] = step.decision
        return step.decision

    def fail(self, trial: int) -> None:
        """Rank a failed trial last in the rung that it would enter next.

        A trial that has already ended is not changed.

        :param trial: number of the trial
        """
        if trial not in self._ended:
            self._enter(trial, self._next.get(trial, 0), LAST)
            self._ended[trial] = "stop"

    def finish(self, trial: int) -> None:
        """Ignore later reports of a trial that ended early by itself.

        It stays in the rungs that it has entered.

        :param trial: number of the trial
        """
        self._ended.setdefault(trial, "complete")

    def clear(self, trial: int) -> None:
        """Remove a trial from all rungs, so that its next generation begins anew.

        Earlier decisions for other trials stand.

        :param trial: number of the trial
        """
        for rung in self._rungs:
            rung.leave(trial)
        self._next.pop(trial, None)
        self._ended.pop(trial, None)

    def entries(self, rung: int) -> list[int]:
        """Return the trials of a rung, best first. Of equal trials, the earlier one comes first.

        :param rung: from 0
        """
        trials = {entry: trial for trial, entry in self._rungs[rung].of_trial.items()}
        return [trials[entry] for entry in self._rungs[rung].entries]

    def _enter(self, trial: int, rung: int, value: float) -> None:
        self._rungs[rung].enter(trial, value, self._order)
        self._order += 1
