"""Retention policy: selects the checkpoints of an experiment to keep and to delete."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoints:
    """Numbers of checkpoints that an experiment keeps."""

    #: Among all trials of the experiment.
    experiment_best: int = 0
    #: Of each trial.
    trial_best: int = 1
    trial_latest: int = 1
    smaller_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One checkpoint, with the fields that decide whether it is kept."""

    checkpoint_id: int
    trial_id: int
    #: Number of the attempt that wrote it. Checkpoints of an attempt are later than those of all earlier attempts.
    attempt: int
    step: int
    #: The searcher's metric; None or not finite: never among the best.
    metric: float | None

    @property
    def age(self) -> tuple[int, int, int]:
        """Sort key for the checkpoints of a trial by time."""
        return self.attempt, self.step, self.checkpoint_id


def unkept(checkpoints: Sequence[Saved], kept: KeptCheckpoints) -> list[Saved]:
    """Return the checkpoints to delete, in the order given.

    A checkpoint is deleted iff it is not among the ``experiment_best`` best of the experiment, not among the
    ``trial_best`` best of its trial, and not among the ``trial_latest`` latest of its trial. Of equal metrics the
    checkpoint that was reported later (the larger id) is the better one.

    A checkpoint that is deleted while an experiment still runs would be deleted at its end as well: new checkpoints
    only lower the rank of earlier ones.

    :param checkpoints: all checkpoints that the experiment still has
    """
    stay = set(_best(checkpoints, kept.experiment_best, smaller_is_better=kept.smaller_is_better))
    for trial_id in {one.trial_id for one in checkpoints}:
        own = [one for one in checkpoints if one.trial_id == trial_id]
        stay |= set(_best(own, kept.trial_best, smaller_is_better=kept.smaller_is_better))
        stay |= set(sorted(own, key=lambda one: one.age, reverse=True)[: kept.trial_latest])
    return [one for one in checkpoints if one not in stay]


def _best(checkpoints: Iterable[Saved], count: int, *, smaller_is_better: bool) -> list[Saved]:
    ranked = [(one.metric, one) for one in checkpoints if one.metric is not None and math.isfinite(one.metric)]
    sign = 1 if smaller_is_better else -1
    ranked.sort(key=lambda pair: (sign * pair[0], -pair[1].checkpoint_id))
    return [one for _, one in ranked[:count]]


class MeasuredCheckpoint(Protocol):
    """A checkpoint with its metrics."""

    @property
    def checkpoint_id(self) -> int:
        """Its id."""

    @property
    def attempt(self) -> int:
        """Number of the attempt that wrote it."""

    @property
    def step(self) -> int:
        """Step at which it was saved."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Metrics by name."""


Measured = TypeVar("Measured", bound=MeasuredCheckpoint)


def best_checkpoint(checkpoints: Sequence[Measured], metric: str | None, smaller_is_better: bool) -> Measured:
    """Return the checkpoint with the best metric, or the latest one when none has the metric.

    :param checkpoints: at least one
    """
    values = [(c.metrics.get(metric), c) for c in checkpoints] if metric else []
    ranked = [(value, c) for value, c in values if isinstance(value, int | float) and value == value]
    if not ranked:
        return max(checkpoints, key=age_of)
    sign = 1 if smaller_is_better else -1
    return min(ranked, key=lambda pair: (sign * pair[0], -pair[1].checkpoint_id))[1]


def age_of(checkpoint: MeasuredCheckpoint) -> tuple[int, int, int]:
    """Return the sort key for the checkpoints of a trial by time."""
    return checkpoint.attempt, checkpoint.step, checkpoint.checkpoint_id
