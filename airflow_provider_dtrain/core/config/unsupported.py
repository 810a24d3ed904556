"""Fields that are known and valid, but whose feature this version does not have.

A run that uses one fails with the path of the field. Delete the entry when the feature is implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.errors import Problem, UnsupportedFieldError

Test = Callable[[Any, ExperimentConfig], bool]


def _given(value: Any, config: ExperimentConfig) -> bool:
    return value is not None and value is not False and value not in ([], {})


def _other_than(*values: Any) -> Test:
    return lambda value, config: value not in values


def _nonzero(value: Any, config: ExperimentConfig) -> bool:
    return not value.is_zero


_CONTAINER: Final = "containers are not implemented yet; ranks run in the host's own environment"

#: (dotted path, test whether a value uses the feature, message).
UNSUPPORTED: Final[tuple[tuple[str, Test, str], ...]] = (
    ("resources.shm_size", _given, _CONTAINER),
    ("resources.devices", _given, _CONTAINER),
    ("bind_mounts", _given, _CONTAINER),
    ("environment.image", _given, _CONTAINER),
    ("launch", _other_than("per_slot"), "one process per host is not implemented yet"),
)

#: The same for fields that the training loop of a trial class reads. A script would ignore them.
FOR_TRIAL_CLASSES: Final[tuple[tuple[str, Test], ...]] = (
    ("min_validation_period", _nonzero),
    ("min_checkpoint_period", _nonzero),
    ("records_per_epoch", _given),
    ("perform_initial_validation", _given),
)


def unsupported(config: ExperimentConfig, origins: Mapping[str, str] | None = None) -> list[Problem]:
    """Return one problem per field that uses an unsupported feature.

    :param config: complete
    :param origins: from assembly. The message names the origin of a field that the configuration does not set itself
    """
    found: list[Problem] = []
    for path, is_used, words in UNSUPPORTED:
        if is_used(_value_at(config, path), config):
            giver = _giver(path, origins or {})
            found.append(Problem(path=path, message=f"not supported in this version: {words}{giver}"))
    if config.command and config.trial_class is None:
        for path, is_used in FOR_TRIAL_CLASSES:
            if is_used(_value_at(config, path), config):
                giver = _giver(path, origins or {})
                found.append(Problem(path=path, message=f"for trial classes only; a script must do this itself{giver}"))
    return found


def refuse_unsupported(config: ExperimentConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise when a configuration uses an unsupported feature.

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
