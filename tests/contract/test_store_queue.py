"""Submissions, passes, grants and releases, on each database."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import (
    NotFoundError,
    StaleWatchError,
    UnplaceableError,
    UserError,
)
from airflow_provider_dtrain.store.database.tables import allocation_slots
from airflow_provider_dtrain.store.queries.experiments import experiment_detail, experiment_page
from airflow_provider_dtrain.store.queries.gangs import gang_page
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.runs import RunSelection, condition, run_page
from airflow_provider_dtrain.store.queries.trials import trial_detail, trial_page
from airflow_provider_dtrain.store.records.pages import ExperimentQuery, QueueQuery, TrialQuery
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host

FAILED = {"error": "RankFailedError", "kind": "user", "message": "it failed", "host": None, "rank": 0}


def test_the_same_key_gets_the_same_ticket(store, submit):
    store.hosts.add(host("h1"))
    assert submit("a", slots=2) == submit("a", slots=2)
    assert submit("a") != submit("a", max_tries=1)
    assert len(store.trials.list()) == 2


def test_callers_at_once_get_one_trial(store, submit):
    store.hosts.add(host("h1"))
    with ThreadPoolExecutor(8) as threads:
        tickets = list(threads.map(lambda _: submit("a", number=0), range(16)))
    assert len(set(tickets)) == 1
    assert len(store.trials.list()) == 1


def test_trials_of_one_task_group_share_their_experiment(store, submit):
    store.hosts.add(host("h1"))
    with ThreadPoolExecutor(8) as threads:
        tickets = list(threads.map(lambda n: submit(f"t{n}"), range(16)))
    assert len({ticket.experiment_id for ticket in tickets}) == 1
    assert len({ticket.trial_id for ticket in tickets}) == 16


def test_what_can_never_run_is_refused_and_leaves_nothing(store, submit):
    store.hosts.add(host("h1", 8))
    with pytest.raises(UnplaceableError, match="12 slots"):
        submit(slots=12)
    assert store.trials.list() == []
    ticket = submit(slots=12, on_unplaceable="wait")
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    assert store.queue.schedule("gpus").waiting == 1
    assert "12 slots" in store.attempts.get(ticket.attempt_id).reason
    store.queue.renew(ticket.attempt_id, watch)
    submit("other", slots=8)
    last = submit("last", slots=8)
    store.queue.schedule("gpus")
    assert never_fitting(store) == {ticket.trial_id}, "others wait for slots that are held"
    store.hosts.add(host("h2", 8))
    store.hosts.add(host("h3", 12))
    store.queue.schedule("gpus")
    assert store.attempts.get(ticket.attempt_id).allocation_state == "granted"
    assert store.attempts.get(last.attempt_id).allocation_state == "granted"
    assert never_fitting(store) == set()


def never_fitting(store: Store) -> set[int | None]:
    """Return the trials that queue, lists and filters show as such that can never run: they agree."""
    every = AllRights()
    listed = trial_page(store, every, TrialQuery()).rows
    filtered = trial_page(store, every, TrialQuery(where=condition("never_fits = true"))).rows
    shown = [
        {one.trial_id for one in gang_page(store, every, QueueQuery(limit=None)).rows if one.never_fits},
        {one.trial_id for one in listed if one.never_fits},
        {one.trial_id for one in listed if "cannot run" in one.state_text},
        {one.trial_id for one in listed if trial_detail(store, every, one.trial_id).never_fits},
        {one.trial_id for one in filtered},
        {one.trial_id for one in run_page(store, every, RunSelection()).rows if one.never_fits},
    ]
    assert all(one == shown[0] for one in shown), shown
    return shown[0]


def stuck(store: Store) -> dict[int, str | None]:
    """Return the experiments that cannot run with their reasons: list, page and filter agree."""
    every = AllRights()
    rows = experiment_page(store, every, ExperimentQuery()).rows
    listed = {one.experiment_id: one.reason for one in rows if one.never_fits}
    filtered = experiment_page(store, every, ExperimentQuery(never_fits=True))
    assert filtered.total == len(listed)
    assert {one.experiment_id for one in filtered.rows} == listed.keys()
    assert all(experiment_detail(store, every, one).reason == reason for one, reason in listed.items())
    return listed


def test_an_experiment_cannot_run_if_none_of_its_trials_can(store, submit, start):
    store.hosts.add(host("h1", 8))
    unseen = store.experiment_table.version()
    wide = [submit(experiment_name="wide", slots=12, on_unplaceable="wait") for _ in range(2)]
    mixed = submit(experiment_name="mixed", slots=12, on_unplaceable="wait")
    small = submit(experiment_name="mixed", slots=2)
    watches = {one.attempt_id: store.attempts.watch(one.attempt_id, watcher="me") for one in (*wide, mixed)}
    before = store.experiment_table.version()
    assert before != unseen
    store.queue.schedule("gpus")
    assert store.experiment_table.version() != before
    assert never_fitting(store) == {wide[0].trial_id, wide[1].trial_id, mixed.trial_id}
    assert stuck(store).keys() == {wide[0].experiment_id}, "a trial of the other one runs"
    assert "12 slots" in stuck(store)[wide[0].experiment_id]
    # The last trial that could run ends: nothing goes on until there are other hosts.
    watch = start(small)
    store.attempts.end(small.attempt_id, watch, state="completed")
    assert stuck(store).keys() == {wide[0].experiment_id, mixed.experiment_id}
    # A paused request wants no slots now, and one that has ended none at all.
    store.control.pause(mixed.trial_id, "ann")
    assert stuck(store).keys() == {wide[0].experiment_id}
    assert mixed.trial_id not in never_fitting(store)
    for one in wide:
        store.attempts.end(one.attempt_id, watches[one.attempt_id], state="errored", failure=FAILED)
    assert stuck(store) == {}
    assert never_fitting(store) == set()


def test_a_request_that_no_host_can_serve_any_more_fails_its_waiter(store, submit):
    store.hosts.add(host("h1", 8))
    store.hosts.add(host("h2", 4))
    ticket = submit(slots=8)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    store.hosts.remove("h1")
    assert store.queue.schedule("gpus").granted == ()
    assert store.attempts.get(ticket.attempt_id).unplaceable
    assert never_fitting(store) == {ticket.trial_id}
    with pytest.raises(UnplaceableError):
        store.queue.renew(ticket.attempt_id, watch)


def test_an_unknown_pool_is_an_error_that_lists_the_pools(store, submit):
    store.hosts.add(host("h1"))
    with pytest.raises(NotFoundError, match="'nope'.*Pools: gpus"):
        submit(pool="nope")


@pytest.mark.parametrize("fields", [{"slots": -1}, {"priority": 0}, {"priority": 100}, {"payload": "0" * 64}])
def test_a_submission_out_of_range_is_refused(store, submit, fields):
    store.hosts.add(host("h1"))
    with pytest.raises(UserError):
        submit(**fields)
    assert store.trials.list() == []


def test_a_grant_names_slots_token_and_run(store, submit):
    store.hosts.add(host("h1", 4))
    one, two = submit(slots=2), submit(slots=2)
    assert store.queue.schedule("gpus").granted == (one.allocation_id, two.allocation_id)
    views = [store.attempts.get(ticket.attempt_id) for ticket in (one, two)]
    assert sorted(index for view in views for index in view.placement["h1"]) == [0, 1, 2, 3]
    assert views[1].token > views[0].token
    assert views[0].run == f"{store.store_id[:8]}-t{one.trial_id}.1.{views[0].token}"
    assert views[0].held_hosts == ("h1",)


def test_a_gang_of_no_slots_holds_its_host_without_taking_slots(store, submit, start):
    store.hosts.add(host("h1", 1))
    tickets = [submit(slots=0), submit(slots=0), submit(slots=1)]
    watches = [start(ticket) for ticket in tickets]
    assert store.attempts.get(tickets[0].attempt_id).placement == {"h1": ()}
    assert store.events.ranks(tickets[0].attempt_id)[0].slot == -1
    for ticket, watch in zip(tickets, watches, strict=True):
        store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
        assert store.attempts.get(ticket.attempt_id).allocation_state == "released"


def test_a_pass_does_nothing_while_nothing_changed(store, submit, clock):
    store.hosts.add(host("h1", 1))
    submit(slots=1)
    submit(slots=1)
    assert store.queue.schedule("gpus").waiting == 1
    statements = []
    sa.event.listen(store.db.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    assert store.queue.schedule("gpus").waiting == 1
    # SQLite's own BEGIN costs no round trip.
    assert [text.split()[0] for text in statements if text != "BEGIN"] == ["SELECT"]


def test_a_waiting_request_says_why_and_where_it_stands(store, submit):
    store.hosts.add(host("h1", 2))
    first, second, third = submit(slots=2), submit(slots=2), submit(slots=1, priority=1)
    store.queue.schedule("gpus")
    views = [store.attempts.get(ticket.attempt_id) for ticket in (first, second, third)]
    assert [view.allocation_state for view in views] == ["waiting", "waiting", "granted"]
    assert [view.position for view in views] == [1, 2, None]
    assert views[0].reason
    assert [(task.trial_id, task.position) for task in store.queue_view.tasks()] == [
        (third.trial_id, None), (first.trial_id, 1), (second.trial_id, 2),
    ]  # fmt: skip


def test_a_silent_request_is_skipped_and_keeps_its_place(store, submit, clock):
    store.hosts.add(host("h1", 1))
    silent, other = submit(), submit()
    watch = store.attempts.watch(silent.attempt_id, watcher="me")
    clock.advance(61)
    store.queue.renew(other.attempt_id, store.attempts.watch(other.attempt_id, watcher="me"))
    assert store.queue.schedule("gpus").granted == (other.allocation_id,)
    assert store.attempts.get(silent.attempt_id).position == 1
    watch_other = store.attempts.get(other.attempt_id).watch
    store.attempts.end(other.attempt_id, watch_other, state="killed")
    store.queue.renew(silent.attempt_id, watch)
    assert store.queue.schedule("gpus").granted == (silent.allocation_id,)


@pytest.mark.each_change
def test_a_silent_request_that_is_renewed_makes_a_pass_due_by_itself(store, submit, clock):
    """Nothing else of the pool changes: no slot becomes free, and no time is due."""
    store.hosts.add(host("h1", 1))
    ticket = submit()
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    clock.advance(61)
    assert store.queue.schedule("gpus").granted == ()
    clock.advance(30)
    store.queue.renew(ticket.attempt_id, watch)
    assert store.queue.schedule("gpus").granted == (ticket.allocation_id,)


def test_a_grant_that_nobody_takes_up_waits_again(store, submit, clock):
    store.hosts.add(host("h1", 1))
    dead, alive = submit(), submit()
    watch = store.attempts.watch(alive.attempt_id, watcher="me")
    assert store.queue.schedule("gpus").granted == (dead.allocation_id,)
    token = store.attempts.get(dead.attempt_id).token
    clock.advance(59)
    store.queue.renew(alive.attempt_id, watch)
    clock.advance(2)
    assert store.queue.schedule("gpus").granted == (alive.allocation_id,)
    assert store.attempts.get(alive.attempt_id).token > token
    late = store.attempts.watch(dead.attempt_id, watcher="late")
    assert store.queue.take_up(dead.attempt_id, late) is None
    assert store.attempts.get(dead.attempt_id).allocation_state == "waiting"


def test_a_request_that_nobody_renews_for_a_day_is_removed(store, submit, clock):
    store.hosts.add(host("h1", 1))
    granted, forgotten = submit(), submit()
    store.queue.schedule("gpus")
    clock.advance(24 * 3600 + 1)
    store.queue.schedule("gpus")
    for ticket in (granted, forgotten):
        assert store.attempts.get(ticket.attempt_id).allocation_state == "released"
        assert store.trials.get(ticket.trial_id).state == "errored"
    assert store.queue_view.tasks() == []


def test_a_release_frees_the_slots_for_the_next(store, submit, start):
    store.hosts.add(host("h1", 2))
    first, second = submit(slots=2), submit(slots=2)
    watch = start(first)
    assert store.queue.schedule("gpus").granted == ()
    store.queue.release(first.attempt_id, watch, "h1", proof="clear")
    store.queue.release(first.attempt_id, watch, "h1", proof="clear")
    assert store.attempts.get(first.attempt_id).allocation_state == "released"
    assert store.queue.schedule("gpus").granted == (second.allocation_id,)


def test_hosts_are_released_one_by_one(store, submit, start):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    ticket, small = submit(slots=4), submit(slots=1)
    watch = start(ticket)
    store.queue.release(ticket.attempt_id, watch, "h2", proof="clear")
    view = store.attempts.get(ticket.attempt_id)
    assert (view.held_hosts, view.allocation_state) == (("h1",), "running")
    assert set(view.placement) == {"h1", "h2"}
    assert store.queue.schedule("gpus").granted == (small.allocation_id,)
    assert set(store.attempts.get(small.attempt_id).placement) == {"h2"}
    with pytest.raises(NotFoundError, match="never held slots on 'h9'"):
        store.queue.release(ticket.attempt_id, watch, "h9", proof="clear")


def test_several_hosts_are_released_at_once(store, submit, start):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    ticket = submit(slots=4)
    watch = start(ticket)
    with pytest.raises(NotFoundError, match="never held slots on 'h9'"):
        store.queue.release(ticket.attempt_id, watch, ["h1", "h9"], proof="clear")
    assert store.attempts.get(ticket.attempt_id).held_hosts == ("h1", "h2")
    store.queue.release(ticket.attempt_id, watch, ["h1", "h2"], proof="clear")
    assert store.attempts.get(ticket.attempt_id).allocation_state == "released"


def test_the_database_refuses_a_slot_that_is_held(store, submit):
    store.hosts.add(host("h1", 1))
    submit()
    ticket = submit()
    store.queue.schedule("gpus")
    row = {"allocation_id": ticket.allocation_id, "token": 99, "host": "h1", "slot": 0}
    with pytest.raises(sa.exc.IntegrityError), store.db.engine.begin() as connection:
        connection.execute(allocation_slots.insert().values(**row))


def test_a_draining_host_is_drained_when_it_holds_nothing(store, submit, start):
    store.hosts.add(host("h1", 2))
    ticket, waiting = submit(slots=1), submit(slots=1)
    watch = start(ticket)
    store.attempts.end(waiting.attempt_id, store.attempts.watch(waiting.attempt_id, watcher="me"), state="killed")
    store.hosts.set_state("h1", "draining", "maintenance")
    assert store.hosts.get("h1").state == "draining"
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    assert store.hosts.get("h1").state == "drained"
    store.hosts.set_state("h1", "ready")
    store.hosts.set_state("h1", "draining")
    assert store.hosts.get("h1").state == "drained"


def test_slots_that_are_off_or_stuck_are_not_granted(store, submit):
    store.hosts.add(host("h1", 3))
    store.hosts.set_slot_enabled("h1", 0, False)
    store.hosts.mark_slot("h1", 1, "stuck")
    ticket = submit(slots=1)
    store.queue.schedule("gpus")
    assert store.attempts.get(ticket.attempt_id).placement == {"h1": (2,)}


def test_a_stale_watch_changes_nothing(store, submit, start):
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=1)
    old = start(ticket)
    store.attempts.watch(ticket.attempt_id, watcher="another")
    before = store.attempts.get(ticket.attempt_id)
    attempt = ticket.attempt_id
    calls = [
        lambda: store.attempts.hand_over(attempt, old),
        lambda: store.queue.renew(attempt, old),
        lambda: store.queue.take_up(attempt, old),
        lambda: store.queue.put_back(attempt, old, "why"),
        lambda: store.attempts.set_plan(attempt, old, {}),
        lambda: store.attempts.set_running(attempt, old),
        lambda: store.attempts.set_stopping(attempt, old, "why"),
        lambda: store.events.commit(attempt, old, "h1", "rank0.events", 0, 5, []),
        lambda: store.events.commit_log(attempt, old, "h1", 0, 5, b"x"),
        lambda: store.queue.release(attempt, old, "h1", proof="clear"),
        lambda: store.attempts.next(attempt, old, failure=FAILED, counted=True),
        lambda: store.attempts.move_on(attempt, old, failure=FAILED, exclude_host=None),
        lambda: store.attempts.end(attempt, old, state="completed"),
    ]
    for call in calls:
        with pytest.raises(StaleWatchError):
            call()
    assert store.attempts.get(attempt) == before
    assert store.attempts.renew({attempt: old}) == set()


def _drain(url, number):
    """Submit, run passes, take up, and release, as one of several processes."""
    store = Store.open(url)
    config = store.configs.put({}, origins={})
    from airflow_provider_dtrain.store.records.trials import TrialSubmission

    for trial in range(6):
        key = TrialKey(dag_id="d", run_id="r", task_id=f"p{number}", map_index=trial)
        ticket = store.trials.submit(
            TrialSubmission(
                key=key, experiment_name="e", config_id=config.config_id, pool="gpus", slots=1 + (number + trial) % 4
            )
        )
        watch = store.attempts.watch(ticket.attempt_id, watcher=str(number))
        while not store.queue.take_up(ticket.attempt_id, watch):
            store.queue.renew(ticket.attempt_id, watch)
            store.queue.schedule("gpus")
        view = store.attempts.get(ticket.attempt_id)
        for name, slots in view.placement.items():
            held = [slot.allocation_id for slot in store.hosts.slots() if slot.host == name and slot.index in slots]
            assert held == [ticket.allocation_id] * len(slots)
            store.queue.release(ticket.attempt_id, watch, name, proof="clear")
        store.attempts.end(ticket.attempt_id, watch, state="completed")
    store.close()


@pytest.mark.each_change
def test_processes_that_drain_one_queue_never_share_a_slot(store, url):
    from airflow_provider_dtrain.store.database.connections import utcnow

    store.db.clock = utcnow
    store.hosts.add(host("h1", 4))
    store.hosts.add(host("h2", 4))
    processes = [multiprocessing.get_context("fork").Process(target=_drain, args=(url, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
        assert process.exitcode == 0
    trials = store.trials.list()
    assert [trial.state for trial in trials] == ["completed"] * 24
    with store.db.engine.connect() as connection:
        rows = connection.execute(sa.select(allocation_slots)).all()
    tokens = {row.allocation_id: row.token for row in rows}
    assert len(set(tokens.values())) == 24
    assert all(row.released_at for row in rows)


def test_a_restored_store_can_raise_its_token(store, submit):
    store.hosts.add(host("h1"))
    assert store.queue.raise_token(100) == 100
    assert store.queue.raise_token(50) == 100
    ticket = submit()
    store.queue.schedule("gpus")
    assert store.attempts.get(ticket.attempt_id).token == 101


def test_older_attempts_are_those_from_before_a_clear(store, submit, start):
    store.hosts.add(host("h1"))
    old = submit("a", max_tries=0)
    start(old)
    new = submit("a", max_tries=1)
    key = store.attempts.get(new.attempt_id).key
    assert [view.attempt_id for view in store.attempts.older(key)] == [old.attempt_id]
    assert [view.attempt_id for view in store.attempts.older(replace(key, map_index=3))] == []


def test_a_stuck_slot_makes_a_request_wait_but_not_fail(store, submit):
    store.hosts.add(host("h1", 8))
    store.hosts.mark_slot("h1", 3, "stuck")
    ticket = submit(slots=8)
    assert store.queue.schedule("gpus").granted == ()
    assert not store.attempts.get(ticket.attempt_id).unplaceable
    store.hosts.mark_slot("h1", 3, "ready")
    assert store.queue.schedule("gpus").granted == (ticket.allocation_id,)


def test_the_reason_for_waiting_names_who_holds_the_slots(store, submit):
    store.hosts.add(host("h1", 2))
    first = submit(slots=2)
    store.queue.schedule("gpus")
    second = submit(slots=2)
    store.queue.schedule("gpus")
    assert f"trial {first.trial_id}" in store.attempts.get(second.attempt_id).reason
