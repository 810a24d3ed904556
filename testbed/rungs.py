"""Rungs of asynchronous successive halving in memory, with the decisions that the store makes in SQL."""

from __future__ import annotations

import bisect
from typing import Final

from airflow_provider_dtrain.core.config.brackets import rung_lengths
from airflow_provider_dtrain.core.search.asha import LAST, Decision, advance, rank_value


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
