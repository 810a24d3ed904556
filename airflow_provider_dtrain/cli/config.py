"""``airflow dtrain configs``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.terminal.output import dump, hint, is_table, note, show

if TYPE_CHECKING:
    from argparse import Namespace


@command
def render(args: Namespace) -> None:
    """Print the effective configuration, secrets masked."""
    from airflow_provider_dtrain.cli._inputs import assemble, read
    from airflow_provider_dtrain.core.config import mask, unsupported
    from airflow_provider_dtrain.core.config.leaves import leaves
    from airflow_provider_dtrain.core.config.merge import origin_of
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    effective = assemble(DtrainHook(), read(args.config, what="configuration"), args.template).effective
    for warning in effective.warnings:
        note(f"Warning: {warning}")
    for problem in unsupported(effective.config, effective.origins):
        note(f"Warning: {problem}")
    document = mask(effective.document)
    if args.origins:
        rows = [
            {"path": path, "value": value, "origin": origin_of(path, effective.origins)}
            for path, value in leaves(document)
        ]
        show(args, [{**row, "value": _written(row["value"])} for row in rows] if is_table(args) else rows)
    else:
        dump("yaml" if is_table(args) else args.output, document)
    hint("airflow dtrain explain " + args.config)


def _written(value: Any) -> str:
    """Return a value as it is written in a configuration, so that it can be copied back."""
    is_plain = isinstance(value, str) and _is_plain(value)
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False, default=str)


def _is_plain(text: str) -> bool:
    """Return whether YAML reads a text without quotes as this text."""
    from airflow_provider_dtrain.core.config.yaml_reader import load_yaml

    try:
        return load_yaml(f"value: {text}") == {"value": text}
    except ConfigError:
        return False
