"""Overrides: values by path with which a DAG run replaces those of a configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.core.config.yaml_reader import plain_scalar
from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.errors import ConfigError, Problem


def with_overrides(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> ConfigDocument:
    """Return a copy of a configuration in which the values at some paths are replaced.

    A string is read as a YAML scalar: ``"8"`` is a number and ``"null"`` is None. Missing maps of a path are created.

    :param document: configuration as the user wrote it
    :param overrides: path with dots, e.g. ``hyperparameters.lr`` -> value
    :raises ConfigError: a path leads through a value that is not a map; names all problems at once
    """
    result = copy.deepcopy(dict(document))
    problems = []
    for path, value in overrides.items():
        *parents, last = str(path).split(".")
        place: Any = result
        for name in parents:
            place = place.setdefault(name, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            problems.append(Problem(path=str(path), message="cannot be overridden: a part of its path is not a map"))
            continue
        place[last] = plain_scalar(value) if isinstance(value, str) else copy.deepcopy(value)
    if problems:
        raise ConfigError(problems, source="overrides")
    return result
