"""Gradients that the loss of one optimizer leaves in the parameters of another, e.g. in adversarial training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_dtrain.train.gradients.aggregation import GradientGroup

log = logging.getLogger(__name__)

#: Optimizer steps in which leaks are searched. The order of losses and steps is the same in each batch.
STEPS = 20


class Leaks:
    """Warns once when gradients of a loss enter the step of an optimizer that stepped before that loss.

    A loss whose gradients several optimizers use is not a leak: they all step after it.
    """

    def __init__(self, rank: int) -> None:
        self._left = STEPS if rank == 0 else 0
        self._stepped: set[int] = set()
        #: Optimizers that stepped, and had gradients again when another optimizer stepped.
        self._suspects: dict[int, str] = {}

    def stepped(self, optimizer: Any, groups: Mapping[int, GradientGroup]) -> None:
        """Note a step."""
        if self._left <= 0:
            return
        self._left -= 1
        self._stepped.add(id(optimizer))
        self._suspects.pop(id(optimizer), None)
        for key, group in groups.items():
            if key != id(optimizer) and key in self._stepped and not group.count and group.has_gradients():
                self._suspects[key] = type(optimizer).__name__

    def check(self, groups: Iterable[GradientGroup]) -> None:
        """Warn when suspected gradients still exist at the next backward pass."""
        if not self._suspects:
            return
        for group in groups:
            if id(group.optimizer) in self._suspects and group.has_gradients():
                log.warning(
                    "Gradients of the loss before the last step (%s) are still in the parameters of another optimizer "
                    "(%s), and become part of its next step. If they should not, wrap each loss and its step in "
                    "'with ctx.toggle(optimizer)'.",
                    self._suspects[id(group.optimizer)],
                    type(group.optimizer).__name__,
                )
                self._left = 0
        self._suspects.clear()
