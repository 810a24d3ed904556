"""Callback for the Hugging Face ``Trainer``: metrics, stops and checkpoints of a trial.

::

    from airflow_provider_dtrain.train.integrations.transformers import DtrainCallback

    with dtrain.init() as ctx:
        callback = DtrainCallback(ctx)
        trainer = Trainer(model, args, ..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.latest())

Each checkpoint that the ``Trainer`` saves becomes one of the trial. ``searcher.metric`` is a name of the ``Trainer``,
for example ``eval_loss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from airflow_provider_dtrain.train.checkpoint.file_links import link
from airflow_provider_dtrain.train.checkpoint.files import SavedFiles
from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.integrations.scalars import numbers_of

#: Random states, one file per rank. All other files are of the host's first rank.
_OWN = "rng_state"
#: Folder of a checkpoint for the best model so far, if that is an earlier one.
_BEST = "best"
#: Names, and beginnings of names, in a checkpoint that loading its model does not need.
_NO_MODEL = {_BEST, "scaler.pt", "scheduler.pt"}
_NO_MODELS = (_OWN, "optimizer")
#: Ends of the names of the metrics by which the ``Trainer`` measures itself.
_SPEEDS = (
    "_runtime",
    "_samples_per_second",
    "_steps_per_second",
    "_tokens_per_second",
    "_compilation_time",
    "_preparation_time",
)


class DtrainCallback(TrainerCallback):  # type: ignore[misc]
    """Reports what the ``Trainer`` logs, stops it when the trial must stop, and keeps its checkpoints.

    :param ctx: return value of ``dtrain.init()``
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        #: Step of the latest checkpoint of this attempt, -1 without one.
        self.saved_step = -1
        #: The trial was asked to stop or to pause.
        self.must_stop = False
        #: Checkpoint that the training resumes from.
        self._latest: SavedFiles | None = None

    def latest(self) -> str | None:
        """Return the folder of the latest checkpoint for ``trainer.train(resume_from_checkpoint=...)``, or None.

        Called by all ranks. The weights of ``searcher.source_checkpoint`` are no state to resume from: load them with
        ``from_pretrained(ctx.latest_checkpoint().path)``.
        """
        found = self._ctx.latest_checkpoint()
        self._latest = found if found is not None and not found.is_source else None
        return str(self._latest.path) if self._latest is not None else None

    def metrics_of(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return what is reported of the values that the ``Trainer`` logs: numbers, without its durations and speeds.

        Override it to report less.
        """
        return {name: value for name, value in numbers_of(values).items() if not name.endswith(_SPEEDS)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Give the best model of a checkpoint its place in the folder of this attempt's ``Trainer``."""
        if self._latest is None or state.global_step != self._latest.step or not self._latest.metadata.get("best"):
            return
        best = Path(args.output_dir, str(self._latest.metadata["best"]))
        if self._ctx.local_rank == 0:
            earlier = self._latest.path / _BEST
            _link_model(earlier if earlier.is_dir() else self._latest.path, best)
        self._ctx.distributed.barrier()
        state.best_model_checkpoint = str(best)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Save and end the training when the trial must stop or pause."""
        if self._ctx.should_stop(state.global_step):
            self.must_stop = control.should_save = control.should_training_stop = True
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Neither evaluate nor save once more after a stop in the middle of an epoch.

        An evaluation draws random numbers, which the checkpoint of the step would have after it.
        """
        if self.must_stop and state.epoch % 1:
            control.should_evaluate = control.should_save = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Report training metrics. The metrics of an evaluation have a report of their own."""
        values = {name: value for name, value in self.metrics_of(logs or {}).items() if not name.startswith("eval_")}
        if values:
            self._ctx.report(state.global_step, values, epoch=state.epoch)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **_: Any
    ) -> Any:
        """Report the metrics of an evaluation. End the training if the searcher says so."""
        answer = self._ctx.report_validation(state.global_step, self.metrics_of(metrics or {}), epoch=state.epoch)
        if answer == "stop":
            control.should_training_stop = True
            control.should_save = self.saved_step != state.global_step
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the checkpoint that the ``Trainer`` has written one of the trial."""
        step = self.saved_step = state.global_step
        source = Path(args.output_dir, f"checkpoint-{step}")
        best = Path(state.best_model_checkpoint) if state.best_model_checkpoint else None
        metadata = {"framework": "transformers", "best": best.name if best is not None else None}
        # A rank may come here before another one has written its random state.
        self._ctx.distributed.barrier()
        with self._ctx.checkpoint(step, metadata=metadata) as folder:
            for path in source.rglob("*"):
                if path.is_file() and self._is_mine(path.name):
                    link(path, folder / path.relative_to(source))
            if best is not None and best.name != source.name and self._ctx.local_rank == 0:
                _link_model(best, folder / _BEST)

    def _is_mine(self, name: str) -> bool:
        if name.startswith(_OWN) and name != f"{_OWN}.pth":
            return name == f"{_OWN}_{self._ctx.rank}.pth"
        return self._ctx.local_rank == 0


def _link_model(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        inner = path.relative_to(source)
        first = inner.parts[0]
        if path.is_file() and first not in _NO_MODEL and not first.startswith(_NO_MODELS):
            link(path, target / inner)
