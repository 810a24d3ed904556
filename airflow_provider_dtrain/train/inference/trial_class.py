"""A trial class as a processor: its evaluation, without training data, optimizer or dummies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from airflow_provider_dtrain.train.errors import MetricError, TrialClassError
from airflow_provider_dtrain.train.inference.adapters import Processor
from airflow_provider_dtrain.train.inference.processor import InferenceContext
from airflow_provider_dtrain.train.reports.reducers import Reducer, reducers_of
from airflow_provider_dtrain.train.trial.base import PyTorchTrial, evaluates_batches
from airflow_provider_dtrain.train.trial.context import PyTorchTrialContext
from airflow_provider_dtrain.train.trial.dataloader import DataLoader
from airflow_provider_dtrain.train.trial.validation import evaluating, takes_index


class ReplicaContext(PyTorchTrialContext):
    """Context of a trial class whose models are independent copies on each rank."""

    def __init__(self, ctx: InferenceContext) -> None:
        super().__init__(ctx._ctx)
        self._inference = ctx

    def wrap_model(self, model: Any, ddp: Mapping[str, Any] | None = None) -> Any:
        """Return the model on its device, in the configured precision."""
        ready = self._inference.prepare_model(model)
        self.models.append(ready)
        return ready

    def wrap_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> Any:
        """Return the optimizer, which inference does not use."""
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(self, lr_scheduler: Any, *_: Any, **__: Any) -> Any:
        """Return the scheduler, which inference does not use."""
        return lr_scheduler

    def wrap_reducer(self, reducer: Any, *_: Any, **__: Any) -> Any:
        """Raise, because its data is not part of the ledger, so that a resumed run would lose some of it.

        :raises TrialClassError: always
        """
        raise TrialClassError(
            "context.wrap_reducer is not supported in batch inference: the metrics of shards are combined over several "
            "runs. Return numbers from evaluate_batch, or columns and compute the metric from the output."
        )


class OfTrialClass(Processor):
    """The evaluation of a trial class. Numbers that it returns are metrics, columns are rows of the output.

    ``evaluate_full_dataset`` gets a loader of one batch.
    """

    def __init__(self, kind: type[PyTorchTrial], ctx: InferenceContext, *, needs_data: bool) -> None:
        self._ctx = ctx
        self._context = ReplicaContext(ctx)
        self._trial = kind(self._context)
        if ctx.has_weights:
            for index, model in enumerate(self._context.models):
                ctx.load_weights(model, index=index)
        self._by_batch = evaluates_batches(self._trial)
        self._with_index = self._by_batch and takes_index(self._trial.evaluate_batch)
        self._reducers: Any = None
        if needs_data:
            self._take_data()

    def _take_data(self) -> None:
        loader = self._trial.build_validation_data_loader()
        loader = loader.torch_loader if isinstance(loader, DataLoader) else loader
        if not isinstance(loader, TorchLoader):
            raise TrialClassError(
                "build_validation_data_loader must return a DataLoader for batch inference, got "
                f"{type(loader).__name__}. Name the input in inference.inputs instead."
            )
        self.dataset = loader.dataset
        self.collate = loader.collate_fn

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Set the models to evaluation mode. No gradients are recorded."""
        with evaluating(self._context.models), torch.inference_mode():
            yield

    def process(self, batch: Any, index: int) -> Any:
        """Return the columns among the results of the evaluation, and add its numbers to the metrics."""
        trial: Any = self._trial
        if not self._by_batch:
            found = trial.evaluate_full_dataset(TorchLoader(_OneBatch(batch), batch_size=None))
        else:
            found = trial.evaluate_batch(batch, index) if self._with_index else trial.evaluate_batch(batch)
        if not isinstance(found, dict):
            raise MetricError(f"The evaluation of a batch must return a dict, got {type(found).__name__}.")
        columns = {name: value for name, value in found.items() if _is_column(value)}
        numbers = {name: value for name, value in found.items() if name not in columns}
        if self._reducers is None:
            self._reducers = (
                reducers_of(trial.evaluation_reducer(), list(numbers))
                if self._by_batch
                else dict.fromkeys(numbers, Reducer.AVG)
            )
        for name, value in numbers.items():
            self._ctx.add_metrics({name: value}, reducer=self._reducers.get(name, Reducer.AVG).name)
        return columns or None


class _OneBatch(Dataset):  # type: ignore[type-arg]
    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self._batch


def _is_column(value: Any) -> bool:
    """Return whether a value has an item per row: a list, or an array with dimensions."""
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
