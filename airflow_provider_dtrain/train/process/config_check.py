"""Checks of a configuration that a script or a command line gives, which the control side has not checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

#: Section -> its fields. A section with variants has the fields of all of them. "" is the configuration itself.
FIELDS: Mapping[str, frozenset[str]] = {
    "": frozenset((
        "name", "description", "project", "labels", "template", "entrypoint", "model_dir", "hyperparameters",
        "searcher", "inference", "resources", "optimizations", "reproducibility", "profiling", "checkpoint_storage",
        "checkpoint_policy", "min_validation_period", "min_checkpoint_period", "scheduling_unit", "records_per_epoch",
        "perform_initial_validation", "max_restarts", "log_policies", "preemption_timeout", "environment",
        "bind_mounts", "network_interface", "port_range", "data", "tensorboard", "loggers", "preemptible", "launch",
        "warm_start", "warm_idle", "on_unplaceable", "hang_timeout", "decision_timeout", "max_runtime",
        "diagnosis",
    )),
    "searcher": frozenset((
        "name", "metric", "smaller_is_better", "max_length", "max_time", "time_metric", "source_checkpoint",
        "max_trials", "max_concurrent_trials", "trials_per_task", "divisor", "num_rungs", "mode", "max_rungs",
        "bracket_rungs", "sampler",
    )),
    "resources": frozenset((
        "slots_per_trial", "pool", "priority", "weight", "max_slots", "is_single_host", "visible_devices", "shm_size",
        "devices",
    )),
    "optimizations": frozenset((
        "aggregation_frequency", "average_aggregated_gradients", "average_training_metrics", "gradient_compression",
        "tensor_fusion_threshold", "auto_tune_tensor_fusion", "mixed_precision", "float32_modules",
    )),
    "reproducibility": frozenset(("experiment_seed", "deterministic", "record_steps")),
    "profiling": frozenset((
        "enabled", "sampling_interval_s", "timings", "straggler_share", "straggler_after", "trace", "builtin_metrics",
        "gradient_norm_every", "tokens_per_sample", "flops_per_sample", "count_flops", "device_peak_flops",
        "memory_snapshot",
    )),
    "diagnosis": frozenset(("steps", "warm_up", "most_s", "synthetic", "alone")),
    "checkpoint_storage": frozenset((
        "type", "save_experiment_best", "save_trial_best", "save_trial_latest", "host_path", "storage_path",
        "propagation", "container_path", "bucket", "access_key", "secret_key", "endpoint_url", "prefix", "conn_id",
        "container", "connection_string", "account_url", "credential",
    )),
    "environment": frozenset((
        "python", "requirements", "system_site_packages", "wheels", "allow_builds", "index_conn_id", "build_timeout",
        "setup", "variables", "public_variables", "image", "container", "force_pull_image",
        "registry_auth", "registry_conn_id", "add_capabilities", "drop_capabilities",
    )),
    "inference": frozenset((
        "processor", "inputs", "outputs", "weights", "batch_size", "on_bad_shard", "on_bad_row", "collect", "compile",
    )),
}  # fmt: skip

#: Section -> names of Determined, which an experiment reads as another field's or ignores with a warning.
FOREIGN: Mapping[str, frozenset[str]] = {
    "": frozenset((
        "workspace", "slurm", "pbs", "pod_spec", "registry_auth", "integrations", "retention_policy",
        "debug", "internal", "data_layer", "tensorboard_storage", "task_container_defaults", "security",
    )),
    "searcher": frozenset(("stop_once",)),
    "checkpoint_storage": frozenset(("checkpoint_path", "tensorboard_path")),
    "resources": frozenset(("resource_pool", "is_single_node", "agent_label", "native_parallel")),
    "optimizations": frozenset(("grad_updates_size_file", "tensor_fusion_cycle_time")),
    "profiling": frozenset(("begin_on_batch", "end_after_batch", "sync_timings")),
    "environment": frozenset((
        "environment_variables", "pod_spec", "ports", "proxy_ports",
    )),
}  # fmt: skip

DEFAULT_SCHEDULING_UNIT = 100


def check(config: Mapping[str, Any]) -> None:
    """Check that a configuration has only known fields. Values are checked where they are used.

    :param config: an experiment configuration; None stands for an absent section
    :raises SetupError: names all unknown fields, and the closest known name of each
    """
    wrong: list[str] = []
    for section in FIELDS:
        part = config.get(section) if section else config
        if part is None:
            continue
        if not isinstance(part, Mapping):
            wrong.append(f"{section} must be a map of fields, got {part!r}")
            continue
        known = FIELDS[section] | FOREIGN.get(section, frozenset())
        wrong.extend(_unknown(section, key) for key in part if key not in known)
    hyperparameters = config.get("hyperparameters")
    if not (hyperparameters is None or isinstance(hyperparameters, Mapping)):
        wrong.append(f"hyperparameters must be a map of names, got {hyperparameters!r}")
    if wrong:
        raise SetupError(f"The configuration is not valid: {'; '.join(wrong)}.")


def check_ranges(space: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that every hyperparameter has a value, because off-cluster no searcher draws one from a range.

    :param space: section ``hyperparameters``
    :param given: hyperparameters that override it
    :raises SetupError: names all hyperparameters without a value
    """
    ranges = [item for name, value in space.items() if name not in given for item in _ranges(str(name), value)]
    if ranges:
        path = ranges[0][0].split(".")
        value = "..." if len(path) == 1 else "{" + ": {".join(f"'{name}'" for name in path[1:]) + ": ..."
        example = f"{{'{path[0]}': {value}" + "}" * len(path)
        names = ", ".join(f"hyperparameters.{name} is a range ({kind})" for name, kind in ranges)
        raise SetupError(
            f"{names}, and off-cluster no searcher draws from it. Give a value: hparams={example}, or write a constant."
        )


def scheduling_unit(config: Mapping[str, Any]) -> int:
    """Return the number of batches between reports and between checks for a stop.

    :raises SetupError: the value is not a whole number above 0
    """
    value = config.get("scheduling_unit")
    if value is None:
        return DEFAULT_SCHEDULING_UNIT
    if type(value) is not int or value < 1:
        raise SetupError(f"scheduling_unit must be a whole number of batches, 1 or more, e.g. 100, got {value!r}.")
    return value


def _unknown(section: str, key: object) -> str:
    path = f"{section}.{key}" if section else str(key)
    names = {name: f"{section}.{name}" if section else name for name in FIELDS[section]}
    # Imported here, because most trials have no such error, and each would wait for it.
    import difflib

    near = difflib.get_close_matches(str(key), names, n=1)
    if near:
        return f"there is no field {path} (did you mean {names[near[0]]}?)"
    at_home = [f"{home}.{key}" for home, fields in FIELDS.items() if home and key in fields]
    if not section and at_home:
        return f"there is no field {path} (did you mean {at_home[0]}?)"
    return (
        f"there is no field {path} (there are: {', '.join(sorted(names))})" if section else f"there is no field {path}"
    )


def _ranges(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (dotted path, type) of each value that is neither a constant nor a group of constants."""
    if not isinstance(value, Mapping):
        return
    if "type" not in value:
        for name, item in value.items():
            yield from _ranges(f"{path}.{name}", item)
    elif value["type"] != "const":
        yield path, str(value["type"])
