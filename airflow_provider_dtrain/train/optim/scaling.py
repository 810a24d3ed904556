"""Linear scaling of the learning rate with gradual warm-up."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.values import StateDict

log = logging.getLogger(__name__)


class LinearScaling(LRScheduler):
    """Raises each learning rate from its own value to ``factor`` times that, in equal amounts per step.

    Step ``t`` runs with ``lr * (1 + (factor - 1) * min(t / warmup_steps, 1))``. The rate is a function of the number of
    steps alone, so a restored scheduler gives exactly the same rates. A restored scheduler keeps the ``factor`` and
    ``warmup_steps`` that it was created with, because the number of slots may differ from the checkpoint's.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2.

    :param optimizer: optimizer with the learning rates of a single slot
    :param factor: ratio of the batch sizes, > 0
    :param warmup_steps: steps of the scheduler until the whole factor applies, >= 0
    :param after: a scheduler of the same optimizer that starts when the warm-up ends. It is written for the rates of a
        single slot, and the rates that it sets are multiplied by the factor
    :raises SetupError: an argument is not valid
    """

    def __init__(self, optimizer: Any, factor: float, warmup_steps: int, after: Any = None) -> None:
        if not (isinstance(factor, (int, float)) and math.isfinite(factor) and factor > 0):
            raise SetupError(f"The factor of LinearScaling must be a number above 0, got {factor!r}.")
        if isinstance(warmup_steps, bool) or not isinstance(warmup_steps, int) or warmup_steps < 0:
            raise SetupError(
                f"warmup_steps of LinearScaling must be a whole number of at least 0, got {warmup_steps!r}."
            )
        if isinstance(after, ReduceLROnPlateau) or (after is not None and after.optimizer is not optimizer):
            raise SetupError(
                "The argument 'after' of LinearScaling must be a scheduler of the same optimizer that needs no metric, "
                f"got {type(after).__name__}. Advance a ReduceLROnPlateau manually after the warm-up instead."
            )
        self.factor = factor
        self.warmup_steps = warmup_steps
        self.after = after
        #: Learning rates of a single slot, as the user or ``after`` set them.
        self._single = [group["lr"] for group in optimizer.param_groups]
        super().__init__(optimizer)

    def scale_at(self, step: int) -> float:
        """Return the factor on the learning rates of a single slot in a step (0, 1, ...)."""
        if step >= self.warmup_steps:
            return self.factor
        return 1 + (self.factor - 1) * step / self.warmup_steps

    def get_lr(self) -> list[Any]:
        """Return the learning rate of each parameter group."""
        scale = self.scale_at(self.last_epoch)
        return [lr * scale for lr in self._single]

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step.

        :param epoch: only part of torch's interface, not supported
        :raises SetupError: an epoch is given
        """
        if epoch is not None:
            raise SetupError("LinearScaling.step does not accept an epoch, because it counts its steps itself.")
        if self.after is not None and self.last_epoch >= self.warmup_steps:
            self._advance_after()
        super().step()

    def state_dict(self) -> StateDict:
        """Return counters and rates, and the state of ``after``."""
        state = {key: value for key, value in self.__dict__.items() if key not in {"optimizer", "after"}}
        state["after"] = self.after.state_dict() if self.after is not None else None
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a saved position. The scheduler keeps its own factor and warm-up if the saved ones differ.

        :raises ValueError: only one of checkpoint and program has a scheduler after the warm-up
        """
        state = dict(state_dict)
        after = state.pop("after")
        saved = (state.pop("factor"), state.pop("warmup_steps"))
        if (after is None) != (self.after is None):
            raise ValueError("only one of checkpoint and program has a scheduler after the warm-up")
        if self.after is not None:
            self.after.load_state_dict(after)
        self.__dict__.update(state)
        if saved != (self.factor, self.warmup_steps):
            log.info(
                "Linear scaling uses factor %g and %d warm-up steps, not factor %g and %d steps of the checkpoint.",
                self.factor,
                self.warmup_steps,
                *saved,
            )
            for group, lr in zip(self.optimizer.param_groups, self.get_lr()):
                group["lr"] = lr
            self._last_lr = self.get_lr()

    def _advance_after(self) -> None:
        """Advance ``after`` with the learning rates of a single slot."""
        groups = self.optimizer.param_groups
        for group, lr in zip(groups, self._single):
            group["lr"] = lr
        self.after.step()
        self._single = [group["lr"] for group in groups]


def linear_scaling(
    optimizer: Any,
    ctx: Any,
    *,
    reference_batch_size: int | None = None,
    warmup_steps: int | None = None,
    warmup_epochs: float | None = None,
    batches_per_epoch: int | None = None,
    after: Any = None,
) -> LinearScaling:
    """Return a linear scaling scheduler for the trial's slots and batches.

    The factor is the number of samples in the mean gradient of a step, divided by the batch size for which the
    optimizer's learning rate was found. ``aggregation_frequency`` counts with ``average_aggregated_gradients``. Without
    it, the sum of the gradients is already scaled.

    :param optimizer: with the learning rate of a single slot
    :param ctx: context of a script, or of a trial class
    :param reference_batch_size: samples per step that the learning rate belongs to; default: the samples that one slot
        takes per batch, so that the factor is the number of slots
    :param warmup_steps: length of the warm-up in optimizer steps
    :param warmup_epochs: length of the warm-up in epochs instead; needs ``batches_per_epoch``, e.g.
        ``len(ctx.loader(data))``
    :param after: see :class:`LinearScaling`; it also advances by optimizer steps
    :raises SetupError: no length or two lengths of the warm-up are given
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
            "linear_scaling takes either warmup_steps, or warmup_epochs together with batches_per_epoch, got "
            f"warmup_steps={warmup_steps}, warmup_epochs={warmup_epochs}, batches_per_epoch={batches_per_epoch}."
        )
    if warmup_steps is None:
        warmup_steps = math.ceil(warmup_epochs * batches_per_epoch / frequency)  # type: ignore[operator]
    if ctx.distributed.get_rank() == 0:
        log.info("Learning rate: scaled by %g over the first %d optimizer steps.", factor, warmup_steps)
    return LinearScaling(optimizer, factor, warmup_steps, after)


def _config(ctx: Any) -> Mapping[str, Any]:
    config: Mapping[str, Any] = ctx.config if hasattr(ctx, "config") else ctx.get_experiment_config()
    return config


def _global_batch_size(ctx: Any) -> int:
    size: int = ctx.global_batch_size if hasattr(ctx, "global_batch_size") else ctx.get_global_batch_size()
    return size
