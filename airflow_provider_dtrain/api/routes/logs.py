"""Logs of ranks: lines by their number or time, searches, and the whole text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import AwareDatetime

from airflow_provider_dtrain.api.bounds import OFFSET_MOST, AttemptNumber, Number, Offset
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.streams import download
from airflow_provider_dtrain.core.logs.query import QUERY_CHARS, LogQuery
from airflow_provider_dtrain.core.logs.text import LogLevel
from airflow_provider_dtrain.engine.logs.search import search_log
from airflow_provider_dtrain.resources.logs import LogLines, LogMatches
from airflow_provider_dtrain.store.queries.log_lines import log_lines, log_text

router = APIRouter(route_class=StoreRoute, tags=["trial"], responses=ERRORS)

#: Most lines of one answer.
LINES_MOST = 1000
Lines = Annotated[int, Query(ge=1, le=LINES_MOST)]
Text = Annotated[str, Query(max_length=QUERY_CHARS)]
When = Annotated[AwareDatetime | None, Query(description="ISO 8601 with a time zone")]


@router.get("/trials/{trial_id}/log/lines", **guarded(Rule.READ_LOGS))
def lines(
    call: CallDep,
    trial_id: int,
    rank: Number = 0,
    attempt: AttemptNumber = None,
    first: Annotated[
        int,
        Query(ge=-OFFSET_MOST, le=OFFSET_MOST, description="number of the first line; negative: counted from the end"),
    ] = 0,
    count: Lines = 200,
    at: When = None,
    tail: Annotated[bool, Query(description="also lines behind these, from the stored end of the log")] = False,
) -> LogLines:
    """Return lines of the copy of a rank's log. ``POST /operations/log`` with ``keep`` copies what is missing."""
    return log_lines(
        call.store, call.access, trial_id, attempt=attempt, rank=rank, first=first, most=count, at=at, with_tail=tail
    )


@router.get("/trials/{trial_id}/log/search", **guarded(Rule.READ_LOGS))
def search(
    call: CallDep,
    trial_id: int,
    rank: Number = 0,
    attempt: AttemptNumber = None,
    text: Text = "",
    regex: Annotated[bool, Query(description="the text is a regular expression of Python")] = False,
    level: Annotated[LogLevel | None, Query(description="this level and more important ones")] = None,
    since: When = None,
    until: When = None,
    first: Annotated[Offset, Query(description="number of the line at which the search begins")] = 0,
    count: Lines = 200,
) -> LogMatches:
    """Return lines of a rank's log with a text, a level, or a time. A long search ends with the line to continue at."""
    query = LogQuery(text=text, is_regex=regex, level=level, since=since, until=until)
    return search_log(call.store, call.access, trial_id, query, attempt=attempt, rank=rank, first=first, most=count)


@router.get("/trials/{trial_id}/log/text", response_model=None, **guarded(Rule.READ_LOGS))
async def text(call: CallDep, trial_id: int, rank: Number = 0, attempt: AttemptNumber = None) -> Response:
    """Send the bytes of a rank's log as far as the store has them, as a file."""

    def prepared() -> tuple[str, Iterator[bytes]]:
        return log_text(call.store, call.access, trial_id, attempt=attempt, rank=rank)

    name, pieces = await call.run(prepared, READ_DEADLINE_S)
    return await download(call, pieces, name)
