"""Fields that are known and valid, but whose feature this version does not have.

A run that uses one fails by name; delete the line when the feature is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.core.config.sections import DEFAULT_LOG_POLICIES
from airflow_provider_dtrain.core.search_space import is_constant, leaves
from airflow_provider_dtrain.errors import Problem, UnsupportedFieldError

Test = Callable[[Any, ExperimentConfig], bool]


def _given(value: Any, config: ExperimentConfig) -> bool:
    return value is not None and value is not False and value not in ([], {})


def _other_than(*values: Any) -> Test:
    return lambda value, config: value not in values


def _nonzero(value: Any, config: ExperimentConfig) -> bool:
    return not value.is_zero


def _is_trial_class(value: Any, config: ExperimentConfig) -> bool:
    return config.trial_class is not None


def _varies(value: Any, config: ExperimentConfig) -> bool:
    return any(not is_constant(leaf) for _, leaf in leaves(value))


def _more_than_defaults(value: Any, config: ExperimentConfig) -> bool:
    return [policy.model_dump() for policy in value] != list(DEFAULT_LOG_POLICIES)


_REMOTE: Final = "checkpoints are kept in the run folder, in shared_fs or in directory"
_SEARCH: Final = "hyperparameter search is not built yet; 'single' runs"
_CONTAINER: Final = "containers are not built yet; ranks run in the host's own environment"
_TRAIN: Final = "the training library does not do this yet"
_KEEP: Final = "removing checkpoints by number is not built yet"
_LENGTH: Final = "the length of training is the script's own affair until trial classes are built"
_PREEMPT: Final = "preemption is not built yet"

#: (dotted path, whether a value uses the feature, words).
UNSUPPORTED: Final[tuple[tuple[str, Test, str], ...]] = (
    ("entrypoint", _is_trial_class, "trial classes are not built yet; give a command such as 'python train.py'"),
    ("hyperparameters", _varies, "ranges and choices are not sampled yet, not even for searcher single; use constants"),
    ("searcher.name", _other_than("single"), _SEARCH),
    ("searcher.max_length", _given, _LENGTH),
    ("searcher.max_time", _given, _LENGTH),
    ("searcher.time_metric", _given, _LENGTH),
    ("searcher.source_checkpoint", _given, "starting from another trial's checkpoint is not built yet"),
    ("resources.weight", _other_than(1), "weights are not part of the queue's order yet"),
    ("resources.max_slots", _given, "the cap on an experiment's slots is not built yet"),
    ("resources.shm_size", _given, _CONTAINER),
    ("resources.devices", _given, _CONTAINER),
    ("bind_mounts", _given, _CONTAINER),
    ("environment.image", _given, _CONTAINER),
    ("optimizations.aggregation_frequency", _other_than(1), _TRAIN),
    ("optimizations.average_aggregated_gradients", _other_than(True), _TRAIN),
    ("optimizations.average_training_metrics", _other_than(True), _TRAIN),
    ("optimizations.gradient_compression", _given, _TRAIN),
    ("optimizations.tensor_fusion_threshold", _other_than(25), _TRAIN),
    ("optimizations.auto_tune_tensor_fusion", _given, _TRAIN),
    ("optimizations.mixed_precision", _other_than("none"), _TRAIN),
    ("profiling.enabled", _other_than(True), "measurements are not built yet"),
    ("profiling.sampling_interval_s", _other_than(1), "measurements are not built yet"),
    ("profiling.timings", _other_than(True), "measurements are not built yet"),
    ("checkpoint_storage.type", _other_than(None, "shared_fs", "directory"), _REMOTE),
    ("checkpoint_storage.save_experiment_best", _other_than(0), _KEEP),
    ("checkpoint_storage.save_trial_best", _other_than(1), _KEEP),
    ("checkpoint_storage.save_trial_latest", _other_than(1), _KEEP),
    ("min_validation_period", _nonzero, _LENGTH),
    ("min_checkpoint_period", _nonzero, _LENGTH),
    ("records_per_epoch", _given, _LENGTH),
    ("perform_initial_validation", _given, _LENGTH),
    ("log_policies", _more_than_defaults, "log policies are not built yet"),
    ("preemption_timeout", _other_than(3600), _PREEMPT),
    ("preemptible", _given, _PREEMPT),
    ("max_runtime", _given, "run time limits are not built yet; use the operator's execution_timeout"),
    ("tensorboard", _given, "TensorBoard files are not built yet"),
    ("launch", _other_than("per_slot"), "one process per host is not built yet"),
    ("hang_timeout", _other_than(1800), "the watchdog is not built yet"),
    ("decision_timeout", _other_than(30), _SEARCH),
)


def unsupported(config: ExperimentConfig, origins: Mapping[str, str] | None = None) -> list[Problem]:
    """Return one problem per field that is used although its feature is not built.

    :param config: complete
    :param origins: as assembled; a field that comes from elsewhere than the configuration says so
    """
    found: list[Problem] = []
    for path, is_used, words in UNSUPPORTED:
        if is_used(_value_at(config, path), config):
            giver = _giver(path, origins or {})
            found.append(Problem(path=path, message=f"not supported in this version: {words}{giver}"))
    return found


def refuse_unsupported(config: ExperimentConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise when a configuration uses a feature that is not built.

    :raises UnsupportedFieldError: with every such field
    """
    found = unsupported(config, origins)
    if found:
        raise UnsupportedFieldError(found)


def _value_at(config: ExperimentConfig, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _giver(path: str, origins: Mapping[str, str]) -> str:
    givers = {giver for leaf, giver in origins.items() if leaf == path or leaf.startswith(path + ".")}
    if "config" in givers or not givers - {"default"}:
        return ""
    return " (given by the template)" if "template" in givers else " (given by the defaults of the pool)"
