"""Effective configurations as pages show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.api.models.configs import ConfigLine, ShownConfig
from airflow_provider_dtrain.core.config import mask
from airflow_provider_dtrain.core.config.positions import rendered
from airflow_provider_dtrain.store.records.trials import Config


def shown_config(stored: Config) -> ShownConfig:
    """Return a stored configuration line by line, secrets masked."""
    lines = config_lines(mask(stored.document), stored.origins)
    return ShownConfig(
        config_id=stored.config_id,
        yaml="\n".join(line.text for line in lines) + "\n",
        template=stored.template,
        template_version=stored.template_version,
        lines=lines,
    )


def config_lines(document: Mapping[str, Any], origins: Mapping[str, str]) -> list[ConfigLine]:
    """Return an effective document line by line, each with its origin.

    :param document: secrets masked
    """
    return [ConfigLine(text=line.text, path=line.path, origin=line.origin) for line in rendered(document, origins)]
