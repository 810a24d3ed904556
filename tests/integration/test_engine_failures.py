"""Consequences of failures: restarts, log policies, rejected hyperparameters. Real ranks on this machine."""

from __future__ import annotations

import argparse
import csv
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.core.lifecycle import after_failure
from airflow_provider_dtrain.engine.attempt import failure_analysis
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.errors import MetricMissingError
from airflow_provider_dtrain.hooks.tasks import as_airflow
from airflow_provider_dtrain.store.records.trials import TrialView
from airflow_provider_dtrain.terminal import trials
from tests.support.engines import Engine, held, second

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
CHEESE = {"name": "cheese", "pattern": "out of (cheese|ham)"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_failure, "BACK_OFF_FIRST_S", 0.1)


def config(way: str, *, rank: int = 0, slots: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "name": "failures",
        "entrypoint": ["python", "failures.py", way, str(rank)],
        "model_dir": "code",
        "max_restarts": 2,
        "resources": {"slots_per_trial": slots},
        **more,
    }


async def carry(engine: Engine, document: dict[str, Any]) -> tuple[Outcome, TrialView]:
    ticket = engine.submit(document)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    return outcome, engine.hook.store.trials.get(ticket.trial_id)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_policy_cancels_retries_for_a_line_of_another_rank_far_from_its_end(engine: Engine) -> None:
    policies = [{**CHEESE, "action": "cancel_retries"}]
    outcome, trial = await carry(engine, config("say we are out of cheese", log_policies=policies))
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == ("LogPolicyError", "user")
    first, *rest = outcome.failure.message.splitlines()
    assert first == ("Log policy 'cheese' (cancel_retries) matches a line of rank 1 on 'local': we are out of cheese")
    assert "ValueError: cannot go on" in "\n".join(rest)
    assert (trial.attempts, trial.restarts) == (1, 0)
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_policy_excludes_the_host_and_the_failure_is_not_counted(engine: Engine) -> None:
    policies = [{**CHEESE, "action": "exclude_host"}]
    outcome, trial = await carry(engine, config("say we are out of ham", log_policies=policies))
    assert outcome.state == "errored", "there is no other host"
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind, outcome.failure.host) == ("HostError", "infra", "local")
    assert "Log policy 'cheese' (exclude_host) matches a line of rank 1" in outcome.failure.message
    assert (trial.attempts, trial.restarts) == (1, 0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("line", "error", "name"), [(OOM, "LogPolicyError", "CUDA OOM"), (ECC, "HostError", "ECC Error")]
)
async def test_the_defaults_work_until_a_policy_without_a_pattern_switches_them_off(
    engine: Engine, line: str, error: str, name: str
) -> None:
    way = f"say {line}"
    outcome, trial = await carry(engine, config(way, max_restarts=1))
    assert outcome.failure is not None
    assert outcome.failure.error == error
    assert name in outcome.failure.message
    assert trial.attempts == 1
    outcome, trial = await carry(engine, config(way, max_restarts=1, log_policies=[{"name": name}]))
    assert outcome.failure is not None
    assert outcome.failure.error == "RankFailedError"
    assert trial.attempts == 2


@pytest.mark.nightly
async def test_a_pattern_that_never_ends_and_one_without_an_action_are_warnings(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    slow = {"name": "slow", "pattern": "(x+x+)+y", "action": "cancel_retries"}
    told = {"name": "told", "pattern": "^cannot go|ValueError: cannot"}
    outcome, _ = await carry(engine, config("say " + "x" * 80, max_restarts=0, log_policies=[slow, told]))
    assert any("'told' (no action) matches a line of rank 0" in words for words in warnings(caplog))
    assert any("'slow' took too long on the logs of host 'local'" in words for words in warnings(caplog))
    assert outcome.failure is not None
    assert outcome.failure.error == "RankFailedError"


@pytest.mark.nightly
async def test_restarts_are_announced_and_an_error_is_shown_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    outcome, trial = await carry(engine, config("fail", slots=1))
    assert (trial.attempts, trial.restarts) == (3, 2)
    said = warnings(caplog)
    restarts = [words for words in said if words.startswith("Restart")]
    assert restarts == [
        "Restart 1 of 2 in 0 s from the beginning: there is no checkpoint yet",
        "Restart 2 of 2 in 0 s from the beginning: there is no checkpoint yet",
    ]
    failures = [words for words in said if "failed first" in words]
    assert [words.count("Traceback") for words in failures] == [1, 0]
    first = (
        r"Rank 0 on host 'local' failed first \(exit code 1 at [\d:]+ UTC\): ValueError: cannot go on, "
        r"at failures.py:\d+. Repair this line of the program."
    )
    assert re.match(f"{first}\n", failures[0])
    assert re.fullmatch(rf"{first} \(same error as attempt 1\)", failures[1])
    assert outcome.failure is not None
    assert outcome.failure.message.count("Traceback") == 1


@pytest.mark.nightly
async def test_a_restart_says_from_which_step(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    await carry(engine, config("checkpoint", slots=1, max_restarts=1))
    assert [words for words in warnings(caplog) if words.startswith("Restart")] == [
        "Restart 1 of 1 in 0 s from step 20"
    ]


@pytest.mark.nightly
async def test_the_exit_code_of_a_script_and_a_kill_by_somebody_else_are_named(engine: Engine) -> None:
    outcome, _ = await carry(engine, config("exit", rank=1, max_restarts=0))
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("Rank 1 on host 'local' failed first (exit code 3 at ")
    assert outcome.failure.cause_kind == "exit_code"
    outcome, _ = await carry(engine, config("killed", rank=1, max_restarts=0))
    assert outcome.failure is not None
    first = outcome.failure.message.splitlines()[0]
    assert re.match(
        r"Rank 1 on host 'local' failed first \(signal 9 at .* UTC\): killed by signal 9 \(SIGKILL\): ", first
    )
    assert re.search(r"not sent by dtrain|the kernel was out of memory", first)


@pytest.mark.nightly
async def test_refused_hyperparameters_end_the_trial_without_any_retry(engine: Engine) -> None:
    outcome, trial = await carry(engine, config("invalid", hyperparameters={"lr": 7}))
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == ("InvalidHPError", "user")
    assert outcome.failure.message.startswith(
        "The training code refused its hyperparameters: lr 7 is too large for 3 layers\n"
    )
    assert "{'lr': 7}" in outcome.failure.message
    assert (trial.state, trial.attempts, trial.restarts) == ("errored", 1, 0)
    assert isinstance(as_airflow(outcome.failure.exception()), AirflowFailException)


@pytest.mark.nightly
async def test_a_metric_that_nobody_reports_is_a_warning_for_a_single_trial(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    for metric, expected in (("loss", 1), ("accuracy", 0)):
        caplog.clear()
        searcher = {"name": "single", "metric": metric}
        outcome, _ = await carry(engine, config("completes", slots=1, searcher=searcher))
        assert outcome.state == "completed"
        found = [words for words in warnings(caplog) if "searcher.metric" in words]
        assert len(found) == expected
    assert not found


@pytest.mark.nightly
async def test_a_metric_that_nobody_reports_is_an_error_for_a_search(engine: Engine) -> None:
    ticket = engine.submit(config("completes", slots=1))
    await engine.carry(ticket)
    assert engine.runtime is not None
    view = await engine.runtime.view()
    searcher = SimpleNamespace(name="random", metric="loss")
    job: Any = SimpleNamespace(config=SimpleNamespace(searcher=searcher))
    error = await failure_analysis.check_metric(engine.runtime, view, job)
    assert isinstance(error, MetricMissingError)
    assert error.kind == "user"
    assert "'loss'" in str(error)
    assert "in validation: accuracy; in training: nothing" in str(error)
    searcher.metric = "accuracy"
    assert await failure_analysis.check_metric(engine.runtime, view, job) is None


@pytest.mark.nightly
async def test_a_trial_goes_on_on_another_host_after_a_policy_excluded_the_first(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second(engine, tmp_path / "other")
    policies = [{**CHEESE, "action": "exclude_host"}]
    outcome, trial = await carry(engine, config("say we are out of ham", max_restarts=0, log_policies=policies))
    assert outcome.failure is not None
    first, last = engine.hook.store.attempts.of_trial(trial.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0), "the failure was the host's: max_restarts is 0"
    assert set(first.placement) | set(last.placement) == {"local", "other"}
    assert first.failure is not None
    assert "(exclude_host) matches a line of rank 1" in first.failure["message"]
    assert first.failure["host"] in first.placement
    assert held(engine) == []
    (said,) = [words for words in warnings(caplog) if "is left out of this trial from now on" in words]
    assert said.startswith(f"Host '{first.failure['host']}'")


@pytest.mark.nightly
async def test_a_loss_that_is_nan_is_one_line_with_step_and_rank(engine: Engine) -> None:
    outcome, _ = await carry(engine, {**config("", max_restarts=0), "entrypoint": "python nan_loss.py"})
    assert outcome.failure is not None
    first = outcome.failure.message.splitlines()[0]
    assert re.fullmatch(
        r"Rank 1 on host 'local' failed first \(exit code 1 at .* UTC\): NonFiniteLossError: .*loss.*step 17.*rank 1.*",
        first,
    )


@pytest.mark.nightly
async def test_the_library_refuses_hyperparameters_for_the_script(engine: Engine) -> None:
    document = {**config("", slots=1, hyperparameters={"lr": 7}), "entrypoint": "python invalid_hp.py"}
    outcome, trial = await carry(engine, document)
    assert outcome.failure is not None
    assert outcome.failure.error == "InvalidHPError"
    assert "refused its hyperparameters: lr 7 is too large" in outcome.failure.message
    assert (trial.attempts, trial.restarts) == (1, 0)


@pytest.mark.nightly
async def test_trial_metrics_show_each_step_once_after_a_restart(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome, trial = await carry(engine, config("reports", slots=1))
    assert outcome.state == "completed"
    assert trial.attempts == 2

    def shown(**arguments: Any) -> list[list[str]]:
        given = {"trial_id": trial.trial_id, "group": None, "csv": True, "abandoned": False, "output": "table"}
        capsys.readouterr()
        trials.metrics(argparse.Namespace(**{**given, **arguments}), StoreSource(engine.hook.store))
        head, *rows = csv.reader(capsys.readouterr().out.splitlines())
        columns = [head.index(name) for name in ("attempt", "group", "step", "epoch")]
        return [[row[column] for column in columns] for row in rows]

    branch = [["1", "training", "10", "0.0"], ["1", "training", "20", "1.0"], ["2", "training", "25", "1.0"],
              ["2", "training", "35", "1.0"], ["2", "validation", "35", ""]]  # fmt: skip
    assert shown() == branch
    assert shown(group="validation") == branch[-1:]
    assert len(shown(abandoned=True)) == 7
