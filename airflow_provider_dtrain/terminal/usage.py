"""Output of the use of slots, for both programs."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.terminal.csv_output import show_csv
from airflow_provider_dtrain.terminal.output import is_table, show

if TYPE_CHECKING:
    from airflow_provider_dtrain.resources.usage import Usage
    from airflow_provider_dtrain.terminal.source import Source

#: Days in a table, which fit a terminal. The other formats have all of them.
_SHOWN = 7
#: Name of slot hours that are counted without a name.
_OTHER = "(other)"


def usage(args: Namespace, source: Source) -> None:
    """Show slot hours by day."""
    found = source.usage(by=args.by, days=args.days, pool=args.pool)
    rows, days = _rows(found), found.days
    if args.csv:
        show_csv(rows, ["name", "total", *days])
        return
    if is_table(args):
        rows = [{name: row.get(name) for name in ("name", "total", *days[-_SHOWN:])} for row in rows]
    show(args, rows, empty="No gang has held slots on these days.")


def _rows(found: Usage) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name or _OTHER,
            "total": round(row.total, 2),
            **{day: round(hours, 2) for day, hours in zip(found.days, row.slot_hours, strict=False)},
        }
        for row in found.rows
    ]
