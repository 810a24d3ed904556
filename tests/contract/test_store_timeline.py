"""Timelines of trials: every fact with its time, attempt and host, in the order of cause and effect."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.errors import NotFoundError, StaleWatchError
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.search_world import Search
from tests.support.store_world import Clock
from tests.support.timelines import kinds, only

FAILURE = {"error": "RankFailedError", "kind": "user", "message": "ValueError: no data\nsecond line", "rank": 0}


def save(store: Store, ticket: Ticket, watch: int, *steps: int, at: float, offset_s: float = 0.0) -> None:
    """Commit checkpoints of rank 0."""
    view = store.attempts.get(ticket.attempt_id)
    name = next(iter(view.placement))
    old = store.events.offsets(ticket.attempt_id).get((name, "rank0.events"), 0)
    batch = [
        {"seq": old + number, "at": at, "kind": "checkpoint", "step": step, "path": f"checkpoints/{step}"}
        for number, step in enumerate(steps)
    ]
    store.events.commit(ticket.attempt_id, watch, name, "rank0.events", old, old + 10, batch, clock_offset_s=offset_s)


@pytest.mark.each_change
def test_a_timeline_has_what_happened_with_attempt_and_host(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 4))
    ticket = submit(slots=2)
    clock.advance(50)
    watch = start(ticket)
    granted_at = clock.now
    clock.advance(60)
    save(store, ticket, watch, 10, at=clock.now.timestamp())
    clock.advance(30)
    again = store.attempts.next(ticket.attempt_id, watch, failure=FAILURE, counted=True)
    start_again = store.attempts.watch(again.attempt_id, watcher="test")
    clock.advance(10)
    store.attempts.set_running(again.attempt_id, start_again)
    clock.advance(100)
    store.attempts.end(again.attempt_id, start_again, state="completed")
    found = store.timeline.of_trial(ticket.trial_id)
    assert kinds(found) == [
        "submitted",
        "waited",
        "granted",
        "launched",
        "checkpoint",
        "restarted",
        "launched",
        "ended",
    ]
    assert [entry.attempt for entry in found] == [None, 1, 1, 1, 1, 2, 2, 2]
    assert [entry.host for entry in found] == [None, None, "a", None, "a", None, None, None]
    assert (found[1].at, found[1].until) == (granted_at - timedelta(seconds=50), granted_at)
    assert found[2].text == "Granted 2 slots of pool 'gpus': a (0-1)."
    assert found[5].text == "Attempt 2 follows attempt 1, which failed after 2 min: ValueError: no data"
    assert found[7].text == "The trial completed after 4 min."


def test_a_launch_names_what_was_forked_and_why_the_rest_was_not(
    store: Store, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    for name in ("a", "b", "c", "d"):
        store.hosts.add(host(name, 1))
    ticket = submit(slots=4)
    watch = start(ticket)
    assert (
        only(store.timeline.of_trial(ticket.trial_id), TimelineKind.LAUNCHED).text
        == "All ranks of attempt 1 were started."
    )
    reports = {
        "a": {"forked": True, "why_executed": None},
        "b": {"forked": False, "why_executed": "the first launch of this code on this host\n\x1b[2J"},
        "c": {},
        "d": {"forked": False, "why_executed": 7},
    }
    for name, report in reports.items():
        event = {"seq": 1, "at": 0.0, "kind": "started", "ranks": [], **report}
        store.events.commit(ticket.attempt_id, watch, name, "supervisor.events", 0, 10, [event])
    assert only(store.timeline.of_trial(ticket.trial_id), TimelineKind.LAUNCHED).text == (
        "All ranks of attempt 1 were started. Forked from a warm parent on 1 of 4 host(s). "
        "Executed on 1 host(s): the first launch of this code on this host. "
        "Executed on 1 host(s): the reason is unknown."
    )


def test_builds_of_environments_are_entries_and_the_reason_of_the_attempt_until_they_end(
    store: Store, clock: Clock, submit: Callable[..., Ticket]
) -> None:
    for name in ("a", "b"):
        store.hosts.add(host(name, 2))
    ticket = submit(slots=4)
    store.queue.schedule("gpus")
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")

    def builds(name: str, message: str, **end: bool) -> str:
        store.attempts.note_build(ticket.attempt_id, watch, name, message, **end)
        return store.attempts.get(ticket.attempt_id).reason

    assert builds("a", "downloads torch: 1 of 3 packages") == (
        "Host a builds the environment: downloads torch: 1 of 3 packages"
    )
    begun = clock.now
    clock.advance(20)
    assert builds("b", "begins").endswith("1 of 3 packages (1 more host(s) build it too)")
    assert builds("a", "3 package(s) in 20 s", is_ready=True) == "Host b builds the environment: begins"
    clock.advance(10)
    assert builds("b", "No wheel of torch fits.", is_ready=False) == ""
    entries = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind is TimelineKind.ENVIRONMENT]
    assert [(one.host, one.at, one.until) for one in entries] == [
        ("a", begun, begun + timedelta(seconds=20)),
        ("b", begun + timedelta(seconds=20), begun + timedelta(seconds=30)),
    ]
    assert [one.text for one in entries] == [
        "The environment was built on a: 3 package(s) in 20 s",
        "The environment could not be built on b: No wheel of torch fits.",
    ]
    with pytest.raises(StaleWatchError):
        store.attempts.note_build(ticket.attempt_id, watch - 1, "a", "late")


def test_a_waiting_trial_has_a_wait_without_an_end(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    start(submit())
    waiting = submit()
    store.queue.schedule("gpus")
    clock.advance(30)
    wait = only(store.timeline.of_trial(waiting.trial_id), TimelineKind.WAITED)
    assert wait.until is None
    assert wait.text.startswith("Has waited 30 s: ")
    assert "held by d.task0 (trial 1 of e)" in wait.text


def test_an_unknown_trial_is_an_error_with_the_next_step(store: Store) -> None:
    with pytest.raises(NotFoundError, match="airflow dtrain trials list"):
        store.timeline.of_trial(99)


@pytest.mark.parametrize("wrong_s", [-1e6, 1e6, -1e12, 1e300])
def test_wrong_clocks_of_hosts_do_not_disturb_the_order(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int], wrong_s: float
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    watch = start(ticket)
    clock.advance(60)
    save(store, ticket, watch, 1, at=clock.now.timestamp() + wrong_s)
    save(store, ticket, watch, 2, at=clock.now.timestamp())
    clock.advance(60)
    store.attempts.end(ticket.attempt_id, watch, state="completed")
    found = store.timeline.of_trial(ticket.trial_id)
    assert kinds(found)[-4:] == ["launched", "checkpoint", "checkpoint", "ended"]
    assert [entry.detail["step"] for entry in found if entry.kind is TimelineKind.CHECKPOINT] == [1, 2]


def test_many_checkpoints_are_one_entry_between_the_first_and_the_latest(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    watch = start(ticket)
    save(store, ticket, watch, *range(500), at=clock.now.timestamp())
    found = store.timeline.of_trial(ticket.trial_id)
    steps = [entry.detail["step"] for entry in found if entry.kind is TimelineKind.CHECKPOINT]
    assert steps == [*range(20), *range(420, 500)]
    assert only(found, TimelineKind.OMITTED).text == "400 further checkpoints of this time are not shown."


def test_rungs_are_in_the_timeline_with_the_answer(store: Store) -> None:
    store.hosts.add(host("a", 8))
    search = Search(store)
    search.plan(rungs={0: (1, 4)}, max_trials=4)
    first, second = search.start(0), search.start(1)
    search.ask(first, 0, 0.1)
    search.ask(second, 0, 0.9)
    rung = only(store.timeline.of_trial(second.trial_id), TimelineKind.RUNG)
    assert rung.text == "Rung 0 (1 unit): loss 0.9, place 2 of 2, cut-off 0.1; the searcher stopped it."
