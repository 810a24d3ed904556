"""``airflow dtrain configs``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import ConfigError, UnsupportedFieldError, UsageError
from airflow_provider_dtrain.terminal.output import dump, hint, is_table, note, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.cli._inputs import InputDocument
    from airflow_provider_dtrain.core.config import ExperimentConfig


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


@command
def validate(args: Namespace) -> None:
    """Validate a configuration or template and list all problems."""
    if args.config is None and not args.template:
        raise UsageError(
            "No file was given. Run: airflow dtrain configs validate FILE, with --template if it is a template."
        )
    if args.config is None or args.template is None:
        _validate_template(args, args.config or args.template)
    else:
        _validate_config(args, args.config, args.template or None)


def _validate_template(args: Namespace, path: str) -> None:
    from airflow_provider_dtrain.cli._inputs import check_template, read

    source = read(path, what="template")
    check_template(source)
    show_one(args, {"document": source.name, "kind": "template", "valid": True})
    hint(f"airflow dtrain templates set NAME {path}")


def _validate_config(args: Namespace, path: str, template: str | None) -> None:
    from airflow_provider_dtrain.cli._inputs import assemble, read
    from airflow_provider_dtrain.core.config import unsupported
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    source = read(path, what="configuration")
    found = assemble(DtrainHook(), source, template)
    effective = found.effective
    for warning in effective.warnings:
        note(f"Warning: {warning}")
    problems = unsupported(effective.config, effective.origins)
    if problems:
        raise UnsupportedFieldError(problems, source=source.name)
    _check_environment(effective.config, source)
    show_one(args, {"document": source.name, "kind": "configuration", "valid": True, "pool": found.pool})
    hint(f"airflow dtrain explain {path}")


def _check_environment(config: ExperimentConfig, source: InputDocument) -> None:
    """Check the lock file of a configuration, and print what it lacks for a platform like this machine.

    Code that is not beside the configuration is checked when it is sent.
    """
    from airflow_provider_dtrain.core.lock_files.platform import this_platform
    from airflow_provider_dtrain.engine.submission.entry import environment_in

    folder = source.folder / (config.model_dir or ".")
    if config.environment.requirements is None and config.environment.setup is None:
        return
    if not folder.is_dir():
        note(f"Warning: environment: the code is not in {folder}; its lock file was not checked.")
        return
    environment, problems = environment_in(config, folder)
    if problems:
        raise ConfigError(problems, source=source.name)
    if environment is not None:
        for gap in environment.gaps(this_platform(config.environment.python)):
            note(f"Warning: environment.requirements: {gap}")


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
