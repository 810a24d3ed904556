"""Learning rate schedulers: who advances them, and when."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

MODES = ("batch", "epoch", "manual")


class Schedules:
    """The schedulers that the library advances."""

    def __init__(self) -> None:
        #: Optimizer -> schedulers to advance with each of its steps.
        self.by_step: dict[int, list[Any]] = {}
        self._by_epoch: list[Any] = []
        #: Epochs whose schedulers were advanced; part of every checkpoint.
        self.epochs_stepped = 0

    def add(self, mode: str, scheduler: Any) -> None:
        """Advance a scheduler from now on; ReduceLROnPlateau needs a metric and is left to the script.

        :param mode: ``batch``, ``epoch`` or ``manual``
        """
        if type(scheduler).__name__ == "ReduceLROnPlateau":
            return
        if mode == "batch":
            self.by_step.setdefault(id(scheduler.optimizer), []).append(scheduler)
        elif mode == "epoch":
            self._by_epoch.append(scheduler)

    def begin_epoch(self, epoch: int) -> None:
        """Advance those that count epochs to the beginning of an epoch."""
        for _ in range(self.epochs_stepped, epoch):
            for scheduler in self._by_epoch:
                scheduler.step()
        self.epochs_stepped = max(epoch, self.epochs_stepped)


def check_mode(mode: str) -> None:
    """Refuse an unknown mode.

    :raises SetupError: with those that there are
    """
    if mode not in MODES:
        raise SetupError(f"scheduler_step is {mode!r}; {', '.join(MODES[:-1])} or {MODES[-1]} is accepted.")
