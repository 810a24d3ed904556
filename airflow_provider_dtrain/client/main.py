"""The console script ``dtrain``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from airflow_provider_dtrain import __version__
from airflow_provider_dtrain.client.definition import ALLOW_HTTP, CA, FUNCTIONS, SERVER, commands, with_own_commands
from airflow_provider_dtrain.terminal.arguments import Command, Group
from airflow_provider_dtrain.terminal.output import run, using_commands
from airflow_provider_dtrain.terminal.safe_streams import prepare_streams

_DESCRIPTION = "Distributed PyTorch training on an Airflow server. To begin: dtrain login --server URL"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    :param argv: arguments; None = those of the process
    """
    prepare_streams()
    args = parser().parse_args(argv)
    with using_commands(with_own_commands()):
        return run(FUNCTIONS[args.target], args)


class _Parser(argparse.ArgumentParser):
    """Parser whose errors and help texts name commands as this program has them."""

    def error(self, message: str) -> NoReturn:
        super().error(with_own_commands()(message))

    def format_help(self) -> str:
        return with_own_commands()(super().format_help())


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    found = _Parser(prog="dtrain", description=_DESCRIPTION)
    found.add_argument("--version", action="version", version=f"airflow-provider-dtrain {__version__}")
    below = found.add_subparsers(metavar="COMMAND", required=True)
    for one in commands():
        added = below.add_parser(one.name, help=one.help, description=one.help)
        if isinstance(one, Group):
            verbs = added.add_subparsers(metavar="COMMAND", required=True)
            for command in one.commands:
                _add(verbs.add_parser(command.name, help=command.help, description=command.help), command)
        else:
            _add(added, one)
    return found


def _add(to: argparse.ArgumentParser, command: Command) -> None:
    to.formatter_class = argparse.RawTextHelpFormatter
    # Nothing is logged here, so there is nothing that --verbose could show.
    given: Any = [arg for arg in command.args if "--verbose" not in arg.flags]
    for arg in (*given, SERVER, CA, ALLOW_HTTP):
        arg.add_to_parser(to)
    to.set_defaults(target=command.target)


def script() -> None:
    """Run the console script."""
    sys.exit(main())
