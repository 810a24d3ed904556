"""Causes of failures: of one trial, and of the trials of an experiment together. The real store and API."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.errors import DtrainError, HostLostError, ImageError, RankFailedError
from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
from airflow_provider_dtrain.store.queries.failures import (
    COMPARED_MOST,
    LOG_LINES,
    experiment_failures,
    trial_failure,
)
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.terminal.experiments import describe as describe_experiment
from airflow_provider_dtrain.terminal.trials import describe as describe_trial
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search
from tests.support.store_world import Clock

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
PACKAGES = {"numpy": "2.1", "torch": "2.13.0"}
HOST: dict[str, Any] = {
    "devices": {"0": None}, "driver": None, "image": None, "python": "3.12.4", "executable": "/usr/bin/python3",
    "cuda": "none", "packages": PACKAGES,
}  # fmt: skip
TRACEBACK = """Traceback (most recent call last):
  File "/state/runs/r1/work/train.py", line 80, in <module>
    main()
  File "/state/runs/r1/work/train.py", line 34, in main
    loss = model(batch["label"])
  File "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1773, in _call_impl
    return forward_call(*args, **kwargs)
KeyError: 'label'"""
RIGHTS = AllRights()


def rank_error(message: str = "KeyError: 'label', at train.py:34 in main", **more: Any) -> RankFailedError:
    values = {"rank": 0, "host": "a", "exit_code": 1, "traceback": TRACEBACK, "when": "10:00:00 UTC"}
    return RankFailedError(message=message, **{**values, "cause_kind": "exception", **more})


class Failing:
    """Trials of one search that fail as a test says."""

    def __init__(self, store: Any) -> None:
        self.store = store
        store.hosts.add(host("a", slots=64))
        self.search = Search(store)

    def start(self, number: int, **own: Any) -> Ticket:
        ticket = self.search.start(number, slots=1)
        launch = {"a": {**HOST, **own}}
        self.store.provenance.set_launch(ticket.attempt_id, self.search.watches[ticket.attempt_id], None, launch)
        return ticket

    def fail(self, ticket: Ticket, error: DtrainError) -> None:
        self.search.end(ticket, "errored", failure=asdict(Failure.of(error)))

    def failed(self, number: int, error: DtrainError | None = None, **own: Any) -> int:
        ticket = self.start(number, **own)
        self.fail(ticket, error or rank_error())
        return ticket.trial_id

    def good(self, number: int, **own: Any) -> int:
        ticket = self.start(number, **own)
        self.search.end(ticket)
        return ticket.trial_id

    def log(self, ticket: Ticket, text: str) -> None:
        watch = self.search.watches[ticket.attempt_id]
        self.store.events.commit_log(ticket.attempt_id, watch, "a", 0, None, text.encode(), tail_end=len(text.encode()))

    def of(self, trial_id: int) -> TrialFailure:
        return trial_failure(self.store, RIGHTS, trial_id)

    def experiment(self) -> ExperimentFailures:
        assert self.search.view is not None
        return experiment_failures(self.store, RIGHTS, self.search.view.experiment_id)


@pytest.fixture
def failing(store: Any) -> Failing:
    return Failing(store)


@pytest.mark.each_change
def test_a_failed_trial_opens_on_the_cause_with_the_users_own_frames_first(failing: Failing) -> None:
    ticket = failing.start(0)
    failing.log(ticket, "".join(f"step {number}\n" for number in range(100)) + TRACEBACK + "\n")
    failing.fail(ticket, rank_error(advice="Repair this line of the program."))
    found = failing.of(ticket.trial_id)
    assert found.cause == (
        "Rank 0 on host 'a' failed first (exit code 1 at 10:00:00 UTC): KeyError: 'label', at train.py:34 in main. "
        "Repair this line of the program."
    )
    (raised,) = found.raised
    assert (raised.text, raised.library_frames) == ("KeyError: 'label'", 1)
    assert [(one.file, one.line, one.function, one.code) for one in raised.frames] == [
        ("train.py", 34, "main", 'loss = model(batch["label"])'),
        ("train.py", 80, "", "main()"),
    ]
    assert found.log is not None
    assert (found.log.rank, found.log.host, found.log.has_more) == (0, "a", True)
    assert len(found.log.lines) == LOG_LINES
    # The traceback at the end of the log is not there twice.
    assert found.log.lines[-1] == "step 99"
    assert (found.phase, found.attempt, found.cause_kind, found.rank) == ("training", 1, "exception", 0)
    assert found.steps[0].text == "Repair this line of the program."
    assert [one.page for one in found.steps[-2:]] == ["log", "task_log"]


@pytest.mark.each_change
def test_it_names_what_has_changed_since_the_last_good_run_of_the_experiment(failing: Failing, clock: Clock) -> None:
    failing.good(0, packages={**PACKAGES, "torch": "2.11.0"})
    clock.advance(60)
    good = failing.good(1, packages={**PACKAGES, "torch": "2.12.0"})
    clock.advance(60)
    bad = failing.failed(2)
    clock.advance(60)
    later = failing.good(3)
    baseline = failing.of(bad).baseline
    assert baseline is not None
    assert (baseline.trial_id, baseline.is_of_experiment) == (good, True), later
    rows = {f"{one.subject} {one.name}".strip(): one.values for one in baseline.changes}
    assert rows["packages torch"] == ["2.12.0", "2.13.0"]
    assert rows["configuration hyperparameters.lr"] == ["1", "2"]
    assert list(rows).index("packages torch") < list(rows).index("configuration hyperparameters.lr")
    assert "seed trial" not in rows
    assert "interpreter" in baseline.same
    assert f"airflow dtrain trials diff {good} {bad}" in [one.command for one in failing.of(bad).steps]


def test_an_experiment_without_a_good_run_is_compared_with_the_last_one_of_the_same_name_and_dag(store: Any) -> None:
    earlier = Failing(store)
    good = earlier.good(0)
    other = Failing.__new__(Failing)
    other.store, other.search = store, Search(store, run="r2")
    bad = other.failed(0, driver="580")
    baseline = other.of(bad).baseline
    assert baseline is not None
    assert (baseline.trial_id, baseline.is_of_experiment) == (good, False)
    assert [(one.subject, one.values) for one in baseline.changes if one.subject == "driver"] == []
    foreign = Failing.__new__(Failing)
    foreign.store, foreign.search = store, Search(store, run="r3", name="another")
    assert foreign.of(foreign.failed(0)).baseline is None


def test_what_one_of_both_did_not_record_is_named_as_unknown_and_not_as_changed(failing: Failing) -> None:
    failing.good(0)
    ticket = failing.search.submit(1, slots=1)
    failing.search.follow(ticket.attempt_id)
    failing.fail(ticket, rank_error())
    baseline = failing.of(ticket.trial_id).baseline
    assert baseline is not None
    assert {one.subject for one in baseline.changes} == {"configuration"}
    assert "packages" in baseline.unknown


def test_a_trial_that_cannot_start_has_the_same_record(failing: Failing) -> None:
    ticket = failing.search.submit(0, slots=1)
    watch = failing.store.attempts.watch(ticket.attempt_id, watcher="test")
    failing.search.watches[ticket.attempt_id] = watch
    failing.store.queue.schedule("gpus")
    assert failing.store.queue.take_up(ticket.attempt_id, watch)
    failing.fail(ticket, ImageError("Host 'a' cannot download image 'nvcr.io/x:1': manifest unknown.\nline of podman"))
    found = failing.of(ticket.trial_id)
    assert (found.phase, found.error, found.rank, found.log) == ("start", "ImageError", None, None)
    assert found.cause == "Host 'a' cannot download image 'nvcr.io/x:1': manifest unknown."
    assert found.details == "line of podman"
    assert [one.page for one in found.steps] == ["config", "task_log"]


def test_attempts_that_failed_in_the_same_way_are_named(failing: Failing) -> None:
    ticket = failing.start(0)
    for number, error in enumerate((rank_error(), HostLostError("a", "Host 'a' was restarted."), rank_error())):
        watch = failing.search.watches[ticket.attempt_id]
        if number == 2:
            failing.fail(ticket, error)
            break
        failure = asdict(Failure.of(error))
        ticket = failing.store.attempts.next(ticket.attempt_id, watch, failure=failure, counted=False)
        failing.search.follow(ticket.attempt_id)
    assert failing.of(ticket.trial_id).same_attempts == [1]
    assert failing.of(ticket.trial_id).attempt == 3


@pytest.mark.each_change
def test_eight_of_ten_trials_failed_with_the_same_error(failing: Failing) -> None:
    for number in range(8):
        message = f"OutOfMemoryError: CUDA out of memory. Tried to allocate {number}.50 GiB, at train.py:{number} in f"
        failing.failed(
            number, rank_error(message, rank=number, when=f"10:00:0{number} UTC", cause_kind="device_memory")
        )
    other = failing.failed(8)
    failing.good(9)
    found = failing.experiment()
    assert found.text == "9 of 10 trials failed, 8 of them with the same error."
    assert (found.failed, found.ended, found.is_most, found.compared) == (9, 10, True, 9)
    assert [(one.count, one.cause) for one in found.groups] == [
        (8, "OutOfMemoryError: CUDA out of memory. Tried to allocate ... GiB, at train.py:... in f"),
        (1, "KeyError: 'label', at train.py:34 in main"),
    ]
    assert found.groups[1].trials == [other]
    assert found.groups[0].advice.startswith("Use a smaller batch per slot")
    assert found.groups[0].raised[0].frames[0].line == 34


def test_an_experiment_without_failures_has_an_empty_record(failing: Failing) -> None:
    failing.good(0)
    found = failing.experiment()
    assert (found.text, found.failed, found.groups, found.is_most) == ("", 0, [], False)


def test_trials_that_were_cleared_do_not_count(failing: Failing) -> None:
    failing.failed(0)
    ticket = failing.search.start(0, slots=1, max_tries=1)
    failing.search.end(ticket)
    assert failing.experiment().failed == 0


def test_only_the_latest_failures_of_a_large_experiment_are_compared(failing: Failing, monkeypatch: Any) -> None:
    assert COMPARED_MOST >= 1000
    monkeypatch.setattr("airflow_provider_dtrain.store.queries.failures.COMPARED_MOST", 2)
    ids = [failing.failed(number) for number in range(3)]
    found = failing.experiment()
    assert (found.failed, found.compared, found.groups[0].trials) == (3, 2, ids[:0:-1])


# -- rights and hostile texts ------------------------------------------------------------------------
@SQLITE
def test_errors_and_logs_are_for_users_who_may_read_task_logs(failing: Failing) -> None:
    ticket = failing.start(0)
    failing.log(ticket, "secret of the log\n")
    failing.fail(ticket, rank_error())
    assert failing.search.view is not None
    experiment = failing.search.view.experiment_id
    for may_read in (True, False):
        api = Api(failing.store, logs=may_read)
        own, whole = api.get(f"/trials/{ticket.trial_id}/failure"), api.get(f"/experiments/{experiment}/failures")
        assert own["is_restricted"] == (not may_read)
        assert (own["log"] is not None, bool(own["raised"]), bool(own["details"])) == (may_read,) * 3
        assert bool(whole["groups"][0]["raised"]) == may_read
        assert own["cause"].startswith("Rank 0 on host 'a' failed first")


@SQLITE
def test_a_trial_that_has_not_failed_has_no_such_record(failing: Failing) -> None:
    trial = failing.good(0)
    status, code, message = Api(failing.store).refusal("GET", f"/trials/{trial}/failure")[:3]
    assert (status, code) == (404, "not_found")
    assert f"No attempt of trial {trial} has failed." in message


@SQLITE
def test_the_last_good_run_of_a_dag_that_the_user_may_not_read_is_not_named(failing: Failing) -> None:
    failing.good(0)
    bad = failing.failed(1)
    assert Api(failing.store).get(f"/trials/{bad}/failure")["baseline"] is not None
    closed = Api(failing.store, readable=[])
    assert closed.answer("GET", f"/trials/{bad}/failure").status_code == 404


@SQLITE
@pytest.mark.parametrize(
    "message",
    [
        "",
        " ",
        "\n\n",
        "Traceback (most recent call last):",
        "x" * 2_000_000,
        "<script>alert(1)</script>",
        "\x1b[31mred\x1b[0m \u202e",
        "Traceback (most recent call last):\n" + '  File "x", line 1, in f\n' * 50_000,
        "9" * 100_000,
        "/" * 100_000,
        "':" * 50_000,
        "rank 1, " * 20_000,
        "a" * 7 + ":" * 50_000,
    ],
    ids=range(13),
)
def test_any_text_of_a_failure_is_answered_soon_and_within_bounds(failing: Failing, message: str) -> None:
    ticket = failing.start(0)
    failing.search.end(ticket, "errored", failure={"error": "RankFailedError", "kind": "user", "message": message})
    api = Api(failing.store)
    answer = api.answer("GET", f"/trials/{ticket.trial_id}/failure")
    assert answer.status_code == 200, answer.text
    assert failing.search.view is not None
    group = api.answer("GET", f"/experiments/{failing.search.view.experiment_id}/failures")
    assert group.status_code == 200, group.text
    assert len(answer.content) < 100_000
    assert len(group.content) < 100_000


# -- both programs -----------------------------------------------------------------------------------
@SQLITE
@pytest.mark.parametrize("form", ["table", "json"])
def test_both_programs_describe_the_same_failure(
    failing: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    good = failing.good(0, packages={**PACKAGES, "torch": "2.12.0"})
    ticket = failing.start(1)
    failing.log(ticket, f"step 1\n{TRACEBACK}\n")
    failing.fail(ticket, rank_error(advice="Repair this line of the program."))
    assert failing.search.view is not None
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    texts = []
    with HttpApi(Api(failing.store)) as found:
        for words, show in (
            (f"trials describe {ticket.trial_id}", describe_trial),
            (f"experiments describe {failing.search.view.experiment_id}", describe_experiment),
        ):
            argv = [*words.split(), "-o", form, "--server", found.url]
            assert main(argv) == 0, capsys.readouterr()
            remote = capsys.readouterr().out
            show(parser().parse_args(argv), StoreSource(failing.store))
            # Only the other program is named otherwise.
            assert remote.replace("airflow dtrain", "dtrain") == capsys.readouterr().out.replace(
                "airflow dtrain", "dtrain"
            )
            texts.append(remote)
    if form == "json":
        cause, failures = json.loads(texts[0])["cause"], json.loads(texts[1])["failures"]
        assert (cause["cause_kind"], cause["baseline"]["trial_id"]) == ("exception", good)
        assert failures["groups"][0]["trials"] == [ticket.trial_id]
        return
    for part in (
        "Rank 0 on host 'a' failed first",
        "KeyError: 'label'\n",
        'at train.py:34 in main: loss = model(batch["label"])',
        f"changed since trial {good}",
        "packages torch: 2.12.0 -> 2.13.0",
        "log of rank 0",
        "Read the logs of all ranks: ",
    ):
        assert part in texts[0], part
    assert "1 of 2 trials failed." in texts[1]
    assert f"1 x KeyError: 'label', at train.py:34 in main (trial {ticket.trial_id})" in texts[1]
