"""Errors of the training library.

::

    TrainError
    ├── SetupError               the environment or configuration of this process is not valid
    │   ├── TrialClassError      a trial class does not implement the interface as required
    │   ├── NotOfferedError      a script of another platform makes a call that has no equal here
    │   │   └── NotOfferedNameError  it imports a name that has no equal here (also a ModuleNotFoundError)
    │   ├── BatchLengthError     the number of records in a batch is unknown (also a TypeError and a ValueError)
    │   └── EmptyLoaderError     a data loader yields no batch
    ├── LoaderWorkerError        a loader worker was killed, or ended by itself (also a RuntimeError)
    ├── InvalidHP                raised by user code: these hyperparameters cannot be trained
    ├── HparamError              a hyperparameter that the script reads does not exist (also a KeyError)
    ├── BatchSizeError           the global batch cannot be divided over the slots (also a ValueError)
    ├── MetricError              a metric is not a number (also a ValueError)
    │   ├── NonFiniteLossError   a loss is NaN, or a gradient is not finite
    │   └── MissingMetricError   validation does not report a metric that the searcher needs
    ├── NonFiniteWeightsError    weights are NaN or infinite
    ├── LimitError               a value exceeds a limit of the control side (also a ValueError)
    ├── CheckpointError          a checkpoint cannot be written, or does not fit the prepared objects
    │   ├── DamagedCheckpointError   a checkpoint is incomplete or its checksum differs
    │   ├── StateError           an object has a state that a checkpoint cannot hold
    │   ├── CheckpointStorageError   the storage rejects a checkpoint now; another save may succeed
    │   └── WeightsError         the weights of a batch inference do not fit its model, or there are none
    ├── OptimizerError           an optimizer does not exist, or rejects its options (also a ValueError)
    ├── ResultError              the result of a decorated function cannot become an XCom
    ├── InputError               an input of a batch inference is empty, cannot be read, or changed
    │   └── InputUnavailableError    its storage does not answer now
    ├── OutputError              an output of a batch inference cannot be written
    │   ├── ResultRowsError      a processor returns another number of rows than its batch has
    │   ├── SchemaError          a column of the output has no type, or another one than declared or before
    │   └── OutputFolderError    the output folder cannot be read or written
    │       ├── UnusableFolderError    this account may not write to it, or it is not the same on all hosts
    │       ├── FolderInUseError   another run writes to it, or has taken it over
    │       └── OtherRunError    it holds results of other inputs, code, weights or settings
    ├── BadShardError            a shard of a batch inference failed too often
    ├── MediaError               an image or table has a form that cannot be shown (also a ValueError)
    ├── LostRankError            a rank has left while other ranks wait for its message
    └── LeaderFailedError        rank 0 or local rank 0 failed while other ranks waited for it
"""

from __future__ import annotations

_NO_RECOVERY = (
    "A training does not recover from this: lower the learning rate, clip gradients, or check the input of this step. "
    "To continue anyway, set dtrain.init(fail_on_nan=False)."
)


class TrainError(Exception):
    """Base class of the errors that stop the training library."""


class SetupError(TrainError):
    """Raised when the environment or the configuration of this process is not valid."""


class TrialClassError(SetupError):
    """Raised when a trial class, its callbacks or its reducers do not implement the interface as required."""


class NotOfferedError(SetupError):
    """Raised when a script of another platform makes a call that has no equal here. Names what to use instead."""


class NotOfferedNameError(NotOfferedError, ModuleNotFoundError):
    """Raised when a script of another platform imports a name that has no equal here. Names what to use instead."""


class BatchLengthError(SetupError, TypeError, ValueError):
    """Raised when the number of records in a batch cannot be determined."""


class EmptyLoaderError(SetupError):
    """Raised when a data loader yields no batch."""


class LoaderWorkerError(TrainError, RuntimeError):
    """Raised when a loader worker was killed, or ended by itself."""


class InvalidHP(TrainError):
    """Raised by user code when the trial's hyperparameters cannot be trained.

    The searchers ``random``, ``async_halving``, ``adaptive_asha`` and ``optuna`` then draw another sample, at most 20
    times per trial. The trial begins anew with it, and no restart is counted. It fails when no new sample is left.
    A point of a ``grid`` and a ``single`` trial fail at once, without a restart.

    The reasons are in docs/decisions/0012-refused-hyperparameters-are-drawn-again.md.
    """


class HparamError(TrainError, KeyError):
    """Raised when a hyperparameter that the script reads does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


class BatchSizeError(TrainError, ValueError):
    """Raised when the global batch size is not a whole number, or is smaller than the number of slots."""


class MetricError(TrainError, ValueError):
    """Raised when a metric is not a number, or its name is not printable."""


class NonFiniteLossError(MetricError):
    """Raised when a loss is NaN, or a gradient is not finite.

    :param name: the metric, or what else has the value
    :param step: step of the report, or number of the backward pass
    :param rank: global rank that found it
    :param origin: a sentence about the first such value
    """

    def __init__(
        self, name: str, step: int, rank: int, *, value: str = "NaN", place: str = "step", origin: str = ""
    ) -> None:
        self.name = name
        self.step = step
        self.rank = rank
        super().__init__(
            f"{name} is {value} at {place} {step} on rank {rank}.{' ' if origin else ''}{origin} {_NO_RECOVERY}"
        )


class NonFiniteWeightsError(TrainError):
    """Raised when weights are NaN or infinite.

    :param names: names of the first ones, with their model
    :param when: a clause that says when this was found
    """

    def __init__(self, names: str, when: str) -> None:
        self.names = names
        super().__init__(f"The weights {names} are not finite {when}. {_NO_RECOVERY}")


class MissingMetricError(MetricError):
    """Raised when validation does not report a metric that the searcher needs."""


class LimitError(TrainError, ValueError):
    """Raised when a value exceeds a limit of the control side."""


class CheckpointError(TrainError):
    """Raised when a checkpoint cannot be written, or does not fit the prepared objects."""


class DamagedCheckpointError(CheckpointError):
    """Raised when a checkpoint is incomplete or its checksum differs."""


class StateError(CheckpointError):
    """Raised when an object has a state that a checkpoint cannot hold. Names the value and what to save instead."""


class CheckpointStorageError(CheckpointError):
    """Raised when the storage rejects a checkpoint. Another save may succeed."""


class WeightsError(CheckpointError):
    """Raised when the weights of a batch inference do not fit its model, or when it has none."""


class OptimizerError(TrainError, ValueError):
    """Raised when an optimizer does not exist, or rejects its options."""


class ResultError(TrainError):
    """Raised when the result of a decorated function cannot become an XCom."""


class InputError(TrainError):
    """Raised when an input of a batch inference is empty, cannot be read, or is not the one that was planned."""


class InputUnavailableError(InputError):
    """Raised when the storage of an input does not answer. Another attempt may succeed."""


class OutputError(TrainError):
    """Raised when an output of a batch inference cannot be written."""


class ResultRowsError(OutputError):
    """Raised when the result of a processor has another number of rows than its batch."""


class SchemaError(OutputError):
    """Raised when a column of the output has no type, or another one than declared or in earlier batches."""


class OutputFolderError(OutputError):
    """Raised when the output folder of a batch inference cannot be read or written."""


class UnusableFolderError(OutputFolderError):
    """Raised when the output folder refuses this account, or is not the same folder on all hosts."""


class FolderInUseError(OutputFolderError):
    """Raised when another run writes to the output folder, or has taken it over."""


class OtherRunError(OutputFolderError):
    """Raised when the output folder holds results of other inputs, code, weights or settings."""


class BadShardError(TrainError):
    """Raised when a shard of a batch inference failed too often."""


class MediaError(TrainError, ValueError):
    """Raised when an image, a table or another report of media has a form that cannot be shown."""


class LostRankError(TrainError):
    """Raised when a rank has left, or does not answer, while other ranks wait for its message."""


class LeaderFailedError(TrainError):
    """Raised on the waiting ranks when rank 0, or local rank 0 of their host, failed."""
