"""Trial-class API: a class defines training and validation, and the library runs the loop."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.train.errors import TrialClassError
from airflow_provider_dtrain.train.reports.reducers import Reducer
from airflow_provider_dtrain.train.trial.callbacks import PyTorchCallback
from airflow_provider_dtrain.train.trial.context import PyTorchTrialContext
from airflow_provider_dtrain.train.trial.dataloader import batch_length
from airflow_provider_dtrain.train.values import Metrics


class PyTorchTrial:
    """Base class of a trial. Build model, optimizer and scheduler in ``__init__`` and wrap them with the context.

    Training needs ``build_training_data_loader``, ``build_validation_data_loader``, ``train_batch`` and one of
    ``evaluate_batch`` and ``evaluate_full_dataset``. Evaluation alone needs ``build_validation_data_loader`` and one of
    the latter two.
    """

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context

    def build_training_data_loader(self) -> Any:
        """Return a ``DataLoader`` with batches of ``context.get_per_slot_batch_size()`` samples."""
        raise self._missing("build_training_data_loader")

    def build_validation_data_loader(self) -> Any:
        """Return a ``DataLoader``. Each of its samples is evaluated once, on one rank."""
        raise self._missing("build_validation_data_loader")

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train on one batch. Return its loss, or a dict of metrics.

        Call ``context.backward(loss)`` and ``context.step_optimizer(optimizer)`` in it.

        :param batch: batch of the training loader, on the device
        :param batch_idx: index of the batch among all batches of the trial, from 0
        """
        raise self._missing("train_batch")

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Metrics:
        """Return the metrics of one batch. The method may omit the parameter ``batch_idx``.

        Models are in evaluation mode and no gradients are recorded.
        """
        raise self._missing("evaluate_batch")

    def evaluate_full_dataset(self, data_loader: Any) -> Metrics:
        """Return the metrics of the whole validation data. Runs on rank 0 while the other ranks wait."""
        raise self._missing("evaluate_full_dataset")

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return the reducer that combines metrics of batches to those of the data set, or one reducer per metric."""
        return Reducer.AVG

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks by name. Their states are part of checkpoints."""
        return {}

    def get_batch_length(self, batch: Any) -> int:
        """Return the number of records in a batch. Default: the length of the first tensor in it."""
        return batch_length(batch)

    def _missing(self, method: str) -> TrialClassError:
        return TrialClassError(f"{type(self).__name__} has no {method}, which is needed here. Define it.")


def evaluates_batches(trial: PyTorchTrial) -> bool:
    """Return True if the trial evaluates batches, False if it evaluates the data set at once.

    :raises TrialClassError: the class defines neither method or both
    """
    kind = type(trial)
    defined = [
        name
        for name in ("evaluate_batch", "evaluate_full_dataset")
        if getattr(kind, name) is not getattr(PyTorchTrial, name)
    ]
    if len(defined) != 1:
        raise TrialClassError(
            f"{kind.__name__} defines {' and '.join(defined) or 'neither evaluate_batch nor evaluate_full_dataset'}; "
            "define exactly one of evaluate_batch (sharded over the ranks) and evaluate_full_dataset (rank 0 alone)."
        )
    return defined == ["evaluate_batch"]


def check_training(trial: PyTorchTrial) -> None:
    """Check that a class defines the methods that training needs.

    :raises TrialClassError: names every missing method
    """
    kind = type(trial)
    needed = ("build_training_data_loader", "build_validation_data_loader", "train_batch")
    missing = [name for name in needed if getattr(kind, name) is getattr(PyTorchTrial, name)]
    if missing:
        raise TrialClassError(f"{kind.__name__} has no {', '.join(missing)}; training needs it. Define it.")
