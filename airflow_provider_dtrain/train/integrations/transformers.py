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

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.integrations.scalars import numbers_of

#: Random states, one file per rank. All other files are of the host's first rank.
_OWN = "rng_state"


class DtrainCallback(TrainerCallback):  # type: ignore[misc]
    """Reports what the ``Trainer`` logs, stops it when the trial must stop, and keeps its checkpoints.

    :param ctx: return value of ``dtrain.init()``
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._saved = -1

    def latest(self) -> str | None:
        """Return the folder of the latest checkpoint for ``trainer.train(resume_from_checkpoint=...)``, or None.

        Called by all ranks. The weights of ``searcher.source_checkpoint`` are no state to resume from: load them with
        ``from_pretrained(ctx.latest_checkpoint().path)``.
        """
        found = self._ctx.latest_checkpoint()
        return str(found.path) if found is not None and not found.is_source else None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Save and end the training when the trial must stop or pause."""
        if self._ctx.should_stop(state.global_step):
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Report training metrics. The metrics of an evaluation have a report of their own."""
        values = {name: value for name, value in numbers_of(logs or {}).items() if not name.startswith("eval_")}
        if values:
            self._ctx.report(state.global_step, values, epoch=state.epoch)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **_: Any
    ) -> Any:
        """Report the metrics of an evaluation. End the training if the searcher says so."""
        answer = self._ctx.report_validation(state.global_step, numbers_of(metrics or {}), epoch=state.epoch)
        if answer == "stop":
            control.should_training_stop = True
            control.should_save = self._saved != state.global_step
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the checkpoint that the ``Trainer`` has written one of the trial."""
        step = self._saved = state.global_step
        source = Path(args.output_dir, f"checkpoint-{step}")
        # A rank may come here before another one has written its random state.
        self._ctx.distributed.barrier()
        with self._ctx.checkpoint(step, metadata={"framework": "transformers"}) as folder:
            for path in source.rglob("*"):
                if path.is_file() and self._is_mine(path.name):
                    _link(path, folder / path.relative_to(source))

    def _is_mine(self, name: str) -> bool:
        if name.startswith(_OWN) and name != f"{_OWN}.pth":
            return name == f"{_OWN}_{self._ctx.rank}.pth"
        return self._ctx.local_rank == 0


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the disk does not allow that. The ``Trainer`` rewrites no file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
