"""Writer with the methods of ``torch.utils.tensorboard.SummaryWriter`` whose scalars are also metrics of the trial.

::

    from airflow_provider_dtrain.train.integrations.tensorboard import SummaryWriter

    with dtrain.init() as ctx, SummaryWriter(ctx) as writer:
        writer.add_scalar("loss", loss, step)
        writer.add_histogram("weights", model.weight, step)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils import tensorboard

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.integrations.scalars import numbers_of


class SummaryWriter(tensorboard.SummaryWriter):
    """Writes event files as PyTorch's writer does, and reports each scalar.

    Only rank 0 writes files, so all ranks may call it.

    :param ctx: return value of ``dtrain.init()``
    :param log_dir: folder for event files
    :param options: further options of PyTorch's writer
    """

    def __init__(self, ctx: Context, log_dir: str | Path = "tensorboard", **options: Any) -> None:
        self._ctx = ctx
        folder = Path(log_dir) if ctx.is_chief else Path(log_dir, f"rank-{ctx.rank}")
        super().__init__(str(folder), **options)

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, *args: Any, **more: Any) -> None:
        """Write a scalar and report it.

        :param global_step: default: that of the last report
        """
        self._report({tag: scalar_value}, global_step)
        super().add_scalar(tag, scalar_value, global_step, *args, **more)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None, *args: Any
    ) -> None:
        """Write several scalars under one tag and report them as ``main_tag/name``."""
        self._report({f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()}, global_step)
        super().add_scalars(main_tag, dict(tag_scalar_dict), global_step, *args)

    def _report(self, values: Mapping[str, Any], step: int | None) -> None:
        found = numbers_of(values)
        if found:
            self._ctx.report(self._ctx.last_step if step is None else step, found)
