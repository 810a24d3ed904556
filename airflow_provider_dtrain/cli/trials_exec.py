"""``airflow dtrain trials exec``: a command in the environment of a running rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.terminal.output import user
from airflow_provider_dtrain.terminal.ranks import show_command

if TYPE_CHECKING:
    from argparse import Namespace


@command
def exec_in_rank(args: Namespace) -> int:
    """Run a command in the environment of a rank, and exit with its code. Exit 3 if the rank does not run."""
    from airflow_provider_dtrain.engine.operations import ranks
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    found = ranks.exec_in_rank(DtrainHook(), args.trial_id, args.rank, args.argv, args.timeout, by=user())
    return show_command(found, args.timeout)
