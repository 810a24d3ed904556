"""Silent hosts, slots used by other processes, and leases held by a user. Real ranks on this machine."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import launch
from airflow_provider_dtrain.engine.session.runtime import Runtime
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.store import attempts, recovery
from tests.support.counting import DEADLINE_S, a_minute_passes, config, dead_follower, until
from tests.support.engines import Engine, held, replace_link, second

pytestmark = pytest.mark.usefixtures("quick_looks")

SHORT = timedelta(seconds=0.3)


@pytest.fixture(autouse=True)
def hosts_are_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "AWAY_FOR", SHORT)
    monkeypatch.setattr(recovery, "PROBED_AFTER", SHORT)


class Cable:
    """Connection of this process to host ``local``. When it is out, no channel is opened or used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_out, real = False, DtrainHook.link

        def link(hook: DtrainHook, record: Any, *arguments: Any) -> Any:
            if self.is_out and record.name == "local":
                raise HostUnreachableError("local", "The cable is out.")
            return real(hook, record, *arguments)

        replace_link(monkeypatch, link)


@pytest.fixture
def cable(monkeypatch: pytest.MonkeyPatch) -> Cable:
    return Cable(monkeypatch)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control side takes a silent host's run for gone after a second, and not after a quarter of an hour."""
    monkeypatch.setattr(Runtime, "lost_after_s", 1.0)


def cut_while_it_prepares(monkeypatch: pytest.MonkeyPatch, cable: Cable) -> None:
    """Pull the cable in the middle of the first launch, when hosts may have begun to prepare."""
    prepare, left = launch._prepare, iter([True])

    async def cut(job: Any, link: Any, plan: Any, context: Any) -> Any:
        if next(left, False):
            cable.is_out = True
            raise HostUnreachableError(link.host, "The cable is out.")
        return await prepare(job, link, plan, context)

    monkeypatch.setattr(launch, "_prepare", cut)


async def test_a_trial_waits_for_the_only_host_that_could_serve_it_until_that_answers(
    engine: Engine, cable: Cable
) -> None:
    cable.is_out, store = True, engine.hook.store
    ticket = engine.submit(config("library", 1))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until(lambda: store.hosts.get("local").state == "unreachable", carrying)
    await until(lambda: store.attempts.get(ticket.attempt_id).state == "waiting", carrying)
    assert held(engine) == []
    cable.is_out = False
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    trial = store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (1, 0), "nothing was started, and nothing is counted"
    assert store.hosts.get("local").state == "ready", "a probe found it"


@pytest.mark.nightly
@pytest.mark.usefixtures("impatience")
async def test_a_trial_whose_launch_was_cut_off_waits_until_its_host_has_confirmed(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_while_it_prepares(monkeypatch, cable)
    store, ticket = engine.hook.store, engine.submit(config("library", 1))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until(lambda: store.trials.get(ticket.trial_id).attempts == 2, carrying)
    assert len(held(engine)) == 2, "the host has confirmed nothing"
    cable.is_out = False
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    trial = store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_trial_goes_elsewhere_when_others_can_serve_it(engine: Engine, cable: Cable, tmp_path: Path) -> None:
    second(engine, tmp_path / "other")
    cable.is_out, store = True, engine.hook.store
    tickets = [engine.submit(config("library", 1)) for _ in range(2)]
    for ticket in tickets:
        outcome = await asyncio.wait_for(Engine(engine.hook).carry(ticket), DEADLINE_S)
        assert outcome is not None
        assert outcome.state == "completed"
    last = [store.attempts.of_trial(ticket.trial_id)[-1] for ticket in tickets]
    assert [set(view.placement) for view in last] == [{"other"}, {"other"}]


@pytest.mark.nightly
@pytest.mark.usefixtures("impatience")
async def test_a_held_lease_keeps_a_trial_from_going_elsewhere(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old host may keep the run alive for the duration of the hold, even while it is silent."""
    cut_while_it_prepares(monkeypatch, cable)
    store = engine.hook.store
    store.maintenance.set(store.db.now() + timedelta(hours=1), by="ann")
    ticket = engine.submit(config("library", 1))
    carrying = asyncio.ensure_future(engine.carry(ticket))

    def looks() -> int:
        return caplog.text.count("Waiting for local to confirm")

    await until(lambda: looks() >= 2, carrying)
    second(engine, tmp_path / "other")
    store.hosts.set_state("other", "ready")
    # The polls are half a second apart: without the hold the wait would have ended long ago.
    await until(lambda: looks() >= 8, carrying)
    assert store.trials.get(ticket.trial_id).attempts == 1
    store.maintenance.end(by="ann")
    store.maintenance.leases_shortened()
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    assert set(store.attempts.of_trial(ticket.trial_id)[-1].placement) == {"other"}
    assert len(held(engine)) == 2, "the silent host's slots are not free"


@pytest.mark.nightly
@pytest.mark.usefixtures("impatience")
async def test_recovery_gives_a_silent_host_up_as_a_follower_does_but_not_while_leases_are_held(
    engine: Engine, cable: Cable
) -> None:
    _, view = await dead_follower(engine, config("library", 100_000))
    cable.is_out, store = True, engine.hook.store
    store.maintenance.set(store.db.now() + timedelta(hours=1), by="ann")
    a_minute_passes(engine)
    look = _one_process(engine)
    for _ in range(3):
        await look()
        await asyncio.sleep(0.5)
    assert store.attempts.get(view.attempt_id).ended_at is None, "the host may keep it alive"
    store.maintenance.end(by="ann")
    store.maintenance.leases_shortened()
    await look()
    ended = store.attempts.get(view.attempt_id)
    assert ended.failure is not None
    assert (ended.failure["error"], ended.failure["kind"]) == ("HostSilentError", "infra")
    assert ended.trial_state == "errored"
    assert store.hosts.get("local").state == "lost"
    assert len(held(engine)) == 2
    cable.is_out = False
    await look()
    assert held(engine) == []
    assert store.hosts.get("local").state == "ready"


def _one_process(engine: Engine) -> Any:
    """Return the recovery of one process, which keeps its observations between calls."""
    from airflow_provider_dtrain.engine.upkeep.recovery import RecoveryPass

    return RecoveryPass(engine.hook).run


@pytest.mark.parametrize("state", ["unreachable", "lost"])
async def test_a_host_that_answers_a_probe_is_ready_again(engine: Engine, state: Any, cable: Cable) -> None:
    store = engine.hook.store
    store.hosts.set_state("local", "unreachable", "no answer")
    if state == "lost":
        store.hosts.set_state("local", "lost", "no answer")
    cable.is_out = True
    await recover(engine.hook)
    assert store.hosts.get("local").state == state
    cable.is_out = False
    await asyncio.sleep(SHORT.total_seconds())
    await recover(engine.hook)
    assert store.hosts.get("local").state == "ready"
    assert store.hosts.get("local").facts["cpu_count"] > 0


async def test_a_host_that_a_person_took_out_is_not_brought_back(engine: Engine) -> None:
    engine.hook.store.hosts.set_state("local", "disabled", "repair", by="ann")
    await recover(engine.hook)
    assert engine.hook.store.hosts.get("local").state == "disabled"


# -- slots in use elsewhere ---------------------------------------------------------------------
@pytest.fixture
def stranger(engine: Engine, tmp_path: Path) -> Iterator[Any]:
    """Another account's lock on slot 0 of the host, or without root another program's of this account."""
    engine.hook.link(engine.hook.store.hosts.get("local")).call("probe").result(30)
    path = tmp_path / "lock" / "dtrain-cpu-0.lock"
    with (path if path.parent.is_dir() else tmp_path / "state" / "slots" / "0.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.mark.nightly
async def test_a_trial_waits_for_a_slot_that_somebody_else_uses(
    engine: Engine, stranger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store, ticket = engine.hook.store, engine.submit(config("library", 1))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until(lambda: store.hosts.slots()[0].state == "busy_elsewhere", carrying)
    assert f"process {os.getpid()} (" in store.hosts.slots()[0].note or os.geteuid() != 0
    await until(lambda: store.attempts.get(ticket.attempt_id).state == "waiting", carrying)
    assert held(engine) == []
    fcntl.flock(stranger, fcntl.LOCK_UN)
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    assert [slot.state for slot in store.hosts.slots()] == ["ready", "ready"]
    assert store.trials.get(ticket.trial_id).restarts == 0


@pytest.mark.parametrize("state", ["busy_elsewhere", "stuck"])
async def test_a_slot_is_ready_again_once_nobody_has_its_lock(engine: Engine, stranger: Any, state: Any) -> None:
    store = engine.hook.store
    store.hosts.mark_slot("local", 0, state)
    await recover(engine.hook)
    assert store.hosts.slots()[0].state == state
    fcntl.flock(stranger, fcntl.LOCK_UN)
    await recover(engine.hook)
    assert store.hosts.slots()[0].state == "ready"
