"""Jobs that Slurm has forgotten, renamed, accepted twice or not yet, and pauses after requests that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.external_jobs import EndKind, ExternalJob, JobAsk, JobPhase
from airflow_provider_dtrain.core.slurm.cluster import SlurmJob
from airflow_provider_dtrain.core.slurm.job_states import JobState
from airflow_provider_dtrain.core.slurm.options import slurm_options
from airflow_provider_dtrain.core.slurm.refusals import FailureKind
from airflow_provider_dtrain.errors import HostUnreachableError, SchedulerAwayError, SlurmUnavailableError
from airflow_provider_dtrain.hosts.slurm import scheduler as module
from airflow_provider_dtrain.hosts.slurm.answers import config_of
from airflow_provider_dtrain.hosts.slurm.client import Ambiguous, Refused, Submission
from airflow_provider_dtrain.hosts.slurm.scheduler import SlurmScheduler
from airflow_provider_dtrain.hosts.transport.local import LocalTransport


class Client:
    """Answers of a controller, and what it was asked for."""

    def __init__(self, *jobs: SlurmJob, following: int = 100) -> None:
        self.jobs, self.cancelled = list(jobs), list[int]()
        self.following, self.calls = following, list[str]()
        self.answer: Submission | Exception | None = None
        self.error: Exception | None = None

    def poll(self, prefix: str) -> list[SlurmJob]:
        self._called("poll")
        return [job for job in self.jobs if job.name.startswith(prefix)]

    def job(self, number: int) -> SlurmJob | None:
        self._called("job")
        return next((job for job in self.jobs if job.job_id == number), None)

    def find(self, names: Sequence[str]) -> dict[str, list[SlurmJob]]:
        self._called("find")
        return {}

    def cancel(self, numbers: Sequence[int]) -> None:
        self._called("cancel")
        self.cancelled += numbers

    def config(self) -> Any:
        self._called("config")
        return config_of(f"ClusterName = c\nNEXT_JOB_ID = {self.following}\n")

    def partitions(self) -> list[Any]:
        self._called("partitions")
        return []

    def cpu_share(self, number: int) -> None:
        return None

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error


class Clock:
    """The monotonic clock of the module, and its calendar."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def scheduler(client: Client) -> SlurmScheduler:
    made = SlurmScheduler(slurm_options({"slots": "cpu"}), LocalTransport("login"))
    made.client = client  # type: ignore[assignment]
    return made


def job(number: int = 7, **fields: Any) -> ExternalJob:
    at = datetime.now(UTC)
    values = {"phase": JobPhase.RUNNING, "reason": "", "submitted_at": at, "ends_at": at + timedelta(hours=1)}
    return ExternalJob(
        job_id=1, allocation_id=1, pool="hpc", name="dtrain-s-t1.1.1", number=str(number), **{**values, **fields}
    )


def known(number: int = 7, name: str = "dtrain-s-t1.1.1", state: JobState = JobState.RUNNING) -> SlurmJob:
    return SlurmJob(job_id=number, name=name, state=state, reason="", submitted_s=datetime.now(UTC).timestamp())


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, EndKind.CANCELLED), ({"restarts": 0}, EndKind.CANCELLED), ({"restarts": 1}, EndKind.LOST),
        ({"reason": "InactiveLimit"}, EndKind.LOST),
    ],
)  # fmt: skip
def test_a_job_that_slurm_itself_cancelled_is_no_kill_by_a_user(fields: dict[str, Any], kind: EndKind) -> None:
    ended = replace(known(state=JobState.CANCELLED), **fields)
    found = scheduler(Client(ended)).poll([job()])[1]
    assert found.end is not None
    assert found.end.kind == kind
    assert ("resumes" in found.end.message) == (kind == EndKind.LOST)


def test_a_job_that_the_controller_denies_twice_has_ended(clock: Clock) -> None:
    slurm = scheduler(Client())
    assert slurm.poll([job()]) == {}
    clock.now_s += module.LOST_AFTER_S - 1
    assert slurm.poll([job()]) == {}
    clock.now_s += 2
    found = slurm.poll([job()])[1]
    assert found.phase == JobPhase.ENDED
    assert found.end is not None
    assert found.end.kind == EndKind.LOST


def test_an_answer_between_two_denials_counts(clock: Clock) -> None:
    client = Client()
    slurm = scheduler(client)
    assert slurm.poll([job()]) == {}
    clock.now_s += module.LOST_AFTER_S
    client.jobs = [known()]
    assert slurm.poll([job()])[1].phase == JobPhase.RUNNING
    client.jobs = []
    clock.now_s += 1
    assert slurm.poll([job()]) == {}


@pytest.mark.parametrize(
    ("following", "ended_s_ago", "nodes"), [(8, -60, ()), (7, -60, ("n1",)), (7, module.CLOCKS_S + 1, ())]
)
def test_a_controller_that_lost_its_state_proves_nothing_about_the_nodes_before_the_end_of_the_time(
    clock: Clock, following: int, ended_s_ago: float, nodes: tuple[str, ...]
) -> None:
    slurm = scheduler(Client(following=following))
    lost = job(ends_at=datetime.now(UTC) - timedelta(seconds=ended_s_ago), nodes=("n1",))
    assert slurm.poll([lost]) == {}
    clock.now_s += module.LOST_AFTER_S + 1
    end = slurm.poll([lost])[1].end
    assert end is not None
    assert (end.kind, end.nodes) == (EndKind.LOST, nodes)


def test_a_renamed_job_is_the_same_job_and_one_with_its_number_is_not() -> None:
    slurm = scheduler(Client(known(name="mine")))
    assert slurm.poll([job()])[1].phase == JobPhase.RUNNING
    before = datetime.now(UTC) - timedelta(days=1)
    assert slurm.poll([job(submitted_at=before)]) == {}


def test_a_job_that_was_accepted_late_is_cancelled() -> None:
    client = Client(known(7), known(9), known(11, name="dtrain-s-t2.2.1"), known(6, state=JobState.COMPLETED))
    assert list(scheduler(client).poll([job()])) == [1]
    assert client.cancelled == [9]


def test_pauses_after_failures_grow_for_all_users_and_end_with_an_answer(clock: Clock) -> None:
    client = Client()
    slurm = scheduler(client)
    client.error = SlurmUnavailableError("login", "no answer")
    pauses = []
    for _ in range(8):
        with pytest.raises(SchedulerAwayError, match="no answer"):
            slurm.find(["a"])
        asked = len(client.calls)
        with pytest.raises(SchedulerAwayError, match="no answer"):
            slurm.find(["a"])
        assert len(client.calls) == asked, "not asked in the pause"
        assert slurm.busy()
        began_s = clock.now_s
        while slurm.busy():
            clock.now_s += 0.5
        pauses.append(clock.now_s - began_s)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    client.error = None
    slurm.find(["a"])
    client.error = SlurmUnavailableError("login", "RPC rate limit", is_rate_limited=True)
    for _ in range(9):
        with pytest.raises(SchedulerAwayError) as caught:
            slurm.poll([job()])
        assert caught.value.is_rate_limited
        began_s = clock.now_s
        while slurm.busy():
            clock.now_s += 0.5
    assert clock.now_s - began_s == module.PAUSE_LIMITED_S


@pytest.mark.parametrize(
    ("answer", "is_ambiguous", "is_limited"),
    [
        (Ambiguous(message="cut"), True, False),
        (Refused(kind=FailureKind.AWAY, message="away"), False, False),
        (Refused(kind=FailureKind.RATE_LIMITED, message="limit"), False, True),
        (Refused(kind=FailureKind.LIMIT, message="MaxSubmitJobs"), False, False),
    ],
)
def test_only_a_lost_answer_leaves_open_whether_a_job_was_accepted(
    monkeypatch: pytest.MonkeyPatch, answer: Submission, is_ambiguous: bool, is_limited: bool
) -> None:
    slurm = scheduler(Client())
    monkeypatch.setattr(slurm, "_submit", lambda ask: module._number_of(answer))
    with pytest.raises(SchedulerAwayError) as caught:
        slurm.submit(JobAsk(name="a", slots=1))
    assert (caught.value.is_ambiguous, caught.value.is_rate_limited) == (is_ambiguous, is_limited)
    assert slurm.busy(), "a limit that one job has met holds for the next ones"


def test_a_login_node_that_is_cut_off_is_away_and_not_ambiguous() -> None:
    client = Client()
    client.error = HostUnreachableError("login", "cut")
    with pytest.raises(SchedulerAwayError) as caught:
        scheduler(client).submit(JobAsk(name="a", slots=1))
    assert not caught.value.is_ambiguous
    assert client.calls == ["partitions"]


def test_the_state_of_a_job_says_nothing_of_others_without_a_number() -> None:
    client = Client(known(7))
    slurm = scheduler(client)
    assert list(slurm.poll([job(), replace(job(8), job_id=2, name="dtrain-s-t2.2.1")])) == [1]
