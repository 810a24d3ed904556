"""Steps of a request for a job: nodes that a trial avoids, pauses, and submissions whose result is not known."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.external_jobs import EndKind, ExternalJob, JobAsk, JobEnd, JobPhase
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.slots import job_request
from airflow_provider_dtrain.engine.slots.job_request import Cancelled, JobRequest
from airflow_provider_dtrain.engine.slots.slot_port import Never, Waiting
from airflow_provider_dtrain.errors import SchedulerAwayError, SubmissionRefusedError


class Scheduler:
    """A scheduler whose answers a test chooses."""

    settles_in_s = 100.0

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asks, self.looks = list(answers), list[JobAsk](), 0
        self.reason: str | None = None
        self.known: dict[str, Any] = {}
        self.cancelled: list[str] = []

    def busy(self) -> str | None:
        return self.reason

    def submit(self, ask: JobAsk) -> str:
        self.asks.append(ask)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def cancel(self, numbers: Any) -> None:
        self.cancelled += numbers

    def find(self, names: Any) -> dict[str, Any]:
        self.looks += 1
        return self.known


class Jobs:
    """Calls to the store."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> list[str]:
            self.calls.append(name)
            return []

        return call


async def _db(method: Any, /, *args: Any, **kwargs: Any) -> Any:
    return method(*args, **kwargs)


def made(monkeypatch: pytest.MonkeyPatch) -> tuple[JobRequest, Jobs]:
    monkeypatch.setattr(job_request, "_opened", lambda sealed: sealed)
    monkeypatch.setattr(job_request, "refresh_stale", lambda *_: None)
    jobs = Jobs()
    hook: Any = SimpleNamespace(store=SimpleNamespace(external_jobs=jobs))
    log = TaskLog(logging.getLogger("test"), 1000)
    return JobRequest(hook, "hpc", 1, JobAsk(name="", slots=2), log, _db), jobs


def job(submitted_s_ago: float | None = None) -> ExternalJob:
    at = None if submitted_s_ago is None else datetime.now(UTC) - timedelta(seconds=submitted_s_ago)
    values: dict[str, Any] = {"phase": JobPhase.SUBMITTING, "reason": "", "submitted_at": at}
    return ExternalJob(job_id=1, allocation_id=1, pool="hpc", name="dtrain-s-t1.1.1", number=None, **values)


async def test_nodes_that_a_trial_avoids_are_used_if_no_others_can_serve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    request, _ = made(monkeypatch)
    scheduler: Any = Scheduler(SubmissionRefusedError("not available"), 8)
    ask = JobAsk(name="a", slots=2, excluded=("n1", "n2"))
    assert await request._accepted(scheduler, ask) == "8"
    assert [one.excluded for one in scheduler.asks] == [("n1", "n2"), ()]
    scheduler = Scheduler(SubmissionRefusedError("never"))
    with pytest.raises(SubmissionRefusedError):
        await request._accepted(scheduler, JobAsk(name="a", slots=2))


@pytest.mark.parametrize("kind", EndKind)
async def test_only_an_end_that_would_repeat_itself_ends_the_request(
    monkeypatch: pytest.MonkeyPatch, kind: EndKind
) -> None:
    request, _ = made(monkeypatch)
    found = await request._after(JobEnd(kind=kind, message="Slurm job 7 ended."))
    last = {EndKind.CANCELLED: Cancelled, EndKind.FAILED: Never, EndKind.OUT_OF_MEMORY: Never}
    assert type(found) is last.get(kind, Waiting)


async def test_a_submission_that_may_still_be_accepted_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    request, jobs = made(monkeypatch)
    scheduler: Any = Scheduler(8)
    clock = [1000.0]
    monkeypatch.setattr(job_request, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for _ in range(20):
        assert await request._submit(SimpleNamespace(), scheduler, job(5.0)) is not None  # type: ignore[arg-type]
        clock[0] += 1.0
    assert scheduler.asks == []
    assert scheduler.looks <= 5, "each look is a request to the controller"
    scheduler.known = {"dtrain-s-t1.1.1": [SimpleNamespace(number="7")]}
    clock[0] += job_request.LOOK_MOST_S
    assert await request._submit(SimpleNamespace(), scheduler, job(30.0)) is None  # type: ignore[arg-type]
    assert (jobs.calls, scheduler.asks) == (["submitted"], [])
    scheduler.known = {}
    clock[0] += job_request.LOOK_MOST_S
    assert await request._submit(SimpleNamespace(), scheduler, job(101.0)) is None  # type: ignore[arg-type]
    assert len(scheduler.asks) == 1


async def test_a_controller_that_was_stopped_is_asked_twice_before_a_submission_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request, _ = made(monkeypatch)
    scheduler: Any = Scheduler(8)
    clock = [1000.0]
    monkeypatch.setattr(job_request, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    while not scheduler.asks:
        await request._submit(SimpleNamespace(), scheduler, job(200.0))  # type: ignore[arg-type]
        clock[0] += 1.0
    assert 5 <= clock[0] - 1000.0 < 15
    assert scheduler.looks >= 2


@pytest.mark.parametrize(("is_ambiguous", "last"), [(True, "submitting"), (False, "not_submitted")])
async def test_a_refusal_for_now_leaves_no_trace_and_a_lost_answer_does(
    monkeypatch: pytest.MonkeyPatch, is_ambiguous: bool, last: str
) -> None:
    request, jobs = made(monkeypatch)
    scheduler: Any = Scheduler(SchedulerAwayError("away", is_ambiguous=is_ambiguous))
    with pytest.raises(SchedulerAwayError):
        await request._submit(SimpleNamespace(), scheduler, job())  # type: ignore[arg-type]
    assert jobs.calls[-1] == last


@pytest.mark.parametrize(("minutes", "cancelled"), [(10, []), (20, ["7"])])
async def test_a_job_that_never_answers_is_replaced(
    monkeypatch: pytest.MonkeyPatch, minutes: float, cancelled: list[str]
) -> None:
    request, jobs = made(monkeypatch)
    scheduler: Any = Scheduler()
    started = datetime.now(UTC) - timedelta(minutes=minutes)
    silent = replace(job(), number="7", phase=JobPhase.RUNNING, started_at=started)
    for one in (silent, replace(silent, is_cancelled=True)):
        await request._replace_silent(scheduler, one)
    assert scheduler.cancelled == cancelled
    assert jobs.calls == ["cancelling"] * len(cancelled)


async def test_no_job_follows_one_that_a_user_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    request, jobs = made(monkeypatch)
    end = JobEnd(kind=EndKind.CANCELLED, message="It was cancelled.")
    over = replace(job(), number="7", phase=JobPhase.ENDED, end=end, ended_at=datetime.now(UTC))
    jobs.__dict__["of_allocation"] = lambda _: over
    assert await request._pause_left() == Cancelled("It was cancelled.")
    jobs.__dict__["of_allocation"] = lambda _: replace(over, end=replace(end, kind=EndKind.TIMEOUT))
    assert isinstance(await request._pause_left(), Waiting)


async def test_nothing_is_submitted_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    request, jobs = made(monkeypatch)
    scheduler: Any = Scheduler(8)
    scheduler.reason = "Slurm does not answer"
    assert await request._submit(SimpleNamespace(), scheduler, job()) == "Slurm does not answer"  # type: ignore[arg-type]
    assert (jobs.calls, scheduler.asks) == ([], [])


async def test_a_request_that_waits_for_long_takes_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    request, jobs = made(monkeypatch)
    clock = [1000.0]
    monkeypatch.setattr(job_request, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    await request._waiting("a")
    assert request.pause_s() == job_request.STEP_S
    clock[0] += 50.0
    await request._waiting("a")
    assert request.pause_s() == 5.0
    clock[0] += 5000.0
    assert request.pause_s() == job_request.STEP_MOST_S
    await request._waiting("b")
    assert request.pause_s() == job_request.STEP_S
    assert jobs.calls == ["note_reason"] * 2
