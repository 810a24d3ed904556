"""Search in logs of ranks: the part of ``trials logs`` that both programs share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_dtrain.core.logs.query import LogQuery
from airflow_provider_dtrain.core.logs.text import LogLevel
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.terminal.output import note

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.logs import LogLine, LogMatches

#: Lines of one answer, and pause between two searches in a log that grows.
LINES: Final = 1000
POLL_S: Final = 3.0


class SearchedLogs(Protocol):
    """Logs of a trial, as a program reaches them."""

    def copy(self, attempt: int | None, rank: int) -> str | None:
        """Copy what the store does not have yet of a log from its host, and return why that failed."""

    def matches(self, query: LogQuery, *, attempt: int | None, rank: int, first: int, most: int) -> LogMatches:
        """Return lines that a query describes, from the line ``first`` on."""


def query_of(args: Namespace) -> LogQuery | None:
    """Return the search of a command, None if it prints every line.

    :raises UserError: options contradict each other
    """
    query = LogQuery(
        text=args.regex or args.grep or "",
        is_regex=bool(args.regex),
        level=LogLevel(args.level) if args.level else None,
        since=args.since,
        until=args.until,
    )
    if query.is_empty:
        return None
    if args.grep and args.regex:
        raise UserError("--grep and --regex cannot be combined.")
    if args.tail or args.start is not None or args.end is not None:
        raise UserError(
            "--grep, --regex, --level, --since and --until search the whole log: they cannot be combined with --tail, "
            "--from and --to."
        )
    return query


class LogSearch:
    """Search that prints the lines it finds.

    :param sleep: waits for new lines
    """

    def __init__(
        self, logs: SearchedLogs, query: LogQuery, args: Namespace, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.logs = logs
        self.query = query
        self.args = args
        self.sleep = sleep
        #: Attempt that is searched; None: the latest one.
        self._attempt: int | None = args.attempt
        #: Rank -> number of the first line of the attempt that was not searched.
        self._next: dict[int, int] = {}
        self._problems: set[str] = set()
        self._printed = 0

    def run(self) -> int:
        """Print what is found, and what follows if the command follows the log. Return the exit code."""
        while True:
            first = self._of_rank(0 if self.args.all else self.args.rank)
            # Later rounds stay with it until it is over, even if another one has begun.
            self._attempt = first.attempt
            for rank in range(1, first.ranks) if self.args.all else ():
                self._of_rank(rank)
            is_last = self.args.attempt is not None or first.latest == first.attempt
            if not self.args.follow or (first.is_over and is_last):
                break
            if first.is_over:
                self._attempt, self._next = first.attempt + 1, {}
                note(f"Attempt {self._attempt} begins.")
                continue
            self.sleep(POLL_S)
        if not self._printed:
            note("No line of this part of the log matches.")
        return 0

    def _of_rank(self, rank: int) -> LogMatches:
        if problem := self.logs.copy(self._attempt, rank):
            self._note(f"The log of rank {rank} is searched as far as the store has it. {problem}")
        first = self._next.get(rank, 0)
        while True:
            found = self.logs.matches(self.query, attempt=self._attempt, rank=rank, first=first, most=LINES)
            for row in found.rows:
                # Lines without a number are those of the stored end, which is printed once.
                if row.number is not None or found.is_over or not self.args.follow:
                    self._print(rank, row)
            if found.problem is not None:
                self._note(found.problem)
            numbers = [row.number + 1 for row in found.rows if row.number is not None]
            first = max([first, found.total, *numbers]) if found.next is None else found.next
            self._next[rank] = first
            if found.next is None:
                return found

    def _print(self, rank: int, row: LogLine) -> None:
        self._printed += 1
        of = f"[rank {rank}] " if self.args.all else ""
        number = "" if row.number is None else f"{row.number + 1}:"
        at = "" if row.at is None else f"{row.at.astimezone(UTC):%H:%M:%SZ}:"
        more = f"... ({row.chars} characters)" if row.chars > len(row.text) else ""
        sys.stdout.write(f"{of}{number}{at} {row.text}{more}\n" if number or at else f"{of}{row.text}{more}\n")
        sys.stdout.flush()

    def _note(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            note(problem)
