"""Training library that user code on the hosts imports.

It does not import Airflow, and it imports torch only inside functions and in submodules that are loaded on first use.

::

    import airflow_provider_dtrain.train as dtrain

    with dtrain.init(hparams={"lr": 0.1, "global_batch_size": 64}) as ctx:
        model, optimizer = ctx.prepare(model, optimizer)
        step = ctx.restore_checkpoint()
        for epoch in ctx.epochs(10):
            for batch in ctx.loader(dataset):
                ctx.backward(loss_fn(model, batch))
                ctx.step(optimizer)
                step += 1
                ctx.report(step, {"loss": loss})
            ctx.report_validation(step, {"accuracy": accuracy})
            ctx.save_checkpoint(step)

The same file runs as a trial, under ``torchrun`` and with ``python train.py``.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import (
    BadShardError,
    BatchLengthError,
    BatchSizeError,
    CheckpointError,
    CheckpointStorageError,
    DamagedCheckpointError,
    EmptyLoaderError,
    FolderInUseError,
    HparamError,
    InputError,
    InputUnavailableError,
    InvalidHP,
    LeaderFailedError,
    LimitError,
    LoaderWorkerError,
    LostRankError,
    MediaError,
    MetricError,
    MissingMetricError,
    NonFiniteLossError,
    NonFiniteWeightsError,
    NotOfferedError,
    NotOfferedNameError,
    OptimizerError,
    OtherRunError,
    OutputError,
    OutputFolderError,
    ResultError,
    ResultRowsError,
    SchemaError,
    SetupError,
    StateError,
    TrainError,
    TrialClassError,
    UnusableFolderError,
    WeightsError,
)
from airflow_provider_dtrain.train.initialization import init
from airflow_provider_dtrain.train.prepared import parameters_sha256, unwrap

__all__ = [
    "BadShardError",
    "BatchLengthError",
    "BatchSizeError",
    "CheckpointError",
    "CheckpointStorageError",
    "Context",
    "DamagedCheckpointError",
    "Distributed",
    "EmptyLoaderError",
    "FolderInUseError",
    "HparamError",
    "InputError",
    "InputUnavailableError",
    "InvalidHP",
    "LeaderFailedError",
    "LimitError",
    "LoaderWorkerError",
    "LostRankError",
    "MediaError",
    "MetricError",
    "MissingMetricError",
    "NonFiniteLossError",
    "NonFiniteWeightsError",
    "NotOfferedError",
    "NotOfferedNameError",
    "OptimizerError",
    "OtherRunError",
    "OutputError",
    "OutputFolderError",
    "ResultError",
    "ResultRowsError",
    "SchemaError",
    "SetupError",
    "StateError",
    "TrainError",
    "TrialClassError",
    "UnusableFolderError",
    "WeightsError",
    "init",
    "parameters_sha256",
    "unwrap",
]

#: Name -> submodule, imported on first use because it imports torch. If both are equal, the name is the submodule.
_LATER = {
    **dict.fromkeys(("BatchProcessor", "InferenceContext"), "inference.processor"),
    "SavedFiles": "checkpoint.files",
    "export_weights": "checkpoint.export",
    "load_weights": "checkpoint.weights",
    "optim": "optim",
    "pytorch": "pytorch",
    **dict.fromkeys(("DataLoader",), "trial.dataloader"),
    **dict.fromkeys(("LRScheduler", "PyTorchTrialContext"), "trial.context"),
    **dict.fromkeys(("MetricReducer", "Reducer", "SimpleMetricReducer"), "reports.reducers"),
    **dict.fromkeys(("evaluate_trial", "run_trial"), "trial.run"),
    "PyTorchCallback": "trial.callbacks",
    "PyTorchTrial": "trial.base",
}


def __getattr__(name: str) -> Any:
    """Return a name of the library that is imported on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_LATER[name]}")
    return module if _LATER[name] == name else getattr(module, name)
