"""Rungs and brackets of the searchers that halve: training lengths and numbers of trials, in integers only.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020; divisor is its eta.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

Mode = Literal["aggressive", "standard", "conservative"]


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
