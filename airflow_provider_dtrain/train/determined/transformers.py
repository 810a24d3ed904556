"""``DetCallback`` of ``determined.transformers``, over the library's own callback for the Hugging Face ``Trainer``.

::

    from airflow_provider_dtrain.train.determined.transformers import DetCallback

    with det.core.init(distributed=distributed) as core_context:
        callback = DetCallback(core_context, training_args)
        trainer = Trainer(args=training_args, ..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)

What differs is in docs/training/core-api.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.context import Context as ScriptContext
from airflow_provider_dtrain.train.determined.core import Context
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.integrations.transformers import DtrainCallback

__all__ = ["DetCallback"]

#: File of each checkpoint with ``user_data``.
USER_DATA = "my_data.json"


class DetCallback(DtrainCallback):
    """Reports metrics, stops the ``Trainer`` and keeps its checkpoints, and resumes from the latest one.

    A training that ends by itself is evaluated and saved at its end.

    :param core_context: return value of ``det.core.init()``
    :param args: the ``TrainingArguments``, whose ``resume_from_checkpoint`` becomes the latest checkpoint, unless
        ``overwrite_output_dir`` is set
    :param filter_metrics: metrics whose name contains one of these texts are reported, and those of the searcher;
        None: all
    :param user_data: JSON values that each checkpoint holds in ``my_data.json``
    :raises SetupError: PyTorch was not imported before ``det.core.init()``
    """

    def __init__(
        self,
        core_context: Context,
        args: Any,
        filter_metrics: Sequence[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        ctx = core_context.dtrain
        if not isinstance(ctx, ScriptContext):
            raise SetupError("DetCallback needs PyTorch in det.core.init(): import torch at the top of the script.")
        super().__init__(ctx)
        self.core_context = core_context
        self.user_data = user_data
        self.filter_metrics = list(filter_metrics or ())
        if self.filter_metrics:
            searcher = ctx.config.get("searcher") or {}
            self.filter_metrics += [searcher[name] for name in ("metric", "time_metric") if searcher.get(name)]
        self._evaluated_step = -1
        if not getattr(args, "overwrite_output_dir", False):
            latest = self.latest()
            if latest is not None:
                args.resume_from_checkpoint = latest

    def metrics_of(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return what is reported of the values that the ``Trainer`` logs: those that ``filter_metrics`` names."""
        numbers = super().metrics_of(values)
        if not self.filter_metrics:
            return numbers
        return {name: value for name, value in numbers.items() if any(part in name for part in self.filter_metrics)}

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **more: Any
    ) -> Any:
        """Report the metrics of an evaluation, the first one of each step."""
        if state.global_step == self._evaluated_step:
            return control
        self._evaluated_step = state.global_step
        return super().on_evaluate(args, state, control, metrics, **more)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Evaluate and save at the end of a training that has not been asked to stop."""
        super().on_epoch_end(args, state, control, **more)
        if not self.must_stop and (control.should_training_stop or state.global_step >= state.max_steps):
            control.should_evaluate |= state.global_step > self._evaluated_step
            control.should_save |= state.global_step > self.saved_step
        return control

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Add ``user_data`` to the checkpoint that the ``Trainer`` has written, and make it one of the trial."""
        if self.user_data is not None and state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", USER_DATA)
            path.write_text(json.dumps(dict(self.user_data)))
        super().on_save(args, state, control, **more)
