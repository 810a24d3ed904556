"""Tracker for Accelerate: ``accelerator.log`` reports the metrics of a trial.

::

    from airflow_provider_dtrain.train.integrations.accelerate import DtrainTracker

    with dtrain.init() as ctx:
        order = DataLoaderConfiguration(use_seedable_sampler=True)
        accelerator = Accelerator(log_with=DtrainTracker(ctx), dataloader_config=order)
        accelerator.init_trackers("my training")
        ...
        accelerator.log({"loss": loss}, step=step)
        if ctx.should_stop(step):
            with ctx.checkpoint(step) as folder:
                accelerator.save_state(folder)
            break

Resume with ``accelerator.load_state(ctx.latest_checkpoint().path)``. Without the seedable sampler, an epoch with a
pause continues in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.integrations.scalars import numbers_of


class DtrainTracker(GeneralTracker):  # type: ignore[misc]
    """Reports what ``accelerator.log`` is given.

    :param ctx: return value of ``dtrain.init()``
    """

    name = "dtrain"
    requires_logging_directory = False
    #: Accelerate calls the tracker on rank 0 alone, and a report of one rank is recorded as it is.
    main_process_only = True

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self._ctx = ctx

    @property
    def tracker(self) -> Context:
        """The context."""
        return self._ctx

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Do nothing: the trial has its hyperparameters."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Report metrics.

        :param step: number of batches; default: that of the last report
        """
        found = numbers_of(values)
        if found:
            self._ctx.report(self._ctx.last_step if step is None else step, found)
