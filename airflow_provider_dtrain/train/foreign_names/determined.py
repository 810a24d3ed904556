"""Names of Determined: what has the same name here, and what to use instead of each other one.

Source: the public modules of determined 0.38.1, and older ones that its examples use.
"""

from __future__ import annotations

from typing import Final

PACKAGE: Final = "airflow_provider_dtrain.train.determined"
#: Module of Determined -> module here with its names. ``determined.pytorch`` is that of trial classes.
MODULES: Final = {
    "determined": PACKAGE,
    "determined.core": f"{PACKAGE}.core",
    "determined.pytorch": "airflow_provider_dtrain.train.pytorch",
    "determined.pytorch.experimental": f"{PACKAGE}.batch_processing",
    "determined.pytorch.samplers": "airflow_provider_dtrain.train.trial.samplers",
    "determined.transformers": f"{PACKAGE}.transformers",
}

_CLI = "Use 'airflow dtrain' on the machine of Airflow, or 'dtrain' on a laptop."
_CLIENT = "Use the Python client: from airflow_provider_dtrain.client import Client, see docs/client.md."
_STARTED = "The trial starts the ranks with the environment of torchrun: set entrypoint: python train.py."
_CORE = "Use det.core in the script, see docs/training/core-api.md."
_TRIAL_CLASS = "A trial class gets all facts from its context, see docs/training/trial-class.md."
_STORAGE = "Set checkpoint_storage in the configuration. ctx.checkpoint and core_context.checkpoint write to it."
_TENSORBOARD = (
    "Set tensorboard: true in the configuration, or use "
    "airflow_provider_dtrain.train.integrations.tensorboard.SummaryWriter."
)
_LIGHTNING = "Use airflow_provider_dtrain.train.integrations.lightning: DtrainCallback and DtrainLogger."
_OUTSIDE = "core.init() works outside a trial as well: no object of its own is needed there."
_ERRORS = "The errors are those of airflow_provider_dtrain.train, all below TrainError."
_INTERNAL = "It is a part of Determined's own machinery."

#: Public name of Determined -> what to use here. A name without an entry has that of its module.
INSTEAD: Final = {
    "determined.EnvContext": "Use get_cluster_info(), see docs/training/core-api.md.",
    "determined.ExperimentConfig": "ctx.config is the effective configuration, as a map.",
    "determined.LegacyTrial": "Use airflow_provider_dtrain.train.pytorch.PyTorchTrial.",
    "determined.RendezvousInfo": "core_context.distributed has the ranks and hosts.",
    "determined.ResourcesInfo": "get_cluster_info() has slot_ids and gpu_uuids.",
    "determined.TrialContext": _TRIAL_CLASS,
    "determined.TrialController": _TRIAL_CLASS,
    "determined.import_from_path": "Files of model_dir are importable by their names.",
    "determined.cli": _CLI,
    "determined.common": _INTERNAL + " Use Python's own functions, or those of det.core.",
    "determined.common.api": _CLIENT,
    "determined.common.experimental": _CLIENT,
    "determined.common.set_logger": "Use logging.basicConfig(format=det.LOG_FORMAT).",
    "determined.common.storage": _STORAGE,
    "determined.constants": _INTERNAL,
    "determined.core.DummyCheckpointContext": _OUTSIDE,
    "determined.core.DummyDistributedContext": _OUTSIDE,
    "determined.core.DummyExperimentalCoreContext": _OUTSIDE,
    "determined.core.DummyPreemptContext": _OUTSIDE,
    "determined.core.DummyProfilerContext": _OUTSIDE,
    "determined.core.DummySearcherContext": _OUTSIDE,
    "determined.core.DummySearcherOperation": "Use core_context.train.report_progress.",
    "determined.core.DummyTrainContext": _OUTSIDE,
    "determined.core.ExperimentalCoreContext": "There is no registry of uses of checkpoints.",
    "determined.core.SearcherContextMissing": "core_context.searcher is always there.",
    "determined.deploy": "Airflow and its database are installed as usual, hosts by 'airflow dtrain hosts add'.",
    "determined.errors": _ERRORS,
    "determined.errors.InternalException": "Use SetupError of airflow_provider_dtrain.train.",
    "determined.errors.InvalidExperimentException": "Use SetupError of airflow_provider_dtrain.train.",
    "determined.errors.InvalidModelException": "Use SetupError of airflow_provider_dtrain.train.",
    "determined.errors.CheckpointNotFound": "Use CheckpointError of airflow_provider_dtrain.train.",
    "determined.errors.InvalidCheckpointException": "Use CheckpointError of airflow_provider_dtrain.train.",
    "determined.estimator": "Estimators need TensorFlow, which this project does not support. " + _CORE,
    "determined.exec": _STARTED,
    "determined.experimental": _CLIENT,
    "determined.experimental.core_v2": "Use core.init(), which works outside a trial as well.",
    "determined.experimental.test_one_batch": "Use Trainer.fit(test_mode=True), see docs/training/trial-class.md.",
    "determined.gpu": "Use torch.cuda, and 'airflow dtrain hosts probe' for all GPUs of a host.",
    "determined.horovod": "Use torch.distributed: core.init() joins the ranks.",
    "determined.ipc": "Use core_context.distributed: allgather, gather and broadcast.",
    "determined.keras": _CORE + " Call model.fit between its calls.",
    "determined.launch": _STARTED,
    "determined.launch.deepspeed": (
        "Set entrypoint: python train.py. deepspeed.init_distributed() reads the environment of torchrun."
    ),
    "determined.layers": _INTERNAL + " " + _TRIAL_CLASS,
    "determined.lightning": _LIGHTNING,
    "determined.load": _INTERNAL + " The entrypoint module:Class loads a trial class.",
    "determined.pytorch.deepspeed": (
        "Use a script that calls deepspeed.init_distributed(), with det.core for metrics and checkpoints."
    ),
    "determined.pytorch.lightning": _LIGHTNING,
    "determined.tensorboard": _TENSORBOARD,
    "determined.util": "Use the functions of Python or of the framework.",
    "determined.workload": _INTERNAL + " " + _TRIAL_CLASS,
}


def remedy(name: str) -> str | None:
    """Return what to use instead of a public name of Determined, None for a name that it does not have.

    :param name: with its module, e.g. ``determined.keras.TFKerasTrial``
    """
    while name not in INSTEAD:
        name = name.rpartition(".")[0]
        if not name:
            return None
    return INSTEAD[name]
