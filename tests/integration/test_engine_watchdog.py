"""A rank that hangs is named, and ends its gang after ``hang_timeout`` only. Real ranks over gloo."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_dtrain.core.lifecycle import watchdog as rules
from airflow_provider_dtrain.engine.attempt import watchdog
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.engines import Engine, held

pytest.importorskip("torch")
DEADLINE_S = 240.0


class Lines(logging.Handler):
    """The lines of a task log, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def having(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]

    async def wait(self, words: str, carrying: asyncio.Future[Outcome]) -> str:
        """Return the first line with these words, and fail at once if the trial ends earlier."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.having(words):
                assert not carrying.done(), (carrying, self.lines)
                await asyncio.wait([carrying], timeout=0.05)
        return self.having(words)[0]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("engine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


def config(way: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "together", "entrypoint": f"python together.py {way}", "model_dir": "code", "max_restarts": 0,
        "resources": {"slots_per_trial": 2}, "environment": {"variables": {"OMP_NUM_THREADS": "1"}}, **more,
    }  # fmt: skip


@contextlib.asynccontextmanager
async def following(engine: Engine, ticket: Ticket) -> Any:
    runtime = await take_over(engine.hook, ticket.trial_id, TaskLog(logging.getLogger("engine"), 10**6), watcher="test")
    carrying = asyncio.ensure_future(
        asyncio.wait_for(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)), DEADLINE_S)
    )
    try:
        yield carrying
    finally:
        if not carrying.done():
            runtime.kill()
            with contextlib.suppress(Exception):
                await carrying


def pid_of(rank: int, home: Path) -> int:
    """The process of a rank of the test's own run."""
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if "together.py" in " ".join(process.info["cmdline"] or []):
                variables = process.environ()
                if variables.get("RANK") == str(rank) and variables.get("HOME") == str(home):
                    return process.pid
    raise LookupError(rank)


@pytest.mark.nightly
async def test_a_stopped_rank_is_named_and_training_goes_on_with_it(
    engine: Engine, lines: Lines, tmp_path: Path
) -> None:
    ticket = engine.submit(config("on"))
    async with following(engine, ticket) as carrying:
        await lines.wait("step 10", carrying)
        assert lines.having("made no progress") == []
        pid = pid_of(1, tmp_path)
        os.kill(pid, signal.SIGSTOP)
        said = await lines.wait("made no progress", carrying)
        assert said.startswith("Rank 1 on local has made no progress for ")
        assert "(stopped by a signal, in " in said
        assert f"pid {pid})" in said
        os.kill(pid, signal.SIGCONT)
        await lines.wait("Rank 1 on local resumed after ", carrying)
        (tmp_path / "enough").touch()
        outcome: Outcome = await carrying
    assert outcome.state == "completed"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("way", "error", "kind"), [("on", "ProcessStuckError", "infra"), ("sleep", "RankHangsError", "user")]
)
async def test_a_gang_that_hangs_is_ended_after_hang_timeout(
    engine: Engine, lines: Lines, tmp_path: Path, way: str, error: str, kind: str
) -> None:
    ticket = engine.submit(config(way, hang_timeout=12))
    end: Callable[[], None] = (lambda: os.kill(pid_of(1, tmp_path), signal.SIGSTOP)) if way == "on" else (lambda: None)
    async with following(engine, ticket) as carrying:
        await lines.wait("step 10", carrying)
        end()
        outcome: Outcome = await carrying
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == (error, kind)
    assert "hang_timeout is 12 s" in outcome.failure.message
    assert outcome.failure.message.startswith("Rank 1 on local has made no progress for ")
    assert held(engine) == []
    with pytest.raises(LookupError):
        pid_of(0, tmp_path)


@pytest.mark.nightly
async def test_ranks_with_loops_of_different_lengths_are_named_with_their_places_and_ended(
    engine: Engine, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "PATIENT_S", 6.0)
    monkeypatch.setattr(watchdog, "HANG_SEEN_S", 3.0)
    async with following(engine, engine.submit(config("uneven"))) as carrying:
        said = await lines.wait("in different exchanges", carrying)
        outcome: Outcome = await carrying
    for place in ("rank 0 on local in an exchange of metrics", "rank 1 on local in the gradient exchange"):
        assert place in said
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == ("RankHangsError", "user")
    assert "rank 1 on local in the gradient exchange, step 20" in outcome.failure.message
    assert held(engine) == []
