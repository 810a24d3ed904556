"""Backward passes through a forward pass whose gradients the ranks have exchanged already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError


class SecondPasses:
    """Finds backward passes whose gradients DistributedDataParallel does not exchange.

    It exchanges those of the first backward pass after a forward pass. A program with one loss costs a comparison per
    model. The outputs of a model are watched once two backward passes have followed one of its forward passes, because
    the second one may belong to another model.
    """

    def __init__(self) -> None:
        #: id of a model -> its forward passes at the latest backward pass.
        self._passes: dict[int, int] = {}

    def begin(self, models: Sequence[Any]) -> None:
        """Note that a backward pass begins."""
        for model in models:
            passes = getattr(model, "passes", 0)
            if passes and self._passes.get(id(model)) == passes:
                model.watches = True
            self._passes[id(model)] = passes
            if passes and model.watches:
                model.backward_number += 1

    def end(self, models: Sequence[Any]) -> None:
        """Raise when the backward pass that ends has reached a model for the second time.

        :raises SetupError: names the model
        """
        for model in models:
            if getattr(model, "is_reached_again", False):
                raise SetupError(
                    f"ctx.backward must be called once for a forward pass of {type(model.module).__name__}, got a "
                    "second call: with more than one rank, only the gradients of the first one are exchanged, and each "
                    "rank would train a model of its own. Add the losses, ctx.backward(first + second), or call the "
                    "model for each of them."
                )
