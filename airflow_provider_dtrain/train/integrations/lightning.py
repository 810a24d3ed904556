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

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import Logger

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.integrations.scalars import numbers_of

#: File of Lightning's own checkpoint inside one of the trial.
FILE = "trainer.ckpt"


class DtrainCallback(Callback):  # type: ignore[misc]
    """Reports validations, saves a checkpoint after each one, and stops the trainer when the trial must stop.

    :param ctx: return value of ``dtrain.init()``
    :param save: save after each validation; False: only when the trial stops
    """

    def __init__(self, ctx: Context, *, save: bool = True) -> None:
        self._ctx = ctx
        self._saves = save
        self._saved = -1

    def latest(self) -> str | None:
        """Return the checkpoint for ``trainer.fit(ckpt_path=...)``, or None. Called by all ranks.

        The weights of ``searcher.source_checkpoint`` are no state to resume from: load them with
        ``Model.load_from_checkpoint(ctx.latest_checkpoint().path / "trainer.ckpt")``.
        """
        found = self._ctx.latest_checkpoint()
        return str(found.path / FILE) if found is not None and not found.is_source else None

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        """Save and end the training when the trial must stop or pause."""
        batches = trainer.num_training_batches
        # Infinite for data without a length.
        done = min(1.0, (batch_idx + 1) / batches) if batches else 0.0
        self._ctx.tell_epoch(trainer.current_epoch + done)
        if self._ctx.should_stop(trainer.global_step):
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

    def _save(self, trainer: Any) -> None:
        step = trainer.global_step
        if step == self._saved:
            return
        self._saved = step
        with self._ctx.checkpoint(step, metadata={"framework": "lightning"}) as folder:
            trainer.save_checkpoint(folder / FILE)


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
