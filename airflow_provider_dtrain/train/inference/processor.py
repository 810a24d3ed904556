"""Interface of processors: code that turns a batch of the input into rows of the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.gradients.precision import Precision
from airflow_provider_dtrain.train.inference.metrics import ShardMetrics
from airflow_provider_dtrain.train.inference.weights import Weights
from airflow_provider_dtrain.train.reports.reducers import Reducer
from airflow_provider_dtrain.train.values import StateDict


class BatchProcessor:
    """Base class of a batch inference. One object per rank processes the rank's shards.

    ::

        class Classifier(dtrain.BatchProcessor):
            def setup(self, ctx):
                self.model = ctx.prepare_model(ctx.load_weights(Net(ctx.hparams["hidden"])))

            def process_batch(self, batch, batch_idx):
                scores = self.model(batch["pixels"])
                return {"label": scores.argmax(1), "score": scores.max(1).values}
    """

    #: Function that makes a batch of a list of samples, for a data set of :meth:`build_dataset`. None: torch's default.
    collate_fn: Callable[[list[Any]], Any] | None = None

    def setup(self, ctx: InferenceContext) -> None:
        """Prepare, e.g. build a model and load its weights. Called once, by all ranks."""

    def build_dataset(self) -> Any:
        """Return the input as a map-style or iterable data set, if ``inference.inputs`` names none.

        Called by all ranks, after :meth:`setup`.
        """
        return None

    def process_batch(self, batch: Any, batch_idx: int) -> Any:
        """Return one row of output for each row of a batch, or None for no output.

        No gradients are recorded.

        :param batch: columns, or what the data set's samples were collated to; tensors are on the device
        :param batch_idx: index of the batch in its shard
        :return: dict of column -> array, a tensor, a list, a pyarrow table or a pandas frame, each with one item per
            row
        """
        raise NotImplementedError

    def on_finish(self) -> None:
        """Clean up. Called once by each rank, after its last shard."""


class InferenceContext:
    """Surroundings of a processor: device, settings, weights and metrics."""

    def __init__(self, ctx: Context, weights: Weights, *, compiles: bool) -> None:
        self._ctx = ctx
        self._weights = weights
        self._compiles = compiles
        optimizations = ctx.config.get("optimizations") or {}
        modules = optimizations.get("float32_modules") or ()
        self._precision = Precision(optimizations.get("mixed_precision"), lambda: ctx.device, modules)
        self._metrics = ShardMetrics()
        self._rows = 0
        #: torch.device of this rank.
        self.device = ctx.device
        #: Rank numbers, and messages between the ranks.
        self.distributed = ctx.distributed
        #: Hyperparameters and the effective configuration.
        self.hparams = ctx.hparams
        self.config = ctx.config
        #: Free space for plain functions, which have no object of their own.
        self.state: StateDict = {}

    @property
    def rank(self) -> int:
        """The global rank, 0 .. world_size-1."""
        return self.distributed.get_rank()

    @property
    def data_config(self) -> Mapping[str, Any]:
        """Free-form map ``data`` of the configuration."""
        return self.config.get("data") or {}

    @property
    def has_weights(self) -> bool:
        """True if the configuration names weights."""
        return self._weights.exist

    def load_weights(self, model: Any, where: Any = None, *, index: int = 0) -> Any:
        """Load the weights of a checkpoint into a model, and return the model. Called by all ranks.

        :param where: folder or URL that all ranks can read, or the XCom of a trial; None: ``inference.weights``
        :param index: number of the model, in the order in which the training prepared its models
        :raises CheckpointError: there are no weights, or they do not fit the model
        """
        self._weights.load(model, where, index)
        return model

    def prepare_model(self, model: Any) -> Any:
        """Return a model ready to compute: on the device, in evaluation mode, in the configured precision.

        With ``inference.compile``, it is compiled.
        """
        model = model.to(self.device).eval()
        self._precision.wrap_forward(model)
        if self._compiles:
            import torch

            return torch.compile(model)
        return model

    def autocast(self) -> Any:
        """Return a context manager with the precision of ``optimizations.mixed_precision``."""
        return self._precision.autocast()

    def add_metrics(self, metrics: Mapping[str, Any], *, weight: float | None = None, reducer: str = "avg") -> None:
        """Add metrics of the current batch. At the end they are combined over all shards, and stored as a validation.

        :param weight: weight of a mean; default: the rows of the batch
        :param reducer: ``avg``, ``sum``, ``max`` or ``min``
        :raises MetricError: a value is not a number
        """
        if reducer.upper() not in Reducer.__members__:
            raise SetupError(f"reducer must be avg, sum, max or min, got {reducer!r}.")
        self._metrics.add(metrics, self._rows if weight is None else weight, Reducer[reducer.upper()])

    def _begin(self, metrics: ShardMetrics, rows: int) -> None:
        """Direct metrics to a shard.

        :param rows: rows of the batch that follows
        """
        self._metrics = metrics
        self._rows = rows
