"""``airflow dtrain queue set``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.arguments import GANG_PREFIX as GANG
from airflow_provider_dtrain.terminal.output import hint, note, show_one

if TYPE_CHECKING:
    from argparse import Namespace


@command
def set_task(args: Namespace) -> None:
    """Change the priority of a waiting or running gang, for instance of a sensor."""
    from airflow_provider_dtrain.cli._in_process import control_of
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    if args.priority is None:
        raise UsageError("Nothing to set. Give --priority.")
    note(control_of(DtrainHook()).set_gang_priority(args.gang, args.priority))
    show_one(args, {"allocation_id": args.gang, "priority": args.priority})
    hint(f"airflow dtrain explain {GANG}{args.gang}")
