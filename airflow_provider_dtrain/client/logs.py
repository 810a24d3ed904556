"""``dtrain trials logs``: the part of logs that the server has, and new output as it comes."""

from __future__ import annotations

import base64
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from airflow_provider_dtrain.client.answers import Nothing
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.operations import ServerOperations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.logs.query import LogQuery
from airflow_provider_dtrain.errors import DtrainError, NotNowError, ServerError, UserError
from airflow_provider_dtrain.resources.logs import LogMatches, LogPiece
from airflow_provider_dtrain.terminal.log_search import LogSearch, query_of
from airflow_provider_dtrain.terminal.log_text import LogWriter
from airflow_provider_dtrain.terminal.output import NOT_NOW, note

#: Pauses between two requests: after new output, and at most without any.
POLL_S, IDLE_POLL_S = 1.0, 5.0


def logs(args: Namespace) -> int:
    """Print the log of one rank or of all ranks. Exit 3 if there is none yet."""
    if args.tail and (args.start is not None or args.end is not None):
        raise UserError(
            "--tail counts from the end of the log, --from and --to from its start: they cannot be combined."
        )
    query = query_of(args)
    session = session_of(args)
    patience = Patience(session, note)
    if query is not None:
        return LogSearch(_ServerLogs(session, patience, args.trial_id), query, args).run()
    operations = ServerOperations(session, patience)
    is_terminal = sys.stdout.isatty()
    reader = LogReader(ServerSource(session), args, patience=patience, operations=operations, end_first=is_terminal)
    return reader.follow() if args.follow else reader.show()


class _ServerLogs:
    """Logs of a trial in the store of a server, into which an operation copies them."""

    def __init__(self, session: Session, patience: Patience, trial_id: int) -> None:
        self.source = ServerSource(session)
        self.operations = ServerOperations(session, patience)
        self.patience = patience
        self.trial_id = trial_id

    def copy(self, attempt: int | None, rank: int) -> str | None:
        """Copy what the store does not have yet of a log from its host, and return why that failed."""
        known = self.patience.of(lambda: self.source.log_lines(self.trial_id, attempt=attempt, rank=rank))
        if known.is_complete:
            return None
        body = {"trial_id": self.trial_id, "rank": rank, "attempt": known.attempt, "keep": True}
        try:
            self.operations.run(Nothing, "log", body)
        except (DtrainError, NotNowError) as error:
            return str(error)
        return None

    def matches(self, query: LogQuery, *, attempt: int | None, rank: int, first: int, most: int) -> LogMatches:
        """Return lines that a query describes, from the line ``first`` on."""
        find = partial(
            self.source.log_matches, self.trial_id, query, attempt=attempt, rank=rank, first=first, most=most
        )
        return self.patience.of(find)


class LogReader:
    """Reader that prints logs from its offsets on, attempt after attempt.

    :param operations: requests what only a host has
    :param end_first: print the end that the server has of a log that has ended, before the host has sent the whole log.
        A reader at a terminal needs the end first, and a file must not have it twice.
    :param sleep: waits for new output
    """

    def __init__(
        self,
        source: ServerSource,
        args: Namespace,
        *,
        patience: Patience,
        operations: ServerOperations,
        end_first: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.source = source
        self.args = args
        self.patience = patience
        self.operations = operations
        self.end_first = end_first and not args.follow and not args.tail and args.start is None and args.end is None
        self.sleep = sleep
        self._begin(args.attempt)

    def _begin(self, attempt: int | None) -> None:
        self.attempt = attempt
        #: Rank -> offset of the next byte, and what prints its log.
        self.offsets: dict[int, int] = {}
        self._writers: dict[int, LogWriter] = {}
        #: Ranks whose log has no known place in the store, and was printed.
        self._whole: set[int] = set()
        self.has_printed = False

    def show(self) -> int:
        """Print what the server has, and return the exit code."""
        piece = self._round()
        self._flush()
        if not piece.is_started:
            note(f"Attempt {piece.attempt} waits for its slots: {piece.reason or 'no reason known yet'}")
            return NOT_NOW
        if not self.has_printed:
            note(f"The server has no output in this part of the log. All of it, on the machine of Airflow: {self._all}")
        return 0

    def follow(self) -> int:
        """Print new output until the trial, or the requested attempt, ends."""
        pause_s = POLL_S
        while True:
            before = dict(self.offsets)
            piece = self.patience.of(self._round)
            if not piece.is_over:
                pause_s = POLL_S if self.offsets != before else min(pause_s * 1.5, IDLE_POLL_S)
                self.sleep(pause_s)
                continue
            self._flush()
            if self.args.attempt is not None or piece.latest == piece.attempt:
                note(f"Attempt {piece.attempt} of trial {self.args.trial_id} has ended: {piece.state}.")
                return 0
            self._begin(piece.attempt + 1)
            note(f"Attempt {piece.attempt + 1} begins.")

    @property
    def _all(self) -> str:
        return f"airflow dtrain trials logs {self.args.trial_id}"

    def _round(self) -> LogPiece:
        """Print new output of each rank, and return the state of the attempt as it was before."""
        first = self._one(0 if self.args.all else self.args.rank)
        # A later attempt begins only after the end of this one.
        self.attempt = first.attempt
        for rank in range(1, first.ranks) if self.args.all else ():
            self._one(rank)
        return first

    def _one(self, rank: int) -> LogPiece:
        known = self.offsets.get(rank, self.args.start or 0)
        piece = self.source.log(self.args.trial_id, rank=rank, attempt=self.attempt, offset=known)
        try:
            data = base64.b64decode(piece.content, validate=True)
        except ValueError:
            raise ServerError("The server sent a log that is none.") from None
        is_shown = self.end_first and piece.is_over and piece.start != known and self._show_end(rank, data)
        if piece.start is None:
            # Only the end is known. It is complete once the rank has ended.
            if rank in self._whole or (self.args.follow and not piece.is_over):
                return piece
            self._whole.add(rank)
            end = self.args.end
            words = "Only the end of it is known here."
            if self.args.tail or not (self._fetched(rank, piece.attempt, known, end, words) or is_shown):
                self._print(rank, self._cut(data))
            return piece
        if piece.start > known and not self._gap(rank, piece.attempt, known, piece.start) and is_shown:
            self.offsets[rank] = piece.start + len(data)
            return piece
        end = piece.start + len(data)
        if self.args.tail and rank not in self.offsets:
            data = self._cut(data)
        if self.args.end is not None:
            data = data[: max(self.args.end - piece.start, 0)]
        self._print(rank, data)
        # Only now: what was not printed is requested again after an interruption.
        self.offsets[rank] = end
        return piece

    def _cut(self, data: bytes) -> bytes:
        return data[-1024 * self.args.tail :] if self.args.tail else data

    def _show_end(self, rank: int, data: bytes) -> bool:
        """Print the end of a log that has ended, and return whether there is one."""
        if not data:
            return False
        note(f"The end of the log of rank {rank}, as the server has it:")
        self._print(rank, data)
        self._writers.pop(rank).end()
        note(f"The whole log of rank {rank}, as soon as its host has sent it:")
        return True

    def _gap(self, rank: int, attempt: int, start: int, end: int) -> bool:
        """Print bytes that only the host has, and return whether it sent them."""
        if self.args.tail and rank not in self.offsets:
            return False
        end = end if self.args.end is None else min(end, self.args.end)
        if start < end:
            words = f"Bytes {start} to {end} ({byte_size(end - start)}) of the log of rank {rank} are on its host only."
            return self._fetched(rank, attempt, start, end, words)
        return False

    def _fetched(self, rank: int, attempt: int, start: int, end: int | None, words: str) -> bool:
        """Print bytes of a log that only its host has, and return whether the host sent them.

        :param words: said if it did not
        """
        body = {"trial_id": self.args.trial_id, "rank": rank, "attempt": attempt, "start": start, "end": end}
        try:
            self.operations.run(Nothing, "log", body, lambda data: self._print(rank, data))
        except (DtrainError, NotNowError) as error:
            until = "" if end is None else f" --to {end}"
            command = f"{self._all} --rank {rank} --from {start}{until}"
            note(f"{words} {error}\nOn the machine of Airflow: {command}")
            return False
        return True

    def _print(self, rank: int, data: bytes) -> None:
        self.has_printed = self.has_printed or bool(data)
        if rank not in self._writers:
            self._writers[rank] = LogWriter(f"[rank {rank}] " if self.args.all else "")
        self._writers[rank].write(data)

    def _flush(self) -> None:
        """Print lines without an end."""
        for rank in sorted(self._writers):
            self._writers[rank].end()
        self._writers.clear()
