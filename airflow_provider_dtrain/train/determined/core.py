"""Names of ``determined.core``."""

from __future__ import annotations

import enum
import importlib.util
import sys
from types import TracebackType
from typing import Any

from airflow_provider_dtrain.train import initialization
from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.determined.checkpoints import CheckpointContext, DownloadMode
from airflow_provider_dtrain.train.determined.cluster_info import ClusterInfo, get_cluster_info
from airflow_provider_dtrain.train.determined.distributed import DistributedContext
from airflow_provider_dtrain.train.determined.preemption import PreemptContext, PreemptMode
from airflow_provider_dtrain.train.determined.refusals import refuse
from airflow_provider_dtrain.train.determined.reports import EarlyExitReason, ProfilerContext, TrainContext
from airflow_provider_dtrain.train.determined.searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import NotOfferedError
from airflow_provider_dtrain.train.foreign_names import finder

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]

_INSTEAD = {
    "alert": "Use the notifications of the experiment, or log the message.",
    "experimental": "There is no registry of uses of checkpoints.",
}


class TensorboardMode(enum.Enum):
    """Event files of TensorBoard."""

    #: ``tensorboard: true`` of the configuration writes them.
    AUTO = "AUTO"
    #: The script uploads its own. Not offered.
    MANUAL = "MANUAL"


class Context:
    """Context of a script, which ``core.init`` returns."""

    def __init__(
        self, ctx: CoreContext, env: RankEnvironment, distributed: DistributedContext, mode: PreemptMode
    ) -> None:
        #: The same in the library's own API.
        self.dtrain = ctx
        distributed.bind(ctx.distributed)
        self.distributed = distributed
        self.train = TrainContext(ctx)
        self.checkpoint = CheckpointContext(ctx)
        self.preempt = PreemptContext(ctx, mode)
        rungs = env.rungs[env.rungs_decided :]
        self.searcher = SearcherContext(ctx, self.train, rungs, on_cluster=env.on_cluster)
        self.profiler = ProfilerContext(ctx)
        #: Facts about the trial; None outside a trial.
        self.info: ClusterInfo | None = get_cluster_info()

    def start(self) -> None:
        """Do nothing: ``core.init`` has joined the ranks."""

    def close(self) -> None:
        """End the trial's context, as the end of the ``with`` block does. Called by all ranks."""
        self.dtrain.close()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dtrain.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        refuse("'Context' object", "core_context", name, _INSTEAD)


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Return the context of this rank, joined to the other ranks. Use it in a ``with`` statement, once per process.

    Random numbers are seeded by the trial's seed. A default process group of PyTorch that the script has created is
    used. Otherwise several ranks join one, where PyTorch is installed.

    :param distributed: default: the ranks of the environment
    :param checkpoint_storage: outside a trial only: folder or URL of checkpoints
    :raises NotOfferedError: an argument has no equal here
    :raises SetupError: the environment is not valid, or the process already has a context
    """
    env = RankEnvironment.read()
    if checkpoint_storage is not None and (env.on_cluster or not isinstance(checkpoint_storage, str)):
        raise NotOfferedError(
            "core.init(checkpoint_storage=...) is for a folder or URL outside a trial. Set checkpoint_storage in the "
            "configuration."
        )
    if TensorboardMode(tensorboard_mode) is TensorboardMode.MANUAL:
        raise NotOfferedError(
            "TensorboardMode.MANUAL is not offered. Set tensorboard: true in the configuration, or use "
            "airflow_provider_dtrain.train.integrations.tensorboard.SummaryWriter."
        )
    mode = PreemptMode(preempt_mode)
    needs_torch = "torch" in sys.modules or (env.world_size > 1 and importlib.util.find_spec("torch") is not None)
    backend = None if needs_torch else initialization.SOCKETS
    ctx = initialization.init(backend=backend, checkpoint_dir=checkpoint_storage, fail_on_nan=False)
    return Context(ctx, env, distributed or DistributedContext.of(ctx.distributed), mode)


def __getattr__(name: str) -> Any:
    """Raise with the remedy for what is not offered."""
    return finder.attribute("determined.core", name)
