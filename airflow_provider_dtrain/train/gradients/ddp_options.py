"""Options of DistributedDataParallel that a program may choose: ``ctx.prepare(model, ddp={...})``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

OPTIONS = (
    "broadcast_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "init_sync",
    "mixed_precision",
    "skip_all_reduce_unused_params",
    "static_graph",
)
#: Options that the library or the configuration chooses.
_INSTEAD = {
    "bucket_cap_mb": "set optimizations.tensor_fusion_threshold in the configuration",
    "device_ids": "the library chooses the device",
    "output_device": "the library chooses the device",
    "process_group": "the library uses the group of all ranks",
}


def has_option(name: str) -> bool:
    """Return whether DistributedDataParallel of the installed torch has an option. Some are newer than torch 2.4."""
    from torch.nn.parallel import DistributedDataParallel

    return name in inspect.signature(DistributedDataParallel.__init__).parameters


def check_options(options: Mapping[str, Any], *, every: int, mixed_precision: str = "none") -> None:
    """Raise when an option of DistributedDataParallel is not one that a program may choose.

    :param every: ``optimizations.aggregation_frequency``
    :param mixed_precision: ``optimizations.mixed_precision``
    :raises SetupError: names the option and the alternative
    """
    for name in options:
        if name not in OPTIONS:
            raise SetupError(
                f"ddp must contain options out of {', '.join(OPTIONS)}, got {name}: "
                f"{_INSTEAD.get(name, 'there is no such option')}."
            )
        if not has_option(name):
            import torch

            raise SetupError(
                f"ddp option {name} needs a newer version of torch, found {torch.__version__}. Remove the option, or "
                "install a newer torch."
            )
    if options.get("mixed_precision") is not None and mixed_precision != "none":
        raise SetupError(
            f"ddp option mixed_precision and optimizations.mixed_precision: {mixed_precision} cannot be used together. "
            "Remove one of them."
        )
    if options.get("static_graph") and every > 1:
        raise SetupError(
            f"ddp option static_graph must be false with optimizations.aggregation_frequency {every}, because torch "
            "records the graph of a backward pass that exchanges gradients. Remove the option."
        )
