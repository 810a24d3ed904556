"""Tables as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi.responses import Response

#: Most rows of one file.
ROWS_MOST = 100_000
#: A spreadsheet takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_answer(filename: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Response:
    """Return a table that a browser saves as a file. Texts that look like formulas begin with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    headers = {
        "Content-Disposition": f'attachment; filename="{filename}"',
        "Cache-Control": "private, no-store",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Response(text.getvalue().encode(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds")
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return f"'{text}" if text.startswith(_FORMULA) else text
