"""Commands that act on several experiments at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.errors import ConflictError
from airflow_provider_dtrain.terminal.output import confirm, hint, note, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.bulk import BulkAction, BulkResult
    from airflow_provider_dtrain.terminal.control import Control
    from airflow_provider_dtrain.terminal.source import Source


def _command(action: BulkAction, after: str = "") -> Callable[[Namespace, Source, Control], None]:
    """Return the command of an action.

    :param after: command that shows the effect
    """

    def run(args: Namespace, source: Source, control: Control) -> None:
        _finish(args, control.act(action, args.ids, project=getattr(args, "project", None)), after)

    return run


def delete_experiments(args: Namespace, source: Source, control: Control) -> None:
    """Delete experiments after a confirmation that names what is removed."""
    planned = control.act("delete", args.ids, dry_run=True)
    if args.dry_run or not planned.done_count:
        _finish(args, planned, "")
        return
    for one in planned.outcomes:
        note(f"{one.experiment_id} '{one.name}': {'stays. ' if one.is_refused else ''}{one.message}")
    if not confirm(f"{planned.message} This cannot be undone. Delete?", yes=args.yes):
        note("Nothing was changed.")
        return
    refused = {one.experiment_id for one in planned.outcomes if one.is_refused}
    _finish(args, control.act("delete", [one for one in args.ids if one not in refused]), "")


def _finish(args: Namespace, found: BulkResult, after: str) -> None:
    """Show the outcomes.

    :raises ConflictError: all experiments were refused
    """
    if not found.done_count:
        raise ConflictError("\n".join(one.message for one in found.outcomes))
    rows: list[dict[str, Any]] = [
        {"id": one.experiment_id, "name": one.name, "refused": one.is_refused, "message": one.message}
        for one in found.outcomes
    ]
    show(args, rows)
    note(found.message)
    if after:
        hint(after)


archive_experiments = _command("archive", "airflow dtrain experiments list --archived only")
unarchive_experiments = _command("unarchive", "airflow dtrain experiments list")
move_experiments = _command("move", "airflow dtrain experiments list")
