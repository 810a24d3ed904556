"""``airflow dtrain queue set``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.arguments import GANG_PREFIX as GANG
from airflow_provider_dtrain.terminal.output import hint, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace


@command
def set_task(args: Namespace) -> None:
    """Change the priority of a waiting or running gang, for instance of a sensor."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    if args.priority is None:
        raise UsageError("Nothing to set. Give --priority.")
    DtrainHook().store.control.set_gang_priority(args.gang, args.priority, user())
    show_one(args, {"gang": args.gang, "priority": args.priority})
    hint(f"airflow dtrain explain {GANG}{args.gang}")
