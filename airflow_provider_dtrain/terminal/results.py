"""``trials results``: the first rows of a batch inference, and its bad rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.terminal.output import is_table, note, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.terminal.source import Source


def results(args: Namespace, source: Source) -> None:
    """Show the first rows of the results of a batch inference, and rows that could not be computed."""
    found = source.results(args.trial_id)
    names = [column.name for column in found.columns]
    empty = f"Trial {args.trial_id} has reported no results: none of its shards is done, or all were done before it."
    show(args, [dict(zip(names, row, strict=True)) for row in found.rows], empty=empty)
    if found.rows and is_table(args):
        note(f"The first {len(found.rows)} rows of shard {found.shard} ({found.label}).")
        if found.columns_in_all > len(names):
            note(f"{found.columns_in_all - len(names)} more columns are in the results.")
    if is_table(args):
        for row in found.bad_rows:
            note(f"Bad row {row.row} of shard {row.shard}, {row.name}: {row.error}")
