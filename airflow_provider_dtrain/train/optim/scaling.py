"""Linear scaling of the learning rate with gradual warm-up."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from airflow_provider_dtrain.train.errors import SetupError

log = logging.getLogger(__name__)


class LinearScaling(LRScheduler):
    """Raises each learning rate from its own value to ``factor`` times that, in equal amounts per step.

    Step ``t`` runs with ``lr * (1 + (factor - 1) * min(t / warmup_steps, 1))``. It is a function of the number of
    steps alone, so a restored scheduler gives the very same rates. A restored one keeps its own ``factor`` and
    ``warmup_steps``, because the number of slots may differ from the checkpoint's.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2.

    :param optimizer: with the learning rates of a single slot
    :param factor: > 0; how much larger the batch is
    :param warmup_steps: steps of the scheduler until the whole factor holds, >= 0
    :param after: a scheduler of the same optimizer that begins when the warm-up ends, and is written for the rates
        of a single slot: what it sets is multiplied by the factor
    """

    def __init__(self, optimizer: Any, factor: float, warmup_steps: int, after: Any = None) -> None:
        if not (isinstance(factor, (int, float)) and math.isfinite(factor) and factor > 0):
            raise SetupError(f"The factor of LinearScaling is {factor!r}; a number above 0 is expected.")
        if isinstance(warmup_steps, bool) or not isinstance(warmup_steps, int) or warmup_steps < 0:
            raise SetupError(
                f"warmup_steps of LinearScaling is {warmup_steps!r}; 0 or a larger whole number is expected."
            )
        if isinstance(after, ReduceLROnPlateau) or (after is not None and after.optimizer is not optimizer):
            raise SetupError(
                "LinearScaling takes as 'after' a scheduler of the same optimizer that needs no metric; it was given "
                f"{type(after).__name__}. Step a ReduceLROnPlateau by hand after the warm-up instead."
            )
        self.factor, self.warmup_steps, self.after = factor, warmup_steps, after
        #: Learning rates of a single slot, as the user or ``after`` set them.
        self._single = [group["lr"] for group in optimizer.param_groups]
        super().__init__(optimizer)

    def scale_at(self, step: int) -> float:
        """Return what the learning rates of a single slot are multiplied with in a step (0, 1, ...)."""
        if step >= self.warmup_steps:
            return self.factor
        return 1 + (self.factor - 1) * step / self.warmup_steps

    def get_lr(self) -> list[Any]:
        """Return the learning rate of each parameter group."""
        scale = self.scale_at(self.last_epoch)
        return [lr * scale for lr in self._single]

    def step(self, epoch: int | None = None) -> None:
        """Go on by one step.

        :param epoch: for torch's interface only; not supported
        :raises SetupError: an epoch was given
        """
        if epoch is not None:
            raise SetupError("LinearScaling.step takes no epoch; it counts its steps itself.")
        if self.after is not None and self.last_epoch >= self.warmup_steps:
            self._advance_after()
        super().step()

    def state_dict(self) -> dict[str, Any]:
        """Return counters and rates, and the state of ``after``."""
        state = {key: value for key, value in self.__dict__.items() if key not in {"optimizer", "after"}}
        state["after"] = self.after.state_dict() if self.after is not None else None
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position; a factor or a warm-up that differ from the saved ones hold from here on."""
        state = dict(state_dict)
        after, saved = state.pop("after"), (state.pop("factor"), state.pop("warmup_steps"))
        if (after is None) != (self.after is None):
            raise ValueError("one of checkpoint and program has a scheduler after the warm-up, the other has none")
        if self.after is not None:
            self.after.load_state_dict(after)
        self.__dict__.update(state)
        if saved != (self.factor, self.warmup_steps):
            log.info(
                "Linear scaling: factor %g and %d warm-up steps, %g and %d in the checkpoint; the new ones hold.",
                self.factor, self.warmup_steps, *saved,
            )  # fmt: skip
            for group, lr in zip(self.optimizer.param_groups, self.get_lr()):
                group["lr"] = lr
            self._last_lr = self.get_lr()

    def _advance_after(self) -> None:
        """Let ``after`` see and set the rates of a single slot."""
        groups = self.optimizer.param_groups
        for group, lr in zip(groups, self._single):
            group["lr"] = lr
        self.after.step()
        self._single = [group["lr"] for group in groups]


def linear_scaling(
    optimizer: Any, ctx: Any, *, reference_batch_size: int | None = None, warmup_steps: int | None = None,
    warmup_epochs: float | None = None, batches_per_epoch: int | None = None, after: Any = None,
) -> LinearScaling:  # fmt: skip
    """Return a scheduler that knows the trial's slots and batches.

    The factor is the number of samples that the mean gradient of a step is taken over, divided by the batch size
    that the optimizer's learning rate was found with. ``aggregation_frequency`` counts with
    ``average_aggregated_gradients``; without it the sum of the gradients is scaled already.

    :param optimizer: with the learning rate of a single slot
    :param ctx: of a script, or of a trial class
    :param reference_batch_size: samples per step that the learning rate belongs to; default: what one slot takes per
        batch, so that the factor is the number of slots
    :param warmup_steps: optimizer steps; or
    :param warmup_epochs: epochs, which need ``batches_per_epoch``, e.g. ``len(ctx.loader(data))``
    :param after: see :class:`LinearScaling`; its unit is the optimizer step too
    :raises SetupError: no or two lengths of the warm-up
    """
    optimizations = _config(ctx).get("optimizations") or {}
    frequency = optimizations.get("aggregation_frequency") or 1
    averaged = frequency if optimizations.get("average_aggregated_gradients", True) else 1
    if reference_batch_size is None:
        factor = float(ctx.distributed.get_size() * averaged)
    else:
        factor = _global_batch_size(ctx) * averaged / reference_batch_size
    if (warmup_steps is None) == (warmup_epochs is None) or (warmup_epochs is not None and not batches_per_epoch):
        raise SetupError(
            "linear_scaling takes either warmup_steps, or warmup_epochs together with batches_per_epoch; it was given "
            f"warmup_steps={warmup_steps}, warmup_epochs={warmup_epochs}, batches_per_epoch={batches_per_epoch}."
        )
    if warmup_steps is None:
        warmup_steps = math.ceil(warmup_epochs * batches_per_epoch / frequency)  # type: ignore[operator]
    if ctx.distributed.get_rank() == 0:
        log.info("Learning rate: times %g over the first %d optimizer steps.", factor, warmup_steps)
    return LinearScaling(optimizer, factor, warmup_steps, after)


def _config(ctx: Any) -> Mapping[str, Any]:
    config: Mapping[str, Any] = ctx.config if hasattr(ctx, "config") else ctx.get_experiment_config()
    return config


def _global_batch_size(ctx: Any) -> int:
    size: int = ctx.global_batch_size if hasattr(ctx, "global_batch_size") else ctx.get_global_batch_size()
    return size
