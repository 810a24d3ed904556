"""Configuration file of a program that runs without the control side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError


def read_config(path: str) -> Mapping[str, Any]:
    """Return the configuration in a YAML or JSON file.

    :raises SetupError: the file cannot be read, or holds no mapping
    """
    try:
        document = _parse(path, Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"--config {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise SetupError(f"--config {path} cannot be parsed: {' '.join(str(error).split())}.") from error
    if not isinstance(document, Mapping):
        raise SetupError(f"--config {path} must hold a mapping, got {type(document).__name__}.")
    return document


def _parse(path: str, text: str) -> Any:
    if path.endswith(".json"):
        return json.loads(text)
    try:
        from airflow_provider_dtrain.train.process import yaml12
    except ImportError:
        raise SetupError(f"--config {path} needs PyYAML: pip install pyyaml, or give a .json file.") from None
    document = yaml12.load(text)
    return {} if document is None else document
