"""Learning rate schedulers that the library advances."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

MODES = ("batch", "epoch", "manual")


class Schedules:
    """Learning rate schedulers, advanced by optimizer step or by epoch."""

    def __init__(self) -> None:
        #: id of the optimizer -> schedulers to advance with each of its steps.
        self.by_step: dict[int, list[Any]] = {}
        self._by_epoch: list[Any] = []
        #: Number of epochs whose schedulers have advanced; part of every checkpoint.
        self.epochs_stepped = 0

    def add(self, mode: str, scheduler: Any) -> None:
        """Add a scheduler to advance. ReduceLROnPlateau needs a metric and is left to the script.

        :param mode: ``batch``, ``epoch`` or ``manual``
        """
        if type(scheduler).__name__ == "ReduceLROnPlateau":
            return
        if mode == "batch":
            self.by_step.setdefault(id(scheduler.optimizer), []).append(scheduler)
        elif mode == "epoch":
            self._by_epoch.append(scheduler)

    def begin_epoch(self, epoch: int) -> None:
        """Advance the schedulers that count epochs to the start of an epoch."""
        for _ in range(self.epochs_stepped, epoch):
            for scheduler in self._by_epoch:
                scheduler.step()
        self.epochs_stepped = max(epoch, self.epochs_stepped)


def check_mode(mode: str) -> None:
    """Raise when a mode is unknown.

    :raises SetupError: names the known modes
    """
    if mode not in MODES:
        raise SetupError(f"scheduler_step must be {', '.join(MODES[:-1])} or {MODES[-1]}, got {mode!r}.")
