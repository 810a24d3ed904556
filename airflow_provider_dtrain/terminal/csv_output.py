"""Comma-separated values of commands, which spreadsheets open."""

from __future__ import annotations

import csv
import sys
from typing import Any

from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.terminal.output import cell


def show_csv(rows: list[dict[str, Any]], columns: list[str]) -> None:
    """Print rows as comma-separated values, with the names of the columns first."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if columns:
        writer.writerow([_csv_cell(column) for column in columns])
    for row in rows:
        writer.writerow(["" if row.get(name) is None else _csv_cell(row.get(name)) for name in columns])


def _csv_cell(value: Any) -> Any:
    ready = plain_data(value)
    if not isinstance(ready, str):
        return ready if isinstance(ready, int | float) else cell(ready)
    # A spreadsheet would run such a cell as a formula, and ranks choose the texts that they report.
    return f"'{ready}" if ready.lstrip().startswith(("=", "+", "@")) else ready
