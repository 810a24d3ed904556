"""Deadlines of draining hosts in the store, read by the followers of the gangs there. The clock is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.control import Deadline
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind
from airflow_provider_dtrain.engine.upkeep import maintenance
from airflow_provider_dtrain.engine.upkeep.evacuation import effects, evacuate
from airflow_provider_dtrain.store.records.trials import HostRecord, Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.contract.gang_world import begin, hold
from tests.support.store_world import Clock

Submit = Callable[..., Ticket]
Start = Callable[[Ticket], int]


@pytest.fixture
def two_hosts(store: Store) -> list[HostRecord]:
    for name in ("a", "b"):
        store.hosts.add(host(name, 1))
    return store.hosts.list()


def host_of(store: Store, ticket: Ticket) -> str:
    (name,) = store.attempts.get(ticket.attempt_id).held_hosts
    return name


def due(store: Store, ticket: Ticket) -> str | None:
    drain = store.control.pending(ticket.attempt_id).evacuation.due(store.db.now())
    return None if drain is None else drain.cause


def evacuated(store: Store, ticket: Ticket) -> TimelineEntry:
    (entry,) = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind == TimelineKind.EVACUATED]
    return entry


def drain(store: Store, name: str, after_s: float, *, kills: bool = False, reason: str = "fan") -> datetime:
    by = store.db.now() + timedelta(seconds=after_s)
    store.hosts.drain(name, reason, deadline=by, kills=kills, by="ann")
    return by


def test_a_gang_that_can_resume_is_asked_before_the_deadline_by_its_margin(
    store: Store, clock: Clock, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    ticket = submit(preemptible=True)
    watch = start(ticket)
    name = host_of(store, ticket)
    drain(store, name, 7200)
    assert due(store, ticket) is None
    clock.advance(3599)
    assert due(store, ticket) is None
    clock.advance(1)
    assert due(store, ticket) == f"evacuated from {name}: fan", "preemption_timeout is 3600 s"
    store.attempts.set_cost(ticket.attempt_id, watch, 100.0)
    assert due(store, ticket) is None, "twice what the last stop and start took suffices"
    clock.advance(3400)
    assert due(store, ticket) is not None


def test_a_deadline_that_has_passed_is_at_once_and_only_for_gangs_of_the_host(
    store: Store, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    tickets = [submit(preemptible=True) for _ in two_hosts]
    for ticket in tickets:
        start(ticket)
    first, second = tickets
    drain(store, host_of(store, first), 0)
    assert due(store, first) is not None
    assert due(store, second) is None


def test_a_gang_that_cannot_resume_stays_unless_it_is_to_be_killed_at_the_deadline(
    store: Store, clock: Clock, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    ticket = submit()
    start(ticket)
    name = host_of(store, ticket)
    drain(store, name, 60)
    clock.advance(3600)
    assert due(store, ticket) is None
    drain(store, name, 60, kills=True)
    clock.advance(59)
    assert due(store, ticket) is None, "not before the deadline: it may end by itself"
    clock.advance(1)
    assert due(store, ticket) is not None


def test_enabling_a_host_takes_its_deadline_back(
    store: Store, clock: Clock, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    ticket = submit(preemptible=True)
    start(ticket)
    name = host_of(store, ticket)
    drain(store, name, 60)
    store.hosts.set_state(name, HostState.READY, by="ann")
    clock.advance(7200)
    assert due(store, ticket) is None
    assert store.hosts.get(name).drain_by is None
    drain(store, name, 0)
    store.hosts.set_state(name, HostState.DRAINING, "let them finish", by="ann")
    assert due(store, ticket) is None, "a drain without a deadline replaces it"


def test_a_gang_over_two_hosts_leaves_for_the_earlier_deadline(
    store: Store, clock: Clock, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    ticket = submit(slots=2, preemptible=True)
    start(ticket)
    drain(store, "b", 7200)
    assert due(store, ticket) is None
    drain(store, "a", 0)
    assert due(store, ticket) == "evacuated from a: fan"
    store.hosts.set_state("a", HostState.READY)
    assert due(store, ticket) is None
    clock.advance(3600)
    assert due(store, ticket) == "evacuated from b: fan"


def test_the_trial_resumes_on_the_other_host_and_the_timeline_has_the_cost(
    store: Store, clock: Clock, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    ticket = submit(preemptible=True)
    watch = start(ticket)
    left = host_of(store, ticket)
    (other,) = {"a", "b"} - {left}
    drain(store, left, 0)
    cause = due(store, ticket)
    assert cause is not None
    for _ in range(2):
        store.attempts.set_stopping(ticket.attempt_id, watch, cause, evacuated_from=left)
    assert evacuated(store, ticket).text == f"Evacuated from {left}: fan: asked to save and to release its slots."
    clock.advance(4)
    again = store.attempts.yield_gang(ticket.attempt_id, watch, reason=cause, paused=False, left_at=812)
    assert "not resumed yet; lost work 812 steps" in evacuated(store, ticket).text
    assert store.hosts.get(left).state == "draining"
    store.queue.release(ticket.attempt_id, watch, left, proof="clear")
    assert store.hosts.get(left).state == "drained"
    start(again)
    assert host_of(store, again) == other
    assert evacuated(store, ticket).host == left


def test_no_other_host_is_free_so_the_trial_waits_in_its_place_until_the_host_is_enabled(
    store: Store, submit: Submit, start: Start
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit(preemptible=True)
    watch = start(ticket)
    drain(store, "a", 0)
    again = store.attempts.yield_gang(ticket.attempt_id, watch, reason="evacuated from a", paused=False)
    store.queue.release(ticket.attempt_id, watch, "a", proof="clear")
    later = submit(preemptible=True)
    store.queue.schedule("gpus")
    for waiting in (again, later):
        view = store.attempts.get(waiting.attempt_id)
        assert (view.state, view.unplaceable) == ("waiting", False)
    store.hosts.set_state("a", HostState.READY)
    assert store.queue.schedule("gpus").granted == (store.attempts.get(again.attempt_id).allocation_id,)


def test_a_grant_that_no_follower_has_taken_up_goes_back_to_the_queue(
    store: Store, two_hosts: list[HostRecord], submit: Submit
) -> None:
    ticket = submit(preemptible=True)
    store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.schedule("gpus")
    left = host_of(store, ticket)
    drain(store, left, 0)
    assert store.hosts.get(left).state == "drained"
    store.queue.schedule("gpus")
    assert host_of(store, ticket) != left


def test_the_answer_names_each_gang_and_what_it_does(store: Store, clock: Clock, submit: Submit, start: Start) -> None:
    store.hosts.add(host("a", 4))
    tickets = [
        submit(preemptible=True),
        submit(),
        submit(preemptible=False),
        submit(preemptible=True, max_runtime_s=60),
    ]
    for ticket in tickets:
        start(ticket)
    until = store.db.now() + timedelta(hours=2)
    saves, plain, refuses, ends = effects(store, "a", Deadline(by=until))
    name = f"Trial {tickets[0].trial_id} of '{store.trials.get(tickets[0].trial_id).experiment}'"
    asked = (until - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%SZ")
    assert saves == f"{name} saves at its next step and resumes elsewhere if it has not ended by {asked}."
    assert "cannot resume from a checkpoint: it stays until it ends" in plain
    assert "cannot resume from a checkpoint: it stays until it ends" in refuses
    assert "ends by itself until" in ends
    at_once = evacuate(store, "a", Deadline(by=store.db.now(), kills=True), "fan", "ann")
    assert at_once[0] == f"{name} saves at its next step and resumes elsewhere."
    assert [text.endswith("is ended and starts again.") for text in at_once] == [False, True, True, False]


def test_a_check_condemns_a_ready_host_and_no_other_one(
    store: Store, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    ticket = submit(preemptible=True)
    start(ticket)
    name = host_of(store, ticket)
    (other,) = {"a", "b"} - {name}
    assert store.hosts.condemn(name, "memory bandwidth 40 % below its peers", "host check")
    (effect,) = effects(store, name, Deadline(by=store.db.now()))
    assert effect.endswith("saves at its next step and resumes elsewhere.")
    assert due(store, ticket) == f"evacuated from {name}: memory bandwidth 40 % below its peers"
    assert not store.hosts.condemn(other, "slow", "host check"), "it is the last ready host of its pool"
    assert store.hosts.get(other).state == "ready"
    store.hosts.set_state(name, HostState.READY, by="ann")
    store.hosts.set_state(other, HostState.DISABLED, "new fan", by="ann")
    assert not store.hosts.condemn(other, "slow", "host check")
    assert (store.hosts.get(other).state, store.hosts.get(other).state_reason) == ("disabled", "new fan")


def test_a_held_gang_is_named_and_stays(world: Store, use: Submit) -> None:
    gang = hold(world)
    ticket = use(gang)
    begin(world, ticket)
    drain(world, "gpu-01", 0, kills=True)
    assert due(world, ticket) is None
    (text,) = effects(world, "gpu-01", Deadline(by=world.db.now()))
    assert text.startswith("The gang of d/gang (allocation ")
    assert text.endswith("stays until its last task, or its DAG run, has ended.")


def test_a_maintenance_evacuates_ready_hosts_and_its_end_enables_those(
    store: Store, clock: Clock, two_hosts: list[HostRecord], submit: Submit, start: Start
) -> None:
    hook: Any = SimpleNamespace(store=store)
    ticket = submit(preemptible=True)
    start(ticket)
    name = host_of(store, ticket)
    (other,) = {"a", "b"} - {name}
    store.hosts.set_state(other, HostState.DRAINING, "mine", by="bob")
    until, now = store.db.now() + timedelta(hours=2), Deadline(by=store.db.now())
    (effect,) = maintenance.drain(hook, until, [], now, "ann", "new racks")[name]
    assert effect.endswith("saves at its next step and resumes elsewhere.")
    assert due(store, ticket) == f"evacuated from {name}: maintenance: new racks"
    assert maintenance.drain(hook, until, [], now, "ann", "again") == {}, "no host is ready"
    clock.advance(3 * 3600)
    hold = store.maintenance.get_or_over()
    assert hold is not None
    assert hold.hosts == (name,), "the later call and the end of the window keep it"
    assert maintenance.enable(hook, hold.hosts, "ann") == [name]
    assert (store.hosts.get(name).state, store.hosts.get(other).state_reason) == ("ready", "mine")
