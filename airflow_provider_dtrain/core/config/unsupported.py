"""Fields that are known and valid, but whose feature this version does not have.

A run fails with the path of such a field, unless the host provides what the field asks for. Delete the entry when the
feature is implemented.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.errors import Problem, UnsupportedFieldError

Test = Callable[[Any, ExperimentConfig], bool]


def _given(value: Any, config: ExperimentConfig) -> bool:
    return value is not None and value is not False and value not in ([], {})


def _nonzero(value: Any, config: ExperimentConfig) -> bool:
    return not value.is_zero


def _elsewhere(value: Any, config: ExperimentConfig) -> bool:
    """Return True when a folder or device is requested below another path than on the host."""
    return any(posixpath.normpath(one.host_path) != posixpath.normpath(one.container_path) for one in value)


def _in_work_folder(value: Any, config: ExperimentConfig) -> bool:
    return any(not mount.container_path.startswith("/") for mount in value)


_HOST: Final = "ranks run without containers"
_SOME_HOSTS: Final = "on hosts without podman, docker and apptainer, ranks run without containers"
#: (dotted path, test whether a value uses the feature, message).
UNSUPPORTED: Final[tuple[tuple[str, Test, str], ...]] = (
    (
        "resources.devices",
        _elsewhere,
        f"{_HOST} and use the devices of the host. Use host_path in the code, and remove container_path",
    ),
    (
        "bind_mounts",
        _in_work_folder,
        f"{_HOST}, so container_path must be absolute. Use host_path in the code, and remove the entry",
    ),
)

#: Fields of ``environment`` that change a container only.
_OF_CONTAINERS: Final = (
    "force_pull_image",
    "registry_auth",
    "registry_conn_id",
    "add_capabilities",
    "drop_capabilities",
)
#: Those of them that a container serves. The launch refuses them on hosts without one.
BY_CONTAINER: Final = frozenset({"resources.devices", "bind_mounts"})
_BY_SCRIPT: Final = "a script must do this itself. Remove the field"

#: The same for fields that the training loop of a trial class reads. A script would ignore them.
FOR_TRIAL_CLASSES: Final[tuple[tuple[str, Test], ...]] = (
    ("min_validation_period", _nonzero),
    ("min_checkpoint_period", _nonzero),
    ("perform_initial_validation", _given),
)


def unsupported(config: ExperimentConfig, origins: Mapping[str, str] | None = None) -> list[Problem]:
    """Return one problem per field that uses an unsupported feature.

    :param config: complete
    :param origins: from assembly. The message names the origin of a field that the configuration does not set itself
    """
    found: list[Problem] = []
    for path, is_used, message in UNSUPPORTED:
        is_served = path in BY_CONTAINER and config.environment.is_contained
        if is_used(_value_at(config, path), config) and not is_served:
            giver = _giver(path, origins or {})
            found.append(Problem(path=path, message=f"not supported in this version: {message}{giver}"))
    if config.environment.container == "required" and config.environment.image is None:
        found.append(Problem(path="environment.container", message="is 'required', but environment.image is not set"))
    if config.command and config.trial_class is None:
        for path, is_used in FOR_TRIAL_CLASSES:
            if is_used(_value_at(config, path), config):
                giver = _giver(path, origins or {})
                found.append(Problem(path=path, message=f"for trial classes only; {_BY_SCRIPT}{giver}"))
    return found


def notices(config: ExperimentConfig, origins: Mapping[str, str]) -> list[str]:
    """Return one notice per field that has no effect, or that the hosts must provide.

    :param config: complete
    :param origins: from assembly
    """
    found = [f"{path}: {message}{_giver(path, origins)}" for path, message in _notices(config)]
    unused = (f"environment.{name}" for name in config.environment.without_requirements())
    # A template or a pool may have them for the configurations that name a lock file.
    own = [path for path in unused if origins.get(path) == "config"]
    return [*found, *(f"{path}: it has no effect without environment.requirements" for path in own)]


def _notices(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    if config.environment.container != "required":
        yield from _without_container(config)
    if config.records_per_epoch is not None and config.command and config.trial_class is None:
        yield "records_per_epoch", "for trial classes only; a script counts its epochs itself, and it has no effect"


def _without_container(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield what a configuration means on hosts that run its ranks in no container."""
    text = _SOME_HOSTS if config.environment.is_contained else _HOST
    if config.resources.shm_size is not None:
        yield "resources.shm_size", f"{text} and use /dev/shm of the host; it has no effect"
    for name in _OF_CONTAINERS:
        if getattr(config.environment, name):
            yield f"environment.{name}", f"{text}; it has no effect"
    if config.environment.image is not None:
        message = "Install there what the image contains, or name an interpreter that has it in environment.python"
        yield "environment.image", f"{text} in the environment of the host; it has no effect. {message}"
    absolute = [mount for mount in config.bind_mounts if mount.container_path.startswith("/")]
    if moved := [mount for mount in absolute if _elsewhere([mount], config)]:
        host, container = moved[0].host_path, moved[0].container_path
        more = f" (and {len(moved) - 1} more)" if len(moved) > 1 else ""
        yield (
            "bind_mounts",
            f"{text}, so {container} must be {host} on each host, for example by a symbolic link{more}. The launch "
            f"checks it. Or use {host} in the code, and remove the entry",
        )
    if any(mount.read_only for mount in absolute):
        yield "bind_mounts", f"{text}; read_only has no effect"


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
