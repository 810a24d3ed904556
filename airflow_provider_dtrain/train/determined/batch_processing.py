"""Names of ``determined.pytorch.experimental``: batch inference over a data set, as a script of the Core API.

::

    from airflow_provider_dtrain.train.determined.pytorch.experimental import (
        TorchBatchProcessor,
        torch_batch_process,
    )

    class Predictor(TorchBatchProcessor):
        def __init__(self, context):
            self.context = context
            self.model = context.prepare_model_for_inference(Net())

        def process_batch(self, batch, batch_idx):
            scores = self.model(self.context.to_device(batch))
            with self.context.upload_path() as path:
                torch.save(scores, path / f"scores_{batch_idx}.pt")

    torch_batch_process(Predictor, dataset, batch_size=64)

A new program has exactly-once rows, weights and any number of slots by ``dtrain.BatchProcessor``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from airflow_provider_dtrain.train.checkpoint.file_links import link
from airflow_provider_dtrain.train.context import Context as ScriptContext
from airflow_provider_dtrain.train.data.device import move_or_warn
from airflow_provider_dtrain.train.determined import core
from airflow_provider_dtrain.train.determined.checkpoints import METADATA, STEP
from airflow_provider_dtrain.train.determined.distributed import DistributedContext
from airflow_provider_dtrain.train.determined.refusals import refuse
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.reports.reducers import MetricReducer, Reducers
from airflow_provider_dtrain.train.trial.samplers import DistributedBatchSampler, SkipBatchSampler
from airflow_provider_dtrain.train.values import Hyperparameters

__all__ = ["TorchBatchProcessor", "TorchBatchProcessorContext", "get_default_device", "torch_batch_process"]

log = logging.getLogger(__name__)

_REGISTRY = "There is no registry of models. inference.weights of the configuration names the weights of a trial."
#: Name of Determined -> remedy.
_INSTEAD = dict.fromkeys(("report_task_using_model_version", "report_task_using_checkpoint"), _REGISTRY)
#: Arguments of the data loader that would change its order -> remedy.
_REFUSED = {
    "shuffle": "the position in the data needs their order",
    "sampler": "the batches are dealt to the ranks in their order",
    "batch_sampler": "the batches are dealt to the ranks in their order",
}


class TorchBatchProcessorContext:
    """Surroundings of a processor on one rank.

    :param storage_path: folder of this rank's files, from which each checkpoint gets them
    """

    def __init__(self, core_context: core.Context, storage_path: Path) -> None:
        self._core = core_context
        self._storage_path = storage_path
        self._warned_types: set[type] = set()
        self.reducers = Reducers()
        self.device = get_default_device(core_context)

    def get_hparams(self) -> Hyperparameters:
        """Return all hyperparameters."""
        return self._core.dtrain.hparams

    def to_device(self, data: Any, warned_types: set[type] | None = None) -> Any:
        """Return the data on the device, including tensors and numpy arrays in containers. Log what stays.

        :param warned_types: types that are not logged again; default: those of this context
        """
        return move_or_warn(data, self.device, self._warned_types if warned_types is None else warned_types)

    def prepare_model_for_inference(self, model: Any) -> Any:
        """Return the model on the device, in evaluation mode."""
        return model.eval().to(self.device)

    @contextlib.contextmanager
    def upload_path(self) -> Iterator[Path]:
        """Yield a folder whose files become results of this rank. They are part of the next checkpoint.

        A file replaces an earlier one of the same name, and a link to a file becomes a file.

        :raises CheckpointError: a link leads to a folder or to nothing
        """
        self._storage_path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="upload-", dir=self._storage_path.parent) as folder:
            yield Path(folder)
            _refuse_links(Path(folder))
            sources = [Path(folder, name) for name in _files(Path(folder))]
            # Links first, while the files to which they lead are there.
            for source in sorted(sources, key=lambda path: not path.is_symlink()):
                place = self._storage_path / source.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                if source.is_symlink():
                    # The place may be a second name of a file of a checkpoint.
                    place.unlink(missing_ok=True)
                    shutil.copyfile(source, place)
                else:
                    source.replace(place)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of a group. Called by rank 0."""
        self._core.train.report_metrics(group, steps_completed, metrics)

    def wrap_reducer(
        self, reducer: Any, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        """Return a reducer whose metric over all ranks is reported as a validation at the end.

        :param reducer: a MetricReducer, or a function that takes the list of all values passed to ``update``
        :param name: name of the metric; None: the reducer returns a dict of metrics
        :param for_training: has no effect
        """
        return self.reducers.wrap(reducer, name, for_training=False, for_validation=for_validation)

    def get_tensorboard_path(self) -> Path:
        """Return this rank's folder for TensorBoard files, in the current folder."""
        path = Path.cwd() / "tensorboard" / f"rank{self.get_distributed_rank()}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def get_distributed_rank(self) -> int:
        """Return the global rank."""
        return self._core.distributed.rank

    def get_distributed_size(self) -> int:
        """Return the number of ranks."""
        return self._core.distributed.size

    def __getattr__(self, name: str) -> Any:
        refuse("'TorchBatchProcessorContext' object", "context", name, _INSTEAD)


class TorchBatchProcessor(ABC):
    """Base class of a processor. Each rank has one."""

    @abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None:
        """Prepare, e.g. build a model and load its weights."""

    @abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process a batch.

        :param batch_idx: number of the batch among those of this rank, over all attempts
        """

    def on_checkpoint_start(self) -> None:  # noqa: B027 - a hook that does nothing by default
        """Prepare for a checkpoint, e.g. write results that are kept in memory. Called before each one."""

    def on_finish(self) -> None:  # noqa: B027 - a hook that does nothing by default
        """Clean up. Called once by each rank, after its last batch."""


def get_default_device(core_context: core.Context) -> torch.device:
    """Return the device of this rank."""
    ctx = core_context.dtrain
    if not isinstance(ctx, ScriptContext):
        raise SetupError("torch_batch_process needs PyTorch in core.init(): import torch at the top of the script.")
    device: torch.device = ctx.device
    return device


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Any,
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: Mapping[str, Any] | None = None,
    distributed_context: DistributedContext | None = None,
) -> None:
    """Process the batches of a data set, dealt to the ranks in turn. Resume at the latest checkpoint.

    A checkpoint holds the position and the files of ``upload_path``. The number of ranks may change between attempts.

    :param dataset: map-style, with a length
    :param batch_size: samples per batch, also as an item of ``dataloader_kwargs``; default: 1
    :param max_batches: batches per rank; default: all
    :param checkpoint_interval: batches per rank between checkpoints, at which a request to stop is obeyed
    :param dataloader_kwargs: options of ``torch.utils.data.DataLoader``, without ``shuffle`` and samplers
    :raises SetupError: an argument is not valid
    """
    options = dict(dataloader_kwargs or {})
    _check(dataset, options, batch_size, checkpoint_interval)
    per_batch = options.pop("batch_size", None) or batch_size or 1
    batches = BatchSampler(SequentialSampler(dataset), per_batch, bool(options.pop("drop_last", False)))
    place = tempfile.TemporaryDirectory(prefix="results-", dir=RankEnvironment.read().run_dir)
    with core.init(distributed=distributed_context) as core_context, place as folder:
        ranks = core_context.distributed
        run = _Run(core_context, Path(folder), len(batches), max_batches)
        context = TorchBatchProcessorContext(core_context, Path(folder, f"rank_{ranks.rank}"))
        processor = batch_processor_cls(context)
        mine = DistributedBatchSampler(SkipBatchSampler(batches, run.position.batches), ranks.size, ranks.rank)
        run.process(processor, context, iter(DataLoader(dataset, batch_sampler=mine, **options)), checkpoint_interval)


def _check(dataset: Any, options: Mapping[str, Any], batch_size: int | None, checkpoint_interval: int) -> None:
    if not hasattr(dataset, "__len__"):
        raise SetupError(f"torch_batch_process needs a data set with a length, got {type(dataset).__name__}.")
    if checkpoint_interval < 1:
        raise SetupError(f"checkpoint_interval must be 1 or more, got {checkpoint_interval}.")
    if batch_size is not None and "batch_size" in options:
        raise SetupError("batch_size is given twice: remove it from dataloader_kwargs.")
    for name, reason in _REFUSED.items():
        if options.get(name):
            raise SetupError(f"dataloader_kwargs must not have {name!r}, because {reason}.")


@dataclass
class _Position:
    """Progress of all ranks together."""

    #: Batches that each rank has had its turn for.
    steps: int
    #: Batches of the data set that are done. They are its first ones.
    batches: int
    #: Batches of the data set to process.
    limit: int


class _Run:
    """One attempt.

    :param folder: files of :meth:`TorchBatchProcessorContext.upload_path`, one folder per rank
    :param count: batches of the whole data set
    """

    def __init__(self, core_context: core.Context, folder: Path, count: int, max_batches: int | None) -> None:
        self._core = core_context
        self._folder = folder
        self._size = core_context.distributed.size
        self._count = count
        limit = count if max_batches is None or max_batches < 1 else min(count, max_batches * self._size)
        self.position = self._restored() or _Position(0, 0, limit)
        self.resumes = self.position.steps > 0
        self._saved = self.position.steps

    def process(
        self, processor: TorchBatchProcessor, context: TorchBatchProcessorContext, batches: Iterator[Any], interval: int
    ) -> None:
        """Process the batches that are missing, in step with the other ranks."""
        if self.resumes and context.reducers.chosen(training=False) and self._core.distributed.rank == 0:
            log.warning("Reducers do not see batches of earlier attempts: metrics are of the batches from here on.")
        context.reducers.reset(training=False)
        position, rank = self.position, self._core.distributed.rank
        for _ in range(math.ceil((position.limit - position.batches) / self._size)):
            if position.batches + rank < position.limit:
                processor.process_batch(batch=next(batches), batch_idx=position.steps)
            position.steps += 1
            position.batches = min(position.limit, position.batches + self._size)
            if position.steps % interval == 0:
                self._save(processor)
                if self._core.preempt.should_preempt():
                    self._reduce(context)
                    return
        if position.steps > self._saved:
            self._save(processor)
        self._reduce(context)
        processor.on_finish()

    def _restored(self) -> _Position | None:
        """Return the position of the latest checkpoint, and take its files over: those of this rank's number.

        Rank 0 takes over those of ranks that this attempt does not have.
        """
        latest = RankEnvironment.read().latest_checkpoint
        if latest is None:
            return None
        rank = self._core.distributed.rank
        with self._core.checkpoint.restore_path(str(latest)) as path:
            saved = json.loads((path / METADATA).read_text())
            for folder in path.glob("rank_*"):
                number = int(folder.name[len("rank_") :])
                if number == rank or (rank == 0 and number >= self._size):
                    shutil.copytree(folder, self._folder / folder.name)
        if saved["count"] != self._count:
            raise SetupError(
                f"The data set has {self._count} batches, but it had {saved['count']} at the checkpoint {latest}. "
                "Start a new trial for other data, or restore the data set and batch_size."
            )
        return _Position(saved[STEP], saved["batches"], saved["limit"])

    def _save(self, processor: TorchBatchProcessor) -> None:
        processor.on_checkpoint_start()
        position = self.position
        metadata = {
            STEP: position.steps,
            "batches": position.batches,
            "limit": position.limit,
            "count": self._count,
        }
        with self._core.checkpoint.store_path(metadata, shard=True) as (path, where):
            for name in _files(self._folder):
                link(self._folder / name, path / name)
        self._saved = position.steps
        if self._core.distributed.rank == 0:
            self._core.train.report_progress(position.batches / max(1, position.limit))
            log.info("%d of %d batches are done. The checkpoint is %s.", position.batches, position.limit, where)

    def _reduce(self, context: TorchBatchProcessorContext) -> None:
        metrics = context.reducers.reduce(self._core.distributed.allgather, training=False)
        if metrics and self._core.distributed.rank == 0:
            self._core.train.report_validation_metrics(self.position.steps, metrics)


def _refuse_links(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.is_file():
            raise CheckpointError(
                f"{path.relative_to(folder)} in upload_path is a link to {path.readlink()}, expected a link to a "
                "file. Copy the files to upload."
            )


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
