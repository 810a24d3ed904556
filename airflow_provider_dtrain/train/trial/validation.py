"""Validation of a trial class over all ranks. Each sample counts once."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import torch

from airflow_provider_dtrain.train.data.device import move
from airflow_provider_dtrain.train.data.index_source import sampler_parts
from airflow_provider_dtrain.train.data.shares import Shares
from airflow_provider_dtrain.train.errors import MetricError, TrialClassError
from airflow_provider_dtrain.train.process.heartbeat import HERE, VALIDATION
from airflow_provider_dtrain.train.reports import reducers
from airflow_provider_dtrain.train.reports.reducers import number
from airflow_provider_dtrain.train.trial.base import PyTorchTrial, evaluates_batches
from airflow_provider_dtrain.train.trial.callbacks import Callbacks
from airflow_provider_dtrain.train.trial.context import PyTorchTrialContext
from airflow_provider_dtrain.train.trial.dataloader import DataLoader
from airflow_provider_dtrain.train.trial.metrics import read_columns
from airflow_provider_dtrain.train.values import Metrics

log = logging.getLogger(__name__)


class Validator:
    """Evaluates a trial on its validation data."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, callbacks: Callbacks) -> None:
        self._trial = trial
        self._context = context
        self._callbacks = callbacks
        self._by_batch = evaluates_batches(trial)
        self._loader = trial.build_validation_data_loader()
        self._shares = None
        self._warned = False
        #: Metrics of several values that were warned of.
        self._left_out: set[str] = set()
        if self._by_batch:
            seed = context.get_trial_seed()
            self._shares = Shares(
                self._loader, context.distributed, seed, "validation", left_alone=context.experimental.left_alone
            )
            self._shares.length()
            self._with_index = takes_index(trial.evaluate_batch)

    def run(self) -> dict[str, float]:
        """Return the metrics of the whole data set, the same on all ranks. Called by all ranks."""
        self._callbacks.call("on_validation_start")
        with HERE.at(VALIDATION), evaluating(self._context.models), torch.no_grad():
            metrics = self._evaluate_batches() if self._by_batch else self._evaluate_whole()
        found = {name: number(name, value) for name, value in metrics.items()}
        self._callbacks.call("on_validation_end", found)
        return found

    def release(self) -> None:
        """End workers that outlive a validation, after the last one."""
        if self._shares is not None:
            self._shares.release()

    def _evaluate_batches(self) -> Metrics:
        context = self._context
        context._reducers.reset(training=False)
        self._callbacks.call("on_validation_epoch_start")
        outputs, weights = self._outputs()
        self._callbacks.call("on_validation_epoch_end", outputs)
        mine = _columns(outputs, weights, self._left_out)
        answers = context.distributed.allgather((self._partials(mine), sum(weights)))
        if not sum(count for _, count in answers):
            assert self._shares is not None
            raise self._shares.nothing()
        # Ranks without a batch do not know the metrics. The ranks with batches must agree on them.
        names = {name: reducer for parts, _ in answers for name, (reducer, _) in parts.items()}
        metrics: Metrics = {
            name: reducers.combine(reducer, [parts[name][1] for parts, _ in answers if name in parts])
            for name, reducer in names.items()
        }
        reducers.merge(metrics, context._reducers.reduce(context.distributed.allgather, training=False))
        return metrics

    def _outputs(self) -> tuple[list[Metrics], list[int]]:
        assert self._shares is not None
        trial = self._trial
        context = self._context
        outputs: list[Metrics] = []
        weights: list[int] = []
        for index, batch in enumerate(self._shares.validation()):
            HERE.moves += 1
            weights.append(trial.get_batch_length(batch))
            if context.experimental.auto_to_device:
                batch = move(batch, context.device)
            metrics = trial.evaluate_batch(batch, index) if self._with_index else trial.evaluate_batch(batch)  # type: ignore[call-arg]
            if not isinstance(metrics, dict):
                raise MetricError(
                    "evaluate_batch must return a dict of metric name -> number (empty when reducers do it all), "
                    f"got {type(metrics).__name__}."
                )
            outputs.append(metrics)
        return outputs, weights

    def _partials(self, columns: dict[str, tuple[list[float], list[int]]]) -> dict[str, Any]:
        if not columns:
            return {}
        chosen = reducers.reducers_of(self._trial.evaluation_reducer(), list(columns))
        return {
            name: (chosen[name], reducers.partial(chosen[name], values, weights))
            for name, (values, weights) in columns.items()
        }

    def _evaluate_whole(self) -> Metrics:
        """Return the metrics that rank 0 computes alone. The other ranks wait at most 6 hours."""
        loader = self._loader.torch_loader if isinstance(self._loader, DataLoader) else self._loader
        self._warn_of_part(loader)

        def evaluate() -> dict[str, float]:
            metrics = self._trial.evaluate_full_dataset(loader)
            if not isinstance(metrics, dict):
                raise MetricError(f"evaluate_full_dataset must return a dict, got {type(metrics).__name__}.")
            columns = read_columns({name: [value] for name, value in metrics.items()}, self._left_out)
            return {name: column[0] for name, column in columns.items()}

        self._context._reducers.reset(training=False)
        metrics: Metrics = self._context.distributed.on_chief(evaluate)
        reduced = self._context._reducers.reduce(self._context.distributed.allgather, training=False)
        reducers.merge(metrics, reduced)
        return metrics

    def _warn_of_part(self, loader: Any) -> None:
        """Warn once when rank 0's loader, which ``evaluate_full_dataset`` gets, holds only a part of the data."""
        parts = [
            *sampler_parts(getattr(loader, "sampler", None)),
            *sampler_parts(getattr(loader, "batch_sampler", None)),
        ]
        sharded = [part for part in parts if getattr(part, "num_replicas", 1) > 1]
        if sharded and not self._warned and self._context.distributed.rank == 0:
            self._warned = True
            log.warning(
                "evaluate_full_dataset runs on rank 0 with rank 0's loader, whose %s yields one of %d parts of "
                "the data. Return a loader of the whole data set.",
                type(sharded[0]).__name__,
                sharded[0].num_replicas,
            )


@contextlib.contextmanager
def evaluating(models: list[Any]) -> Iterator[None]:
    """Set models to evaluation mode, and restore the mode of each module afterwards.

    DistributedDataParallel exchanges buffers (batch norm) in every forward pass, also in evaluation, and would wait for
    a rank that has no batch left. So rank 0's buffers are sent to all ranks once, and no pass exchanges any.
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    apart = [model for model in models if getattr(model, "broadcast_buffers", False) and hasattr(model, "module")]
    for model in apart:
        for buffer in model.module.buffers():
            torch.distributed.broadcast(buffer, 0, group=model.process_group)
        model.broadcast_buffers = False
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for model in apart:
            model.broadcast_buffers = True


def takes_index(method: Any) -> bool:
    """Return whether ``evaluate_batch`` takes the index of the batch."""
    parameters = list(inspect.signature(method).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or len(positional) == 2:
        return True
    if len(positional) != 1:
        raise TrialClassError(
            f"evaluate_batch must take batch, or batch and batch_idx, besides self, got {len(positional)} arguments."
        )
    return False


def _columns(
    outputs: list[Metrics], weights: list[int], left_out: set[str]
) -> dict[str, tuple[list[float], list[int]]]:
    """Return each metric's values and their weights.

    :raises MetricError: batches have different metrics
    """
    names = list(outputs[0]) if outputs else []
    for index, output in enumerate(outputs):
        if output.keys() != outputs[0].keys():
            raise MetricError(
                f"evaluate_batch returned {sorted(output)} for batch {index}, but {sorted(names)} for batch 0; return "
                "the same metrics for every batch."
            )
    columns = read_columns({name: [output[name] for output in outputs] for name in names}, left_out)
    return {name: (column, weights) for name, column in columns.items()}
