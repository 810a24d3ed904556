"""The commands in the form that Airflow's parser expects."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from airflow.cli.cli_config import ActionCommand, GroupCommand, lazy_load_command

from airflow_provider_dtrain.terminal.arguments import Command, Group
from airflow_provider_dtrain.terminal.definition import commands


def get_dtrain_commands() -> list[GroupCommand]:
    """Return the command group ``dtrain`` for Airflow's CLI."""
    return [
        GroupCommand(
            name="dtrain",
            help="Distributed PyTorch training: hosts, pools, queue, experiments, trials",
            subcommands=tuple(_group(one) if isinstance(one, Group) else _action(one) for one in commands()),
        )
    ]


def _group(group: Group) -> GroupCommand:
    return GroupCommand(name=group.name, help=group.help, subcommands=tuple(_action(one) for one in group.commands))


def _action(command: Command) -> ActionCommand:
    if command.port is None:
        function = lazy_load_command(f"airflow_provider_dtrain.cli.{command.target}")
    else:
        function = _in_process(command)
    # Airflow's parser uses the attributes of an argument and its method, never its class.
    args: Any = command.args
    return ActionCommand(name=command.name, help=command.help, func=function, args=args)


def _in_process(command: Command) -> Callable[[Namespace], None]:
    def run(args: Namespace) -> None:
        from airflow_provider_dtrain.cli import _in_process

        _in_process.run(command, args)

    return run
