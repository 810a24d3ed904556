"""Configuration of a batch inference from the arguments of a task or of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Fields that a task may give as one text: the path.
_PATHS = ("inputs", "outputs")


def with_inference(
    config: Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    slots: int | str | None = None,
    host_pool: str | None = None,
    held_slots: int | None = None,
) -> ConfigDocument:
    """Return a configuration with fields of a batch inference that override its own.

    :param config: as written, without ``inference`` or with a part of it
    :param fields: of the section ``inference``; ``inputs`` and ``outputs`` may be paths. None = as in the configuration
    :param slots: number of slots, which overrides ``resources``
    :param host_pool: pool of hosts, which overrides ``resources``
    :param held_slots: slots of the held gang, used if nothing else states a number
    """
    section = dict(_section(config, "inference"))
    for name, value in fields.items():
        if value is not None:
            section[name] = _merged(section.get(name), value) if name in _PATHS else _plain(name, value)
    resources = dict(_section(config, "resources"))
    if slots is not None:
        resources["slots_per_trial"] = whole(slots)
    elif held_slots is not None:
        resources.setdefault("slots_per_trial", held_slots)
    if host_pool:
        resources["pool"] = host_pool
    return {**config, "inference": section, **({"resources": resources} if resources else {})}


def whole(value: int | str) -> int | str:
    """Return a number that a template rendered as a text, or the value itself."""
    text = str(value).strip()
    return int(text) if text.lstrip("-").isdecimal() else value


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        message = "must be a plain map of fields here, because the arguments of the task are set in it"
        raise ConfigError([Problem(path=name, message=message)])
    return found


def _merged(below: Any, value: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        value = {"path": list(value) if isinstance(value, tuple) else value}
    return {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value


def _plain(name: str, value: Any) -> Any:
    if name == "batch_size" and isinstance(value, str):
        return whole(value)
    if name == "weights" and isinstance(value, Mapping) and "trial_id" in value:
        # The rest of a trial's result does not belong into a configuration.
        return {"trial_id": value["trial_id"], "checkpoint": value.get("checkpoint")}
    return value
