"""Runtime of a follower for tests of the task log: without hosts and store, with a reader in Airflow's place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.engine.logs.rank_log import RankLog
from airflow_provider_dtrain.engine.logs.sender import LogSender
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from tests.support.log_reader import LogReader

DEADLINE_S = 30.0
NO_SECRETS = Redactor()


async def no_secrets() -> Redactor:
    """Return the mask of a trial without secrets, in place of a follower's."""
    return NO_SECRETS


class Book:
    """Store of log offsets: records the committed ones and the closed logs."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        #: Hosts of the attempts are nodes of jobs.
        self.is_external = False
        #: Attempts whose logs are closed.
        self.closed: list[int] = []
        #: Logs that ``open_logs`` returns unless closed.
        self.open: list[Any] = []
        self.events = SimpleNamespace(commit_log=self.commit_log, open_logs=self.open_logs)
        self.attempts = SimpleNamespace(get=self.attempt)

    def commit_log(self, *place: Any, closed: bool, tail_end: int) -> None:
        self.positions.append(place[4])
        self.closed += [place[0]] * closed

    def open_logs(self, trial_id: int) -> list[Any]:
        return [one for one in self.open if one.attempt_id not in self.closed]

    def attempt(self, attempt_id: int) -> Any:
        ids = {"attempt_id": attempt_id, "trial_id": 7, "number": attempt_id}
        return SimpleNamespace(**ids, watch=9, run=f"run-{attempt_id}", is_external=self.is_external)


class World:
    """Runtime of one follower, with a reader in Airflow's place."""

    def __init__(self, reader: LogReader, *, rate: int = 10**9, records_per_s: float = 1000.0) -> None:
        self.reader, self.store = reader, Book()
        self.log, self.watch = TaskLog(reader.logger, rate), 3
        self.settings = SimpleNamespace(task_log_records_per_s=records_per_s)
        self.sender = LogSender(records_per_s, reader.channel)
        self.mask = NO_SECRETS

        #: run -> log on its host, or the error of a host that does not answer.
        self.logs_of: dict[str, bytes | Exception] = {}
        #: run -> range of the log (start, end) that ``log_limit`` has freed.
        self.freed: dict[str, tuple[int, int]] = {}

    async def call(self, host: str, command: str, *, run: str, stream: str, offset: int, length: int) -> dict[str, Any]:
        found = self.logs_of[run]
        if isinstance(found, Exception):
            raise found
        offset = max(0, len(found) + offset) if offset < 0 else offset
        start, end = self.freed.get(run, (len(found), len(found)))
        offset = end if start <= offset < end else offset
        until = offset + length if offset >= end else min(start, offset + length)
        return {"size": len(found), "offset": offset, "data": found[offset:until]}

    async def redactor(self) -> Redactor:
        return self.mask

    async def db(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    def rank_log(self, begin: int = 0, trial_id: int = 7) -> RankLog:
        view = SimpleNamespace(trial_id=trial_id, attempt_id=1, number=1)
        return RankLog(self, view, host="a", begin=begin, committed=begin)  # type: ignore[arg-type]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)
