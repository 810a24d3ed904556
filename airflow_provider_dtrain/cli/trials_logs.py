"""``airflow dtrain trials logs``: logs of ranks, read from their hosts, or the tail that the store has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.errors import DtrainError, NotFoundError, UserError
from airflow_provider_dtrain.terminal.log_search import LogSearch, query_of
from airflow_provider_dtrain.terminal.log_text import LogWriter
from airflow_provider_dtrain.terminal.output import NOT_NOW, note

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.logs.query import LogQuery
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.logs import LogMatches
    from airflow_provider_dtrain.store.records.trials import AttemptView, RankView

CHUNK_BYTES = 2**20
POLL_S = 1.0


@command
def logs(args: Namespace) -> int:
    """Print the log of one rank or of all ranks. Exit 3 if there is none yet."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    query = query_of(args)
    if query is not None:
        return LogSearch(_StoreLogs(DtrainHook(), args.trial_id), query, args).run()
    reader = _Reader(DtrainHook(), args)
    view = reader.chosen()
    reader.show(view)
    if not args.follow:
        if view.run is None:
            note(_without_run(view))
        elif reader.is_empty:
            note(f"No output in this part of the log. Reported metrics: airflow dtrain trials metrics {args.trial_id}")
        return NOT_NOW if view.run is None else 0
    reader.follow(view)
    return 0


class _StoreLogs:
    """Logs of a trial in the store, into which this process copies them."""

    def __init__(self, hook: DtrainHook, trial_id: int) -> None:
        self.hook = hook
        self.trial_id = trial_id

    def copy(self, attempt: int | None, rank: int) -> str | None:
        """Copy what the store does not have yet of a log from its host, and return why that failed."""
        from airflow_provider_dtrain.engine.operations.log_copy import copy_log
        from airflow_provider_dtrain.engine.operations.rank_log import attempt_of, check_reach, rank_of
        from airflow_provider_dtrain.hooks.secrets import redactor_now

        view = attempt_of(self.hook, self.trial_id, attempt)
        if view.run is None:
            return _without_run(view)
        found = rank_of(self.hook, view, rank)
        copy = self.hook.store.log_copies.get(view.attempt_id, rank)
        if copy is not None and copy.is_complete:
            return None
        try:
            check_reach(self.hook.store, view, rank)
            copy_log(self.hook, view, found, redactor=redactor_now(self.hook.store.configs.get(view.config_id)))
        except DtrainError as error:
            return str(error)
        return None

    def matches(self, query: LogQuery, *, attempt: int | None, rank: int, first: int, most: int) -> LogMatches:
        """Return lines that a query describes, from the line ``first`` on."""
        from airflow_provider_dtrain.cli._store_source import StoreSource

        source = StoreSource(self.hook.store)
        return source.log_matches(self.trial_id, query, attempt=attempt, rank=rank, first=first, most=most)


def _without_run(view: AttemptView) -> str:
    """Return why an attempt has no log."""
    if view.ended_at is None:
        return f"Attempt {view.number} waits for its slots: {view.reason or 'no reason known yet'}"
    cause = str((view.failure or {}).get("message") or "").partition("\n")[0]
    return f"Attempt {view.number} ended before its ranks were started{f': {cause}' if cause else '.'}"


class _Reader:
    """Reader that prints new output of the chosen ranks, attempt after attempt."""

    def __init__(self, hook: DtrainHook, args: Namespace) -> None:
        if args.tail and (args.start is not None or args.end is not None):
            raise UserError(
                "--tail counts from the end of the log, --from and --to from its start: they cannot be combined."
            )
        self.hook = hook
        self.store = hook.store
        self.args = args
        self.tails: dict[tuple[str, int], _Tail] = {}

    @property
    def is_empty(self) -> bool:
        """True when every log was read, and nothing was there to print."""
        return not any(tail.has_printed or tail.failed for tail in self.tails.values())

    def chosen(self) -> AttemptView:
        """Return the requested attempt.

        :raises NotFoundError: the trial has no such attempt
        """
        from airflow_provider_dtrain.engine.operations.rank_log import attempt_of

        return attempt_of(self.hook, self.args.trial_id, self.args.attempt)

    def follow(self, view: AttemptView) -> None:
        """Print new output until the trial, or the requested attempt, ends."""
        while True:
            view = self.store.attempts.get(view.attempt_id)
            self.show(view)
            if view.ended_at is None:
                time.sleep(POLL_S)
                continue
            trial = self.store.trials.get(view.trial_id)
            if self.args.attempt is not None or trial.attempt_id == view.attempt_id:
                note(f"Attempt {view.number} of trial {trial.trial_id} has ended: {view.state}.")
                return
            view = self.store.attempts.get(trial.attempt_id)
            note(f"Attempt {view.number} begins.")

    def show(self, view: AttemptView) -> None:
        """Print all new output. An attempt without a grant has none.

        :raises NotFoundError: the attempt has no such rank
        """
        if view.run is None:
            return
        ranks = self.store.events.ranks(view.attempt_id)
        wanted = ranks if self.args.all else [rank for rank in ranks if rank.rank == self.args.rank]
        if ranks and not wanted:
            raise NotFoundError(f"Attempt {view.number} has no rank {self.args.rank}; it has 0 to {len(ranks) - 1}.")
        for rank in wanted:
            key = view.run, rank.rank
            if key not in self.tails:
                self.tails[key] = _Tail(self.hook, rank, self.args)
            self.tails[key].pump(view, rank)


class _Tail:
    """Log of one rank, from the offset up to which it has been printed."""

    def __init__(self, hook: DtrainHook, rank: RankView, args: Namespace) -> None:
        self.hook = hook
        self.args = args
        self.offset = -1024 * args.tail if args.tail else args.start or 0
        #: Nothing is printed from this byte on.
        self.end: int | None = args.end
        self.writer = LogWriter(f"[rank {rank.rank}] " if args.all else "")
        self.failed = False
        self.has_printed = False

    def pump(self, view: AttemptView, rank: RankView) -> None:
        """Print the log beyond the offset from the host, or the tail in the store if the host does not answer."""
        is_over = view.ended_at is not None
        if self.failed and not self.args.follow:
            return
        try:
            self._read(view, rank)
            self.failed = False
        except DtrainError as error:
            if self.failed and not is_over:
                return
            first = not self.failed
            self.failed = True
            if first:
                note(f"The log of rank {rank.rank} cannot be read from its host: {error}")
            if self.offset <= 0 and (is_over or not self.args.follow):
                note(f"The store has its end, {byte_size(len(rank.log_tail))}:")
                self._print(rank.log_tail.encode())
        if is_over or not self.args.follow:
            self.writer.end()

    def _read(self, view: AttemptView, rank: RankView) -> None:
        from airflow_provider_dtrain.core.redaction import Redactor
        from airflow_provider_dtrain.engine.operations.rank_log import read_log

        # The user of this command can read the file on the host as well.
        raw = Redactor()
        for piece in read_log(self.hook, view, rank, self.offset, self.end, redactor=raw, chunk_bytes=CHUNK_BYTES):
            self._print(piece.mark)
            self._print(piece.data)
            self.offset = piece.start + len(piece.data)

    def _print(self, data: bytes) -> None:
        self.has_printed = self.has_printed or bool(data)
        self.writer.write(data)
