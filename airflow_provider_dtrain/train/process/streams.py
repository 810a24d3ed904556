"""Random streams of a rank: the one of all ranks while the program is built, and its own one while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.process import seeding


class Streams:
    """Switches this process to the rank's own random numbers where training begins.

    Until then, all ranks draw the same numbers, so that models are built alike. In a resumed run, the rank's stream
    continues where the checkpoint was saved, whatever the program has drawn before.

    :param seed: seed of the trial
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._seed = seed
        self._rank = rank
        self._is_apart = False
        #: Random states of a checkpoint, until training goes on.
        self._states: Mapping[str, Any] | None = None
        #: The program has not computed gradients yet. Loops check it, because :meth:`train` does nothing afterwards.
        self.is_waiting = True

    def part(self) -> None:
        """Begin the rank's own stream, once. Called where an epoch or the first batch begins."""
        if not self._is_apart:
            self._is_apart = True
            if self._states is None:
                seeding.seed_everything(seeding.derive(self._seed, "rank", self._rank))
            else:
                seeding.apply(self._states)

    def train(self) -> None:
        """Begin the rank's own stream at the latest now: the program computes gradients."""
        self.part()
        self._states = None
        self.is_waiting = False

    def state(self) -> dict[str, Any]:
        """Return the random states, for :meth:`resume`."""
        return {**seeding.capture(), "is_apart": self._is_apart}

    def resume(self, states: Mapping[str, Any] | None, step: int, *, at_once: bool) -> None:
        """Continue a rank's stream of a checkpoint.

        :param states: return value of :meth:`state` on this rank; None: the checkpoint is of another number of ranks
        :param step: step of the checkpoint
        :param at_once: now, and not only where the program begins to train
        """
        self.is_waiting = True
        if states is None:
            before = seeding.capture()
            seeding.seed_everything(seeding.derive(self._seed, "resumed", self._rank, step))
            states = self.state()
            seeding.apply(before)
        elif not states["is_apart"]:
            # It was saved while the program was built, which has just drawn the same numbers.
            return
        self._states = states
        if at_once or self._is_apart:
            self._is_apart = True
            seeding.apply(states)

    def enter(self, *, is_last: bool = True) -> None:
        """Continue the restored stream where the loop of a resumed run goes on, whatever was drawn on the way there.

        :param is_last: the loop goes on here, and not in a loop inside it
        """
        if self._states is not None:
            seeding.apply(self._states)
            if is_last:
                self._states = None
