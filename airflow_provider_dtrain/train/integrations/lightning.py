"""Callback and logger for Lightning: metrics, stops and checkpoints of a trial.

::

    from airflow_provider_dtrain.train.integrations.lightning import DtrainCallback, DtrainLogger

    with dtrain.init() as ctx:
        callback = DtrainCallback(ctx)
        trainer = Trainer(callbacks=[callback], logger=DtrainLogger(ctx), enable_progress_bar=False, ...)
        trainer.fit(model, data, ckpt_path=callback.latest())

Several ranks need ``strategy="ddp"``, ``devices=ctx.distributed.local_size`` and
``num_nodes=ctx.distributed.num_agents``.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import Logger

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.distributed import load_bytes
from airflow_provider_dtrain.train.integrations.scalars import numbers_of
from airflow_provider_dtrain.train.process import seeding

log = logging.getLogger(__name__)

#: File of Lightning's own checkpoint inside one of the trial.
FILE = "trainer.ckpt"
#: Default of ``preemption_timeout`` in the configuration, seconds.
PREEMPTION_TIMEOUT_S = 3600.0


class DtrainCallback(Callback):  # type: ignore[misc]
    """Reports validations, saves a checkpoint after each one, and stops the trainer when the trial must stop.

    A loader with ``state_dict`` and ``load_state_dict`` resumes in the middle of an epoch, and training stops at the
    next step. Lightning resumes any other loader at its start, so training stops at the end of the epoch, unless the
    rest of the epoch takes longer than ``preemption_timeout``.

    :param ctx: return value of ``dtrain.init()``
    :param save: save after each validation; False: only when the trial stops
    """

    def __init__(self, ctx: Context, *, save: bool = True) -> None:
        self._ctx = ctx
        self._saves = save
        self._saved = -1
        self._must_stop = self._stops_inside = False
        #: Random states of the checkpoint, until the first batch.
        self._restored: Mapping[str, Any] | None = None
        #: Time of the monotonic clock at which the first batch of this epoch began, and its number.
        self._began, self._first = 0.0, 0

    def latest(self) -> str | None:
        """Return the checkpoint for ``trainer.fit(ckpt_path=...)``, or None. Called by all ranks.

        The weights of ``searcher.source_checkpoint`` are no state to resume from: load them with
        ``Model.load_from_checkpoint(ctx.latest_checkpoint().path / "trainer.ckpt")``.
        """
        found = self._ctx.latest_checkpoint()
        return str(found.path / FILE) if found is not None and not found.is_source else None

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Set the random states of a checkpoint, which Lightning does not restore."""
        file = Path(trainer.ckpt_path).with_name(self._random_file) if trainer.ckpt_path else None
        self._restored = load_bytes(file.read_bytes()) if file is not None and file.is_file() else None
        self._set_random_states()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Set the random states again inside an epoch, for which Lightning has begun to iterate the loader anew."""
        if self._restored is not None and self._restored["inside"]:
            self._set_random_states()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Note the start of an epoch, or of the rest of a resumed one."""
        self._restored = None
        if batch_idx == 0 or not self._began:
            self._began, self._first = time.monotonic(), batch_idx

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        """End the training when the trial must stop or pause, and save where that is not at the end of an epoch."""
        batches = trainer.num_training_batches
        # Infinite for data without a length.
        done = min(1.0, (batch_idx + 1) / batches) if batches else 0.0
        self._ctx.set_epoch(trainer.current_epoch + done)
        if not self._ctx.should_stop(trainer.global_step):
            return
        if not self._must_stop:
            self._must_stop = True
            self._stops_inside = self._ctx.distributed.broadcast(self._may_stop_inside(trainer, batch_idx))
        stops_inside = self._stops_inside or self._ctx.ended_by_searcher
        # Gradients of an unfinished accumulation are in no checkpoint of Lightning.
        is_whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if trainer.is_last_batch:
            trainer.should_stop = True
        elif stops_inside and is_whole:
            trainer.should_stop = True
            self._save(trainer)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Report the metrics of a validation, and save."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        step = trainer.global_step
        epoch = trainer.current_epoch + int(trainer.is_last_batch)
        answer = self._ctx.report_validation(step, numbers_of(trainer.callback_metrics), epoch=epoch)
        if answer == "stop":
            trainer.should_stop = True
        if self._saves or answer == "stop":
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Save at the end of the epoch with which the training stops, unless its validation has."""
        # After a checkpoint of a validation, Lightning ends its epoch first, and then iterates the loader once more.
        self._set_random_states()
        if self._must_stop:
            self._save(trainer)

    def _set_random_states(self) -> None:
        if self._restored is not None:
            seeding.apply(self._restored["random"])

    def _may_stop_inside(self, trainer: Any, batch_idx: int) -> bool:
        if all(hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") for loader in _loaders(trainer)):
            return True
        left = trainer.num_training_batches - batch_idx - 1
        rest_s = left * (time.monotonic() - self._began) / (batch_idx + 1 - self._first)
        limit_s = float(self._ctx.config.get("preemption_timeout") or PREEMPTION_TIMEOUT_S)
        if rest_s <= limit_s:
            return False
        if self._ctx.is_chief and not self._ctx.ended_by_searcher:
            log.warning(
                "The epoch does not end within preemption_timeout (%.0f s), so training stops inside it. Lightning "
                "resumes a plain loader at its start: use one with state_dict and load_state_dict, for example "
                "StatefulDataLoader of torchdata, or raise preemption_timeout.",
                limit_s,
            )
        return True

    @property
    def _random_file(self) -> str:
        return f"random_state_{self._ctx.rank}.pt"

    def _save(self, trainer: Any) -> None:
        step = trainer.global_step
        if step == self._saved:
            return
        self._saved = step
        with self._ctx.checkpoint(step, metadata={"framework": "lightning"}) as folder:
            state = io.BytesIO()
            torch.save({"inside": not trainer.is_last_batch, "random": seeding.capture()}, state)
            (folder / self._random_file).write_bytes(state.getvalue())
            trainer.save_checkpoint(folder / FILE)


def _loaders(trainer: Any) -> Iterator[Any]:
    found = trainer.train_dataloader
    if isinstance(found, Mapping):
        yield from found.values()
    elif isinstance(found, (list, tuple)):
        yield from found
    else:
        yield found


class DtrainLogger(Logger):  # type: ignore[misc]
    """Reports what a module logs as training metrics. The callback reports validations.

    :param ctx: return value of ``dtrain.init()``
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self._ctx = ctx

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "dtrain"

    @property
    def version(self) -> str:
        """Name of the run."""
        return str(self._ctx.config.get("name") or "trial")

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the trial has its hyperparameters."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Report metrics. Called by all ranks."""
        values = {name: value for name, value in numbers_of(metrics).items() if name != "epoch"}
        if values:
            self._ctx.report(step or 0, values)
