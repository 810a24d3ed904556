"""Answer to ``ctx.should_stop``: a truth value, and a call that agrees on it with the other ranks first."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Longest time between two agreements of a loop that calls ``ctx.should_stop(step)`` in each step, seconds.
AGREE_EVERY_S = 1.0


class StopAnswer(int):
    """True or False in any condition. Calling it with a step lets the ranks agree on it."""

    _ask: Callable[..., bool]

    def __new__(cls, is_stop: bool, ask: Callable[..., bool]) -> StopAnswer:
        """Return the answer.

        :param ask: takes the step, and ``at_once``
        """
        answer = super().__new__(cls, is_stop)
        answer._ask = ask
        return answer

    def __call__(self, step: int, *, at_once: bool = False) -> bool:
        """Agree with the other ranks, and return whether to stop. Called by all ranks, in each step.

        The ranks exchange a message once a second and at least every ``scheduling_unit`` calls, so that a call costs
        little. They all get the same answer at the same step.

        :param step: number of batches, or of whatever else the program counts
        :param at_once: exchange a message in this call, e.g. after a validation
        """
        return self._ask(step, at_once=at_once)

    def __repr__(self) -> str:
        return str(bool(self))

    __str__ = __repr__


class AgreementPace:
    """Number of calls between two agreements, which is the same on all ranks.

    :param most: largest number
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._calls = 0
        self._gap = 1
        #: Time of the latest agreement; None before the first one, when the speed is unknown.
        self._since: float | None = None

    @property
    def left(self) -> int:
        """Number of calls until the ranks agree, at least 1."""
        return max(1, self._gap - self._calls)

    def is_due(self, calls: int = 1) -> bool:
        """Count calls. Return whether the ranks agree in the last one."""
        self._calls += calls
        return self._calls >= self._gap

    def proposal(self) -> int:
        """Return the number of calls that this rank makes in :data:`AGREE_EVERY_S`, at the latest speed."""
        if self._since is None:
            return 1
        seconds = max(self._clock() - self._since, 1e-9)
        return max(1, min(self._most, int(self._calls * AGREE_EVERY_S / seconds)))

    def begin(self, gap: int | None = None) -> None:
        """Begin to count to the next agreement.

        :param gap: smallest of all ranks' proposals; None: as before
        """
        self._gap = gap or self._gap
        self._calls = 0
        self._since = self._clock()
