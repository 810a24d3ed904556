"""Facts that only the timeline of a trial keeps: reasons of waits, requests of users, returned grants, first steps."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.store.database.statements import transaction
from airflow_provider_dtrain.store.queue import pass_notes
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.store.timeline import notes
from testbed.stores import host
from tests.contract import gang_world
from tests.support.store_world import Clock
from tests.support.timelines import end, kinds, only, reasons, wait


@pytest.mark.each_change
def test_each_reason_of_a_wait_has_its_span(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    first = submit(task="one")
    holder = start(first)
    waiting = submit(task="three")
    store.queue.schedule("gpus")
    wait(store, clock, 40, waiting)
    urgent = submit(task="two", priority=1)
    store.queue.schedule("gpus")
    wait(store, clock, 20, waiting, urgent)
    end(store, first, holder)
    holder = start(urgent)
    wait(store, clock, 30, waiting)
    end(store, urgent, holder)
    start(waiting)
    found = reasons(store, waiting)
    assert [length for _, length in found] == [60, 30]
    assert "held by d.one (trial 1 of e)" in found[0][0]
    assert "1 slot just granted to other requests" in found[1][0]


def test_reasons_that_change_each_second_for_days_are_few_rows() -> None:
    entry = SimpleNamespace(reason="Position 1. Reason 0.", reason_since_s=0.0, eligible_since=None, reason_entries=0)
    spans = []
    for second in range(1, 3 * 86_400):
        reason = f"Position 1. Reason {second}."
        if pass_notes._is_kept(entry, reason, second):
            spans.append((entry.reason_since_s, second))
            entry.reason_since_s, entry.reason_entries = second, entry.reason_entries + 1
        entry.reason = reason
    assert 50 < len(spans) < 110
    assert spans[0] == (0, 10)
    assert not pass_notes._is_kept(entry, entry.reason.replace("Position 1", "Position 9"), 1e9)


def test_requests_of_users_are_in_the_timeline_with_their_names(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    start(submit())
    waiting = submit()
    store.queue.schedule("gpus")
    wait(store, clock, 20, waiting)
    store.control.pause(waiting.trial_id, "ada")
    store.control.pause(waiting.trial_id, "ada")
    clock.advance(40)
    store.control.activate(waiting.trial_id, "bob")
    store.control.set("trial", waiting.trial_id, priority=7, by="cleo")
    store.control.set("trial", waiting.trial_id, priority=7, by="cleo")
    store.control.stop(waiting.trial_id, "dan")
    store.control.kill(waiting.trial_id, "eve")
    found = store.timeline.of_trial(waiting.trial_id)
    assert [(str(entry.kind), entry.detail.get("by")) for entry in found if "by" in entry.detail] == [
        ("paused", "ada"), ("activated", "bob"), ("priority_set", "cleo"), ("stop_requested", "dan"),
        ("kill_requested", "eve"),
    ]  # fmt: skip
    paused = only(found, TimelineKind.PAUSED)
    assert paused.until is not None
    assert (paused.until - paused.at).total_seconds() == 40
    assert [length for _, length in reasons(store, waiting)] == [20]


@pytest.mark.each_change
def test_a_request_to_an_experiment_is_in_the_timeline_of_each_of_its_trials(
    store: Store, submit: Callable[..., Ticket]
) -> None:
    store.hosts.add(host("a", 1))
    tickets = [submit() for _ in range(3)]
    experiment = tickets[0].experiment_id
    store.control.set("experiment", experiment, priority=3, by="ada")
    store.experiments.pause(experiment, "bob")
    late = submit()
    for ticket in tickets:
        found = store.timeline.of_trial(ticket.trial_id)
        assert only(found, TimelineKind.PRIORITY_SET).text == "User ada set the priority of its gang to 3."
        assert only(found, TimelineKind.PAUSED).detail["by"] == "bob"
    assert only(store.timeline.of_trial(late.trial_id), TimelineKind.PAUSED).detail["by"] == "bob"


def test_a_preemption_has_its_request_its_end_and_the_trial_that_wanted_the_slots(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    victim = submit(preemptible=True)
    watch = start(victim)
    for _ in range(40):
        clock.advance(50)
        store.attempts.renew({victim.attempt_id: watch})
    urgent = submit(priority=1)
    store.queue.schedule("gpus")
    clock.advance(5)
    again = store.attempts.yield_gang(victim.attempt_id, watch, reason="preempted for trial 2", paused=False)
    clock.advance(5)
    store.queue.release(victim.attempt_id, watch, "a", proof="clear")
    store.queue.schedule("gpus")
    found = store.timeline.of_trial(victim.trial_id)
    assert kinds(found) == ["submitted", "granted", "launched", "give_way", "preempted", "waited"]
    assert only(found, TimelineKind.GIVE_WAY).detail == {"for_trial": urgent.trial_id}
    assert [entry.attempt for entry in found][-2:] == [1, 2]
    assert again.attempt_number == 2


def test_returned_grants_and_excluded_hosts_keep_their_reasons(
    store: Store, clock: Clock, submit: Callable[..., Ticket]
) -> None:
    store.hosts.add(host("a", 1))
    store.hosts.add(host("b", 1))
    ticket = submit()
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.schedule("gpus")
    clock.advance(40)
    store.queue.renew(ticket.attempt_id, watch)
    store.queue.schedule("gpus")
    clock.advance(5)
    assert store.queue.take_up(ticket.attempt_id, watch)
    [name] = store.attempts.get(ticket.attempt_id).placement
    failure = {
        "error": "HostUnreachableError",
        "kind": "infra",
        "message": f"Host '{name}' does not answer.",
        "host": name,
    }
    store.queue.release(ticket.attempt_id, watch, name, proof="clear")
    store.attempts.move_on(ticket.attempt_id, watch, failure=failure, exclude_host=name)
    clock.advance(5)
    store.queue.schedule("gpus")
    found = store.timeline.of_trial(ticket.trial_id)
    grants = [entry for entry in found if entry.kind is TimelineKind.GRANTED]
    assert [entry.host for entry in grants] == [name, name, {"a": "b", "b": "a"}[name]]
    returned = [entry.text for entry in found if entry.kind is TimelineKind.RETURNED]
    assert "did not take up the grant within 30 s" in returned[0]
    assert "does not answer" in returned[1]
    excluded = only(found, TimelineKind.HOST_EXCLUDED)
    assert (excluded.host, excluded.attempt, "does not answer" in excluded.text) == (name, 1, True)


def test_the_first_step_is_stored_once_for_each_attempt_with_the_clock_of_the_host_corrected(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    watch = start(ticket)
    clock.advance(30)
    steps = [{"seq": n, "at": clock.now.timestamp() + 3600 - 10, "kind": "first_step"} for n in range(3)]
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 9, steps, clock_offset_s=3600.0)
    store.events.commit(ticket.attempt_id, watch, "a", "rank1.events", 0, 9, steps)
    step = only(store.timeline.of_trial(ticket.trial_id), TimelineKind.FIRST_STEP)
    assert (step.host, step.attempt, step.detail["after_s"]) == ("a", 1, 20.0)


def test_the_warning_of_a_host_is_in_the_timeline(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    watch = start(ticket)
    clock.advance(30)
    warning = {"seq": 3, "at": clock.now.timestamp() + 60, "kind": "warning", "text": "rank 1 is on a wrong device"}
    store.events.commit(ticket.attempt_id, watch, "a", "supervisor.events", 0, 9, [warning], clock_offset_s=60.0)
    entry = only(store.timeline.of_trial(ticket.trial_id), TimelineKind.WARNED)
    assert (entry.at, entry.host, entry.attempt) == (clock.now, "a", 1)
    assert entry.text == "Warning of host a: rank 1 is on a wrong device."


def test_a_rank_that_fails_is_named_with_its_host(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 2))
    ticket = submit(slots=2)
    watch = start(ticket)
    clock.advance(5)
    exits = [
        {"seq": 1, "at": clock.now.timestamp(), "kind": "exit", "rank": 1, "exit_code": -9},
        {"seq": 2, "at": clock.now.timestamp() + 1, "kind": "exit", "rank": 0, "exit_code": 1},
    ]
    store.events.commit(ticket.attempt_id, watch, "a", "supervisor.events", 0, 9, exits)
    failed = only(store.timeline.of_trial(ticket.trial_id), TimelineKind.RANK_FAILED)
    assert (failed.host, failed.detail) == ("a", {"rank": 1, "exit_code": -9, "ranks": 2})
    assert failed.text == "Rank 1 on a ended with signal 9. 2 ranks of the attempt ended with an error."


def test_a_trial_on_a_held_gang_waits_for_its_turn(world: Store, clock: Clock, use: Callable[..., Ticket]) -> None:
    gang = gang_world.hold(world)
    first, second = use(gang, task="one"), use(gang, task="two")
    watch = world.attempts.watch(first.attempt_id, watcher="test")
    assert world.gangs.use(first.attempt_id, watch)
    waiting = world.attempts.watch(second.attempt_id, watcher="test")
    assert world.gangs.use(second.attempt_id, waiting) is None
    clock.advance(20)
    entry = only(world.timeline.of_trial(second.trial_id), TimelineKind.WAITED)
    assert entry.text.startswith("Has waited 20 s for its turn on the gang of d.gang: it waits for trial 1")
    assert (
        only(world.timeline.of_trial(first.trial_id), TimelineKind.GRANTED).text
        == "Got its turn on the gang of d.gang."
    )


def test_repetitions_are_merged_and_a_trial_has_a_bounded_number_of_notes(
    store: Store, clock: Clock, submit: Callable[..., Ticket]
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    kind = TimelineKind.RETURNED
    with transaction(store.db.engine) as conn:
        for _ in range(1000):
            clock.advance(1)
            notes.note(conn, ticket.trial_id, kind, clock.now, message="the port is taken")
    [same] = [entry for entry in store.timeline.of_trial(ticket.trial_id) if entry.kind is kind]
    assert same.detail["times"] == 1000
    with transaction(store.db.engine) as conn:
        for number in range(3 * notes.MOST_NOTES):
            notes.note(conn, ticket.trial_id, kind, clock.now, message=f"reason {number}")
    words = [entry.detail["reason"] for entry in store.timeline.of_trial(ticket.trial_id) if entry.kind is kind]
    assert len(words) == notes.MOST_NOTES
    assert words[1] == "reason 0"
    assert words[-1] == f"reason {3 * notes.MOST_NOTES - 1}"


def test_hostile_texts_are_short_lines_in_a_timeline(
    store: Store, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    watch = start(ticket)
    message = "<script>alert(1)</script>" + "x" * 100_000 + "\nsecond line"
    failure = {"error": "RankFailedError", "kind": "user", "message": message}
    store.attempts.end(ticket.attempt_id, watch, state="errored", failure=failure)
    ended = only(store.timeline.of_trial(ticket.trial_id), TimelineKind.ENDED)
    assert len(ended.text) <= 500
    assert "\n" not in ended.text
    assert all(len(str(value)) <= 500 for value in ended.detail.values())


def test_garbage_collection_keeps_the_main_entries(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    store.hosts.add(host("a", 1))
    ticket = submit()
    store.control.set("trial", ticket.trial_id, priority=7, by="ada")
    watch = start(ticket)
    end(store, ticket, watch)
    clock.advance(1)
    assert [one.count for one in store.retention.remove(clock.now) if one.kind == "timelines"] == [1]
    assert kinds(store.timeline.of_trial(ticket.trial_id)) == ["submitted", "granted", "launched", "ended"]
