"""Search in the log of a rank, as far as the store has it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.core.logs.query import (
    QUERY_CHARS,
    LogQuery,
    in_span,
    line_starts,
    may_match,
    with_level,
    with_text,
)
from airflow_provider_dtrain.core.logs.text import lines_of
from airflow_provider_dtrain.engine.logs.expression import ExpressionLateError, ExpressionSearch
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.logs import LogLine, LogMatches
from airflow_provider_dtrain.store.queries.log_lines import KnownLog, LogPart, known_log, part_of, tail_part

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.store import Store

#: Time after which a search returns what it has found, and the line at which the next request continues.
PAUSE_S: Final = 2.0
#: Time after which the process of an expression is killed.
EXPRESSION_S: Final = 5.0
#: Chunks of one transaction.
_CHUNKS: Final = 8
_LATE: Final = (
    f"The expression has not been searched in {EXPRESSION_S:.0f} s. Repetitions inside of repetitions, such as (a+)+, "
    "take very long: remove one of them."
)


def search_log(
    store: Store,
    rights: Rights,
    trial_id: int,
    query: LogQuery,
    *,
    attempt: int | None,
    rank: int,
    first: int,
    most: int,
    clock: Callable[[], float] = time.monotonic,
) -> LogMatches:
    """Return lines of a rank's log that a query describes.

    :param attempt: its number; None = the latest
    :param first: number of the line at which the search begins
    :param most: rows of the answer
    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt or rank
    :raises UserError: the expression is not valid
    """
    _check(query)
    log = known_log(store, rights, trial_id, attempt=attempt, rank=rank)
    until = clock() + PAUSE_S
    rows: list[LogLine] = []
    resume: int | None = None
    problem = None
    with contextlib.ExitStack() as stack:
        indices = _matcher(query, stack)
        try:
            for number, part in enumerate(_parts(store, log, first)):
                is_due = number > 0 and (len(rows) >= most or clock() >= until)
                if is_due and part.first_line is not None:
                    resume = max(first, part.first_line)
                    break
                found = _matches(part, query, indices, first)
                room = most - len(rows)
                if len(found) > room:
                    resume = found[room].number
                    rows += found[:room]
                    break
                rows += found
        except ExpressionLateError:
            problem = _LATE
    return LogMatches(
        attempt=log.view.number,
        rank=rank,
        ranks=log.ranks,
        is_over=log.view.ended_at is not None,
        total=log.total,
        is_complete=log.is_complete,
        rows=rows,
        next=resume,
        problem=problem,
        latest=log.trial.attempts,
    )


def _check(query: LogQuery) -> None:
    if len(query.text) > QUERY_CHARS or "\0" in query.text:
        raise UserError(
            f"A search must have at most {QUERY_CHARS} characters and no NUL, got {len(query.text)} characters."
        )


def _matcher(query: LogQuery, stack: contextlib.ExitStack) -> Callable[[bytes, list[str]], list[int]]:
    """Return a function that returns the indices of the lines with the text of a query."""
    if not (query.is_regex and query.text):
        return lambda _, lines: with_text(lines, query)
    search = stack.enter_context(ExpressionSearch(query.text, EXPRESSION_S))
    return lambda content, _: search.indices(content)


def _parts(store: Store, log: KnownLog, first: int) -> Iterator[LogPart]:
    line = first
    while line < log.total:
        chunks = store.log_copies.chunks(log.view.attempt_id, log.rank, line=line, most=_CHUNKS)
        if not chunks:
            return
        for chunk in chunks:
            yield part_of(chunk)
        line = chunks[-1].first_line + chunks[-1].lines
    tail = tail_part(store, log)
    if tail is not None:
        yield tail


def _matches(
    part: LogPart, query: LogQuery, indices: Callable[[bytes, list[str]], list[int]], first: int
) -> list[LogLine]:
    if not may_match(part.content, query):
        return []
    lines = lines_of(part.content)
    begin, end = 0 if part.first_line is None else max(0, first - part.first_line), len(lines)
    if query.since is not None or query.until is not None:
        span = in_span(query, line_starts(part.content, part.start or 0), part.samples)
        begin, end = max(begin, span.start), min(end, span.stop)
    if begin >= end:
        return []
    among = [index for index in indices(part.content, lines) if begin <= index < end]
    among = with_level(lines, among, query.level)
    return part.rows(lines, among) if among else []
