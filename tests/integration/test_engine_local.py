"""The engine on this machine, with a real store, supervisor and ranks, without a scheduler."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import launch
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery, recover
from airflow_provider_dtrain.errors import (
    ConfigError,
    HostAuthError,
    HostUnreachableError,
    StoreUnavailableError,
    UnplaceableError,
    UnsupportedFieldError,
)
from airflow_provider_dtrain.store.configs import model_of
from tests.support.engines import Engine, config, held, processes, replace_link


async def test_a_gang_runs_to_its_end_and_its_slots_are_free(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine.hook.store.hosts.set_variables("local", {"HF_HOME": "/site/hf"})
    ticket = engine.submit(config("facts", hyperparameters={"lr": 0.5, "nested": {"depth": 3}}))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert outcome.result is not None
    plan = engine.hook.store.attempts.get(ticket.attempt_id).plan
    assert plan is not None
    assert plan["plans"]["local"]["env"]["HF_HOME"] == "/site/hf", "the variables of the host"
    assert [rank["exit_code"] for host in outcome.result["hosts"] for rank in host["ranks"]] == [0, 0]
    said = re.search(r"hparams (\{.*\})", caplog.text)
    assert said is not None
    assert json.loads(said[1]) == {"lr": 0.5, "nested": {"depth": 3}}
    assert held(engine) == []


async def test_hyperparameters_of_1_mib_reach_a_script_by_its_context(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = engine.submit(config("table"), trial={"hparams": {"table": "x" * (1 << 20)}})
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert "table 1048576 False" in caplog.text
    assert caplog.text.count("DTRAIN_HPARAMS is not set, because the hyperparameters as JSON exceed the 131,072") == 1


async def test_a_rank_that_raises_is_the_named_cause_and_the_others_end(engine: Engine) -> None:
    outcome = await engine.carry(engine.submit(config("fail 1")))
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert outcome.failure.error == "RankFailedError"
    assert outcome.failure.kind == "user"
    assert outcome.failure.message.startswith("Rank 1 on host 'local' failed first")
    assert "ValueError: rank 1 cannot go on" in outcome.failure.message
    assert processes("ranks.py fail 1") == []
    assert held(engine) == []


async def test_a_failing_trial_restarts_as_often_as_it_may(engine: Engine) -> None:
    ticket = engine.submit(config("fail 0", max_restarts=2))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "errored"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (3, 2)
    assert held(engine) == []


async def test_a_kill_ends_every_process_also_detached_grandchildren(engine: Engine) -> None:
    ticket = engine.submit(config("sleep 321"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    while len(processes("sleep 321")) < 4:
        assert not carrying.done(), carrying.result()
        await asyncio.sleep(0.05)
    assert engine.runtime is not None
    engine.runtime.kill()
    outcome = await asyncio.wait_for(carrying, 20)
    assert outcome is not None
    assert outcome.state == "killed"
    assert processes("sleep 321") == []
    assert held(engine) == []


async def test_a_kill_by_command_reaches_the_follower(engine: Engine) -> None:
    ticket = engine.submit(config("sleep 322"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    while len(processes("sleep 322")) < 4:
        assert not carrying.done(), carrying.result()
        await asyncio.sleep(0.05)
    engine.hook.store.control.kill(ticket.trial_id, by="ann")
    outcome = await asyncio.wait_for(carrying, 20)
    assert outcome is not None
    assert outcome.state == "killed"
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("The trial was killed by ann at ")
    assert outcome.failure.cause_kind == "killed_by_user"


async def test_another_process_takes_over_and_no_event_is_lost_or_repeated(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = engine.submit(config("count 40"))
    assert await engine.carry(ticket, hand_over_after_s=1.5) is None
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    numbers = [int(n) for n in re.findall(r"\[rank 0\] number (\d+)", caplog.text)]
    assert sorted(set(numbers)) == list(range(40))
    kinds = [event.kind for event in engine.hook.store.events.of_attempt(ticket.attempt_id)]
    assert kinds.count("ended") == 1
    assert kinds.count("exit") == 2


def test_a_trial_that_is_handed_over_leaves_no_traceback_in_the_log(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = engine.submit(config("count 40"))

    async def hand_over() -> Outcome | None:
        carrying = asyncio.ensure_future(engine.carry(ticket))
        async with asyncio.timeout(60):
            while "[rank 0] number" not in caplog.text:
                await asyncio.sleep(0.02)
        assert engine.runtime is not None
        engine.runtime.hand_over()
        return await carrying

    assert asyncio.run(hand_over()) is None
    # asyncio complains about an exception that nothing has retrieved when its future is freed.
    gc.collect()
    assert "never retrieved" not in caplog.text
    outcome = asyncio.run(engine.carry(ticket))
    assert outcome is not None
    assert outcome.state == "completed"


async def test_submitting_the_same_task_again_is_the_same_trial(engine: Engine) -> None:
    first = engine.submit(config("facts"), run_id="again")
    assert engine.submit(config("facts"), run_id="again").trial_id == first.trial_id
    assert (await engine.carry(first)) == (await engine.carry(first))


async def test_a_request_that_never_fits_is_refused_with_the_sizes_that_do(engine: Engine) -> None:
    with pytest.raises(UnplaceableError, match="999"):
        engine.submit(config("facts", slots=999))
    assert engine.hook.store.queue_view.tasks() == []


async def test_gangs_wait_for_each_other(engine: Engine) -> None:
    engine.hook.ensure_local()
    slots = len(engine.hook.store.hosts.slots())
    first = engine.submit(config("sleep 1", slots=slots))
    second = engine.submit(config("facts", slots=slots))
    log = TaskLog(logging.getLogger("engine"), 10**6)
    runners = [
        AttemptRunner(await take_over(engine.hook, ticket.trial_id, log, watcher="test")) for ticket in (first, second)
    ]
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(runner.run(BackgroundRecovery(runner.rt.hook)) for runner in runners)), 60
    )
    assert [outcome.state for outcome in outcomes if outcome] == ["completed", "completed"]
    views = [engine.hook.store.attempts.get(ticket.attempt_id) for ticket in (first, second)]
    assert views[0].ended_at is not None
    assert views[1].granted_at is not None
    exits = [rank.exited_at for rank in engine.hook.store.events.ranks(first.attempt_id)]
    assert all(exited_at is not None and views[1].granted_at > exited_at for exited_at in exits)


@pytest.mark.parametrize(
    ("document", "error", "words"),
    [
        (config("facts") | {"entrypont": "x"}, ConfigError, "entrypont"),
        (
            config("facts") | {"bind_mounts": [{"host_path": "/a", "container_path": "b"}]},
            UnsupportedFieldError,
            "bind_mounts",
        ),
        (config("facts") | {"model_dir": "../.."}, ConfigError, "model_dir"),
        (config("facts") | {"model_dir": "nowhere"}, ConfigError, "nowhere"),
        (config("facts") | {"environment": {"variables": {"A": "a\nb"}}}, ConfigError, "variables"),
    ],
)
async def test_bad_input_changes_nothing(engine: Engine, document: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        engine.submit(document)
    assert engine.hook.store.queue_view.tasks() == []


async def test_the_interpreter_of_the_ranks_can_be_chosen(engine: Engine) -> None:
    outcome = await engine.carry(engine.submit(config("facts", environment={"python": sys.executable})))
    assert outcome is not None
    assert outcome.state == "completed"


async def test_a_bind_mount_is_a_folder_that_the_host_has_below_both_paths(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    mount = {"host_path": str(tmp_path / "data"), "container_path": str(tmp_path / "link")}
    asked = config("facts", bind_mounts=[mount], max_restarts=0)
    outcome = await engine.carry(engine.submit(asked))
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert outcome.failure.error == "EnvironmentMissingError"
    assert outcome.failure.message.startswith(
        f"Host 'local': bind_mounts: {tmp_path}/link cannot be used: No such file"
    )
    (tmp_path / "link").symlink_to(tmp_path / "data")
    outcome = await engine.carry(engine.submit(asked))
    assert outcome is not None
    assert outcome.state == "completed"


async def test_slots_of_an_ended_gang_are_freed_once_its_host_answers_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = engine.submit(config("sleep 323"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    while len(processes("sleep 323")) < 4:
        assert not carrying.done(), carrying.result()
        await asyncio.sleep(0.05)
    assert engine.runtime is not None

    def unreachable(*_: Any) -> Any:
        raise HostUnreachableError("local", "The cable is out.")

    with monkeypatch.context() as broken:
        replace_link(broken, unreachable)
        engine.runtime.kill()
        outcome = await asyncio.wait_for(carrying, 30)
    assert outcome is not None
    assert outcome.state == "killed"
    assert len(held(engine)) == 2, "unconfirmed slots stay held"
    assert await recover(engine.hook) == ["local"]
    assert processes("sleep 323") == []
    assert held(engine) == []


async def test_an_airflow_retry_begins_the_next_attempt_after_an_infra_failure(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = engine.submit(config("facts"), run_id="retried")
    with monkeypatch.context() as broken:
        error = HostAuthError("local", "The key is of another account.")
        replace_link(broken, lambda *_: (_ for _ in ()).throw(error))
        outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.kind == "infra"
    assert held(engine) == []
    again = engine.submit(config("facts"), run_id="retried")
    assert again.trial_id == ticket.trial_id
    outcome = await engine.carry(again)
    assert outcome is not None
    assert outcome.state == "completed"


async def test_a_trial_validates_its_configuration_once(engine: Engine) -> None:
    model_of.cache_clear()
    outcome = await engine.carry(engine.submit(config("facts")))
    assert outcome is not None
    assert outcome.state == "completed"
    used = model_of.cache_info()
    assert used.misses == 1
    assert used.hits >= 2, "submission, launch and cleanup read it"


async def test_a_store_that_is_away_for_a_moment_ends_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store, refusals = engine.hook.store, iter(range(3))
    commit = store.events.commit

    def locked(*args: Any, **how: Any) -> Any:
        if next(refusals, None) is not None:
            raise StoreUnavailableError("The store refused a transaction: database is locked.")
        return commit(*args, **how)

    monkeypatch.setattr(store.events, "commit", locked)
    ticket = engine.submit(config("facts"))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert next(refusals, None) is None
    assert [event.kind for event in store.events.of_attempt(ticket.attempt_id)].count("ended") == 1


async def test_a_kill_also_ends_the_wait_for_a_host_that_does_not_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = asyncio.Event()

    def unreachable(*_: Any) -> Any:
        raise HostUnreachableError("local", "The cable is out.")

    async def cut(*_: Any) -> Any:
        replace_link(monkeypatch, unreachable)
        away.set()
        unreachable()

    monkeypatch.setattr(launch, "_prepare", cut)
    ticket = engine.submit(config("facts"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await asyncio.wait_for(away.wait(), 30)
    assert engine.runtime is not None
    engine.runtime.kill()
    outcome = await asyncio.wait_for(carrying, 20)
    assert outcome is not None
    assert outcome.state == "killed"
    assert len(held(engine)) == 2, "the host has confirmed nothing"
