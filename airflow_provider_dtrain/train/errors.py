"""Errors of the training library.

::

    TrainError
    ├── SetupError               the environment or the configuration of this process does not fit
    │   ├── TrialClassError      a trial class lacks a method, or has one too many
    │   └── EmptyLoaderError     a data loader yields nothing
    ├── InvalidHP                the script's own verdict: these hyperparameters cannot be trained
    ├── HparamError              a hyperparameter that the script reads is not there (also a KeyError)
    ├── BatchSizeError           the global batch cannot be divided over the slots
    ├── MetricError              a reported value is no number
    │   ├── NonFiniteLossError   a reported loss is not a number (NaN)
    │   └── MissingMetricError   the searcher wants a metric that nobody reports
    ├── LimitError               something is larger than the control side stores (also a ValueError)
    ├── CheckpointError          a checkpoint cannot be written or does not fit what was prepared
    │   └── DamagedCheckpointError
    ├── OptimizerError           an optimizer asked for by name is not there, or refuses its options (also a ValueError)
    └── LeaderFailedError        local rank 0 failed in ``local_leader_first``
"""

from __future__ import annotations


class TrainError(Exception):
    """The training library cannot go on."""


class SetupError(TrainError):
    """The environment or the configuration of this process does not fit."""


class TrialClassError(SetupError):
    """A trial class lacks a method, or has one too many."""


class EmptyLoaderError(SetupError):
    """A data loader yields nothing."""


class InvalidHP(TrainError):
    """These hyperparameters cannot be trained.

    Raise it, and no restart is counted. The searchers ``random``, ``async_halving``, ``adaptive_asha`` and ``optuna``
    draw other hyperparameters for the trial, at most 20 times; a point of a ``grid`` and a ``single`` trial fail.
    """


class HparamError(TrainError, KeyError):
    """A hyperparameter that the script reads is not there."""

    def __str__(self) -> str:
        return str(self.args[0])


class BatchSizeError(TrainError, ValueError):
    """The global batch cannot be divided over the slots."""


class MetricError(TrainError, ValueError):
    """A reported value is no number."""


class NonFiniteLossError(MetricError):
    """A reported loss is not a number.

    :param name: the metric
    :param step: step it was reported for
    :param rank: global rank that reported it
    """

    def __init__(self, name: str, step: int, rank: int) -> None:
        self.name, self.step, self.rank = name, step, rank
        super().__init__(
            f"{name} is NaN at step {step} on rank {rank}. A loss that is not a number does not recover: lower the "
            "learning rate, clip gradients, or look at the input of this step. To go on all the same: "
            "dtrain.init(fail_on_nan=False)."
        )


class MissingMetricError(MetricError):
    """The searcher wants a metric that nobody reports."""


class LimitError(TrainError, ValueError):
    """Something is larger than the control side stores."""


class CheckpointError(TrainError):
    """A checkpoint cannot be written, or does not fit what was prepared."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is incomplete or its checksum differs."""


class OptimizerError(TrainError, ValueError):
    """An optimizer asked for by name is not there, or refuses its options."""


class LeaderFailedError(TrainError):
    """Local rank 0 failed while the other ranks of its host waited for it."""
