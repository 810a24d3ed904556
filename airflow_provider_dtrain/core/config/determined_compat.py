"""Translation of Determined's field names to this project's, in a document as written (tags included)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_dtrain.core.config.commands import without_launcher
from airflow_provider_dtrain.core.config.merge import RESET, Override
from airflow_provider_dtrain.core.config.yaml_reader import check_shape
from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Path in a Determined document -> path here.
SYNONYMS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("resources", "resource_pool"): ("resources", "pool"),
    ("resources", "is_single_node"): ("resources", "is_single_host"),
    ("environment", "environment_variables"): ("environment", "variables"),
    ("task_container_defaults", "dtrain_network_interface"): ("network_interface",),
}
ACTIONS: Final[dict[str, str]] = {"exclude_node": "exclude_host"}

#: Section -> keys of Determined without a counterpart here; "" is the document itself.
FOREIGN: Final[dict[str, frozenset[str]]] = {
    "": frozenset(
        {
            "slurm",
            "pbs",
            "pod_spec",
            "registry_auth",
            "integrations",
            "retention_policy",
            "debug",
            "internal",
            "security",
            "data_layer",
            "tensorboard_storage",
        }
    ),
    "environment": frozenset(
        {
            "pod_spec",
            "ports",
            "proxy_ports",
        }
    ),
    "resources": frozenset({"agent_label", "native_parallel"}),
    "optimizations": frozenset({"grad_updates_size_file", "tensor_fusion_cycle_time"}),
    "profiling": frozenset({"begin_on_batch", "end_after_batch", "sync_timings"}),
    "searcher": frozenset({"stop_once"}),
    "checkpoint_storage": frozenset({"checkpoint_path", "tensorboard_path"}),
}
#: Keys of Determined in ``environment.registry_auth`` beside user name, password and server.
_OF_REGISTRY: Final = frozenset({"auth", "email", "identitytoken", "registrytoken"})
#: Searchers and storages of Determined that are refused, and what to do instead.
INSTEAD: Final[dict[str, dict[str, str]]] = {
    "searcher": {
        "custom": "use optuna, which proposes hyperparameters from earlier results, or start each trial from your "
        "own DAG with a TrialOperator",
        "pbt": "use adaptive_asha, or start each generation from your own DAG with searcher.source_checkpoint",
        "adaptive": "use adaptive_asha",
        "adaptive_simple": "use adaptive_asha",
        "sync_halving": "use async_halving",
    },
    "checkpoint_storage": {"hdfs": "mount it on all hosts and use directory, or use s3"},
}
#: Fields of Determined that have another meaning here.
REPLACED: Final[dict[str, str]] = {
    "searcher.source_trial_id": "searcher.source_checkpoint with the path or URL of that trial's checkpoint",
    "searcher.source_checkpoint_uuid": "searcher.source_checkpoint with the path or URL of the checkpoint",
}
#: Kind of device in a Determined document -> kind here.
DEVICES: Final[dict[str, str]] = {"gpu": "cuda"}


@dataclass(kw_only=True)
class Normalized:
    """Document with this project's field names."""

    document: ConfigDocument
    #: One per key of Determined without a counterpart here.
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def normalize(document: object, *, source: str = "configuration") -> Normalized:
    """Return a copy of a document with this project's field names. The input is not changed.

    :param document: as written; may contain :class:`Override` and :data:`RESET`
    :param source: name of the document in error messages
    :raises ConfigError: not a mapping of plain data within the limits of size and depth
    """
    if not isinstance(document, Mapping):
        problem = Problem(path="", message=f"a {type(document).__name__} is not a map of fields")
        raise ConfigError([problem], source=source)
    shape = check_shape(document)
    if shape:
        raise ConfigError(shape, source=source)
    result = Normalized(document=dict(document))
    _drop_foreign(result)
    for (section, old), new in SYNONYMS.items():
        _rename(result, section, old, new)
    _join_workspace(result.document)
    _edit(result.document, "resources", _without_empty_pool)
    _drop_empty(result, "task_container_defaults")
    _edit(result.document, "checkpoint_storage", _without_container_path(result))
    _edit(result.document, "entrypoint", _without_launcher(result))
    _edit(result.document, "environment", lambda part: _edit(part, "variables", _named(result)))
    _edit(result.document, "environment", lambda part: _edit(part, "image", _images(result)))
    _edit(result.document, "environment", lambda part: _edit(part, "registry_auth", _registry(result)))
    for name, edit in (("log_policies", _policies), ("labels", _unique)):
        _edit(result.document, name, edit)
    return result


def _edit(part: Any, key: str, change: Callable[[Any], Any]) -> Any:
    """Change a field in place, also below an override, and return the part."""
    if isinstance(part, dict) and key in part and part[key] is not RESET:
        value = part[key]
        if isinstance(value, Override):
            part[key] = Override(change(_shallow(value.value)))
        else:
            part[key] = change(_shallow(value))
    return part


def _shallow(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def _drop_foreign(result: Normalized) -> None:
    for section, names in FOREIGN.items():

        def drop(part: Any, section: str = section, names: frozenset[str] = names) -> Any:
            for name in sorted(names & part.keys()) if isinstance(part, dict) else ():
                del part[name]
                path = f"{section}.{name}" if section else name
                result.warnings.append(_foreign(path))
            return part

        if section:
            _edit(result.document, section, drop)
        else:
            drop(result.document)


def _rename(result: Normalized, section: str, old: str, new: tuple[str, ...]) -> None:
    def move(part: Any) -> Any:
        if not isinstance(part, dict) or old not in part:
            return part
        value = part.pop(old)
        target = part if len(new) == 2 else result.document
        if target.get(new[-1]) is not None and value is not None:
            message = f"given together with its synonym {section}.{old}; give one of them"
            result.problems.append(Problem(path=".".join(new), message=message))
        elif value is not None:
            target[new[-1]] = value
        return part

    _edit(result.document, section, move)


def _without_container_path(result: Normalized) -> Callable[[Any], Any]:
    """Return a function that drops the path of a shared file system in Determined's containers.

    All hosts here mount it at one path.
    """

    def drop(storage: Any) -> Any:
        if isinstance(storage, dict) and storage.get("type") == "shared_fs" and "container_path" in storage:
            del storage["container_path"]
            result.warnings.append(_foreign("checkpoint_storage.container_path"))
        return storage

    return drop


def _without_launcher(result: Normalized) -> Callable[[Any], Any]:
    def translate(entrypoint: Any) -> Any:
        ours, found = without_launcher(entrypoint)
        result.warnings.extend(found)
        return ours

    return translate


def _images(result: Normalized) -> Callable[[Any], Any]:
    """Return a function that renames Determined's kinds of devices in a map of images."""

    def rename(images: Any) -> Any:
        for old, new in DEVICES.items() if isinstance(images, dict) else ():
            if old in images and images.get(new) is not None:
                message = f"given together with its synonym environment.image.{old}; give one of them"
                result.problems.append(Problem(path=f"environment.image.{new}", message=message))
            elif old in images:
                images[new] = images.pop(old)
        return images

    return rename


def _registry(result: Normalized) -> Callable[[Any], Any]:
    """Return a function that translates credentials of a registry, which are absent if they are empty."""

    def translate(section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        for name in sorted(_OF_REGISTRY & section.keys()):
            if section.pop(name):
                result.warnings.append(f"{_foreign(f'environment.registry_auth.{name}')}. Give username and password")
        address = section.pop("serveraddress", None)
        if address and section.get("server"):
            message = "given together with its synonym environment.registry_auth.serveraddress; give one of them"
            result.problems.append(Problem(path="environment.registry_auth.server", message=message))
        elif address:
            section["server"] = address
        return section or None

    return translate


def _join_workspace(document: ConfigDocument) -> None:
    """Put Determined's workspace before the project: names of its projects are unique within a workspace."""
    # Determined's stored configurations may have empty names.
    if document.get("project") == "":
        del document["project"]
    workspace = document.pop("workspace", None)
    if workspace in (None, "") or isinstance(workspace, Override) or workspace is RESET:
        return
    project = document.get("project")
    document["project"] = f"{workspace}/{project}" if isinstance(project, str) else project or workspace


def _without_empty_pool(resources: Any) -> Any:
    """Drop an empty name of a pool, which is Determined's default."""
    if isinstance(resources, dict) and resources.get("pool") == "":
        del resources["pool"]
    return resources


def _foreign(path: str) -> str:
    return f"{path}: a field of Determined without a counterpart here; it has no effect"


def _drop_empty(result: Normalized, name: str) -> None:
    if result.document.get(name) == {}:
        del result.document[name]


def _named(result: Normalized) -> Callable[[Any], Any]:
    """Return a function that converts a list of ``K=V`` to a map. Messages never contain the values."""

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        named: dict[str, str] = {}
        for index, item in enumerate(value):
            key, equals, text = item.partition("=") if isinstance(item, str) else ("", "", "")
            path = f"environment.variables.{index}"
            if not equals:
                result.problems.append(Problem(path=path, message="the entry is not a text of the form NAME=value"))
            elif key in named:
                result.problems.append(Problem(path=path, message=f"{shown(key)} is given twice"))
            else:
                named[key] = text
        return named

    return convert


def _policies(value: Any) -> Any:
    return [_policy(item) for item in value] if isinstance(value, list) else value


def _policy(item: Any) -> Any:
    """Return a policy whose action is a plain name of this project, also when Determined's form was given."""
    if not isinstance(item, Mapping) or "action" not in item:
        return item
    action = item["action"]
    if isinstance(action, Mapping) and set(action) == {"type"}:
        action = action["type"]
    if isinstance(action, str):
        action = ACTIONS.get(action, action)
    return {**item, "action": action}


def _unique(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        return value
    return list(dict.fromkeys(value))
