"""A host that refuses every launch of a trial is avoided, and a host that refuses one after a restore is not."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.after_failure import MOST_REFUSALS
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.restarts import Restarts
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime
from airflow_provider_dtrain.engine.submission.submit import revive
from airflow_provider_dtrain.errors import HostError, HostRefusedError, SlotBusyError
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host

#: Failures of an attempt whose ranks ran, of kind user and infra.
USER = {"error": "RankFailedError", "kind": "user", "message": "ValueError", "host": "h1", "rank": 0}
LOST = {"error": "HostLostError", "kind": "infra", "message": "It was rebooted.", "host": "h2", "rank": None}
ANSWERS: dict[str, dict[str, Any]] = {
    "status": {"stores": {}, "runs": {}, "slots": {}},
    "fence": {"clear": True},
}
Refuse = Callable[..., Awaitable[Outcome | None]]


def refusal(name: str, code: str) -> HostError:
    words = f"Host '{name}' refused 'prepare' ({code}): That is over."
    if code == "slot_busy":
        return SlotBusyError(name, words, details={"run": "t9.9.9"})
    return HostRefusedError(name, words, code=code)


def link(record: Any, *_: Any) -> Any:
    def call(command: str, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(ANSWERS[command])
        return future

    def outputs(run: str, **_: Any) -> Any:
        raise HostRefusedError(record.name, f"There is no run {run}.", code="not_found")

    return SimpleNamespace(call=call, host=record.name, outputs=outputs)


@pytest.fixture
def refuse(store: Store, submit: Any, tmp_path: Path) -> Refuse:
    """Let a follower of its own start a trial's latest attempt, whose host refuses it."""

    async def address(record: Any) -> None:
        """Return no address, because the link needs none."""

    options = dataclasses.replace(settings(), checkpoint_dir=tmp_path)
    hook: Any = SimpleNamespace(settings=options, store=store, link=link, aaddress=address, open_link=lambda _: None)

    async def refuse_one(ticket: Ticket, code: str = "tombstone") -> Outcome | None:
        attempt_id = store.trials.get(ticket.trial_id).attempt_id
        watch = store.attempts.watch(attempt_id, watcher="triggerer on one of many")
        store.queue.schedule("gpus")
        assert store.queue.take_up(attempt_id, watch)
        view = store.attempts.get(attempt_id)
        (name,) = view.placement
        store.attempts.set_plan(attempt_id, watch, {"plans": {name: {"ranks": []}}})
        rt = Runtime(hook, store, attempt_id, watch, TaskLog(logging.getLogger("test"), None), watcher="test")
        return await AttemptRunner(rt).restarts.attempt_failed(await rt.view(), refusal(name, code))

    return refuse_one


@pytest.mark.parametrize("code", ["tombstone", "other_launch", "stale_token"])
async def test_the_only_host_that_refuses_every_launch_ends_the_trial_with_its_reason(
    store: Store, submit: Any, refuse: Refuse, code: str
) -> None:
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    for _ in range(MOST_REFUSALS - 1):
        assert await refuse(ticket, code) is None
        assert store.trials.get(ticket.trial_id).state == "queued"
    outcome = await refuse(ticket, code)
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.kind, outcome.failure.host) == ("errored", "infra", "h1")
    assert outcome.failure.message.startswith(f"Host 'h1' refused {MOST_REFUSALS} launches of this trial in a row")
    assert f"({code}): That is over." in outcome.failure.message
    assert store.trials.get(ticket.trial_id).restarts == 0
    # Airflow retries the task: the host gets one more chance.
    revive(store, dataclasses.replace(ticket, attempt_id=store.trials.get(ticket.trial_id).attempt_id))
    outcome = await refuse(ticket, code)
    assert outcome is not None
    assert outcome.state == "errored"


async def test_a_host_that_refuses_every_launch_is_left_out_while_another_can_serve_the_trial(
    store: Store, submit: Any, refuse: Refuse
) -> None:
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    assert await refuse(ticket) is None
    assert await refuse(ticket) is None
    store.queue.schedule("gpus")
    store.hosts.add(host("h2", 2))
    assert await refuse(ticket) is None
    store.queue.schedule("gpus")
    view = store.attempts.get(store.trials.get(ticket.trial_id).attempt_id)
    assert list(view.placement) == ["h2"]
    assert (view.number, view.restarts) == (MOST_REFUSALS, 0)


async def test_a_host_that_names_a_forgotten_run_without_end_is_waited_for_as_a_busy_one(
    store: Store, submit: Any, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Restarts, "_check_host", lambda *_: _names("t9.9.9"))
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    for _ in range(MOST_REFUSALS):
        assert await refuse(ticket, "slot_busy") is None
    assert store.queue.schedule("gpus").granted == (), "it is left out for a while"


async def _names(*runs: str) -> list[str]:
    return list(runs)


@pytest.mark.parametrize(("failure", "is_reset"), [(USER, True), (LOST, False)], ids=["user", "infra"])
async def test_refusals_are_counted_from_the_latest_failure_of_the_users_code(
    store: Store, submit: Any, refuse: Refuse, failure: dict[str, Any], is_reset: bool
) -> None:
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    for _ in range(MOST_REFUSALS - 1):
        assert await refuse(ticket) is None
    attempt_id = store.trials.get(ticket.trial_id).attempt_id
    watch = store.attempts.watch(attempt_id, watcher="me")
    store.queue.schedule("gpus")
    store.queue.take_up(attempt_id, watch)
    store.attempts.set_running(attempt_id, watch)
    store.queue.release(attempt_id, watch, "h1", proof="clear")
    store.attempts.next(attempt_id, watch, failure=failure, counted=False)
    assert (await refuse(ticket) is None) == is_reset
