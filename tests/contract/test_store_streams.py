"""Restarted streams, clocks of hosts, and runs that a store has forgotten, on each database."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.errors import NotFoundError, StaleWatchError, StoreSetBackError
from testbed.stores import host

AT = 1_767_323_045.25


@pytest.fixture(autouse=True)
def _hosts(store):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))


def event(kind, seq, **body):
    return {"seq": seq, "at": AT + seq, "kind": kind, **body}


FIRST = [event("init", 1), event("report", 2, step=1, metrics={"loss": 0.5}), event("report", 3, step=2, metrics={})]


@pytest.fixture
def followed(submit, start):
    ticket = submit()
    return ticket.attempt_id, start(ticket)


def commit(store, followed, old, new, batch, **how):
    return store.events.commit(*followed, "h1", "rank0.events", old, new, batch, **how)


def anew(store, followed, old_offset, epoch):
    store.events.begin_epoch(*followed, "h1", "rank0.events", old_offset, epoch, "the file has 40 bytes")


@pytest.mark.each_change
def test_a_file_that_lost_its_end_is_read_again_and_only_what_is_new_is_stored(store, followed):
    assert commit(store, followed, 0, 300, FIRST) == FIRST
    anew(store, followed, 300, 1)
    assert store.events.offsets(followed[0]) == {("h1", "rank0.events"): 0}
    assert store.events.epochs(followed[0]) == {("h1", "rank0.events"): 1}
    # The end was lost; what followed has the number of what was lost, but is something else.
    rest = [*FIRST[:2], event("ended", 3, reason="lost")]
    assert commit(store, followed, 0, 310, rest, epoch=1) == rest[2:]
    kinds = [found.kind for found in store.events.of_attempt(followed[0])]
    assert kinds == ["init", "report", "report", "gap", "ended"]
    assert [row.step for row in store.metrics.of_trial(store.attempts.get(followed[0]).trial_id)] == [1, 2]
    (gap,) = store.events.of_attempt(followed[0], kinds=["gap"])
    assert (gap.seq, gap.body["read_bytes"], gap.body["epoch"]) == (None, 300, 1)


def test_a_gap_is_marked_once(store, followed):
    commit(store, followed, 0, 300, FIRST)
    anew(store, followed, 300, 1)
    anew(store, followed, 300, 1)
    assert len(store.events.of_attempt(followed[0], kinds=["gap"])) == 1


@pytest.mark.parametrize(("old_offset", "epoch"), [(299, 1), (300, 2), (300, 0)])
def test_an_epoch_begins_only_where_the_stream_is(store, followed, old_offset, epoch):
    commit(store, followed, 0, 300, FIRST)
    with pytest.raises(StoreSetBackError, match="is not at byte"):
        anew(store, followed, old_offset, epoch)
    assert store.events.epochs(followed[0]) == {("h1", "rank0.events"): 0}


def test_a_frame_of_an_older_epoch_is_refused(store, followed):
    commit(store, followed, 0, 300, FIRST)
    anew(store, followed, 300, 1)
    for old in (0, 300):
        with pytest.raises(StoreSetBackError, match="is not at byte"):
            commit(store, followed, old, 400, FIRST)
    store.attempts.watch(followed[0], watcher="another")
    with pytest.raises(StaleWatchError):
        anew(store, followed, 0, 2)


def test_the_offset_of_a_hosts_clock_is_kept_and_is_not_the_hosts_to_say(store, followed):
    commit(store, followed, 0, 90, [event("exit", 1, rank=0, exit_code=1, clock_offset_s=7.0)], clock_offset_s=-3600.5)
    (found,) = store.events.of_attempt(followed[0], kinds=["exit"])
    assert found.body["clock_offset_s"] == -3600.5


def test_metrics_have_the_time_of_the_store_whatever_the_clock_of_their_host(store, followed):
    report = event("report", 1, step=3, metrics={"loss": 0.5})
    commit(store, followed, 0, 90, [report], clock_offset_s=3600.0)
    (row,) = store.metrics.of_trial(store.attempts.get(followed[0]).trial_id)
    assert row.at.timestamp() == pytest.approx(report["at"] - 3600.0)


def test_a_run_is_known_by_trial_attempt_and_token(store, submit, start):
    ticket = submit()
    start(ticket)
    run, host_of_run = store.attempts.get(ticket.attempt_id).run, store.attempts.get(ticket.attempt_id).held_hosts[0]
    mark, _, rest = run.rpartition("-t")
    trial, number, token = rest.split(".")
    forgotten = [
        f"{mark}-t{int(trial) + 1}.{number}.{token}",
        f"{mark}-t{trial}.{int(number) + 1}.{token}",
        f"{mark}-t{trial}.{number}.{int(token) + 1}",
    ]
    others = [
        "t1.1.1",
        f"00000000-t{trial}.{number}.{token}",
        "nonsense",
        f"{mark}-t\u00b2.1.1",
        f"{mark}-t1.1.{'9' * 19}",
    ]
    assert store.hosts.unknown_runs(host_of_run, dict.fromkeys([run, *forgotten, *others])) == forgotten
    assert store.hosts.unknown_runs(host_of_run, {}) == []
    assert store.hosts.unknown_runs("elsewhere", {run: None}) == [run], "it holds nothing there"


def test_a_run_of_another_launch_or_of_slots_that_were_released_is_unknown(store, submit, start):
    ticket = submit()
    watch = start(ticket)
    view = store.attempts.get(ticket.attempt_id)
    name, plans = view.held_hosts[0], {one: {**plan, "launch": "mine"} for one, plan in view.plan["plans"].items()}
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": plans})
    assert store.hosts.unknown_runs(name, {view.run: "mine"}) == store.hosts.unknown_runs(name, {view.run: None}) == []
    assert store.hosts.unknown_runs(name, {view.run: "another"}) == [view.run]
    store.attempts.end(ticket.attempt_id, watch, state="killed")
    assert store.hosts.unknown_runs(name, {view.run: "mine"}) == [], "its host has not confirmed its end"
    store.queue.release(ticket.attempt_id, watch, name, proof="removed")
    assert store.hosts.unknown_runs(name, {view.run: "mine"}) == [view.run]


def test_silence_counts_from_the_last_word_of_the_follower(store, submit, start, clock):
    running = submit()
    watch, waiting = start(running), submit(slots=4)
    other = store.attempts.watch(waiting.attempt_id, watcher="me")
    clock.advance(50)
    assert store.attempts.silent_for_s(running.attempt_id) == 50
    store.attempts.renew({running.attempt_id: watch})
    store.queue.renew(waiting.attempt_id, other)
    assert (store.attempts.silent_for_s(running.attempt_id), store.attempts.silent_for_s(waiting.attempt_id)) == (0, 0)
    with pytest.raises(NotFoundError):
        store.attempts.silent_for_s(10**6)


def test_hosts_with_slots_that_are_not_ready_are_found(store):
    assert store.hosts.with_blocked_slots() == []
    store.hosts.mark_slot("h2", 1, "busy_elsewhere")
    assert store.hosts.with_blocked_slots() == ["h2"]


def test_several_hosts_at_fault_are_all_left_out(store, submit, start):
    for name in ("h3", "h4"):
        store.hosts.add(host(name, 2))
    ticket = submit(slots=4)
    watch = start(ticket)
    view = store.attempts.get(ticket.attempt_id)
    first, second = sorted(view.placement)
    for name in (first, second):
        store.queue.release(ticket.attempt_id, watch, name, proof="clear")
    failure = {"error": "HostLostError", "kind": "infra", "message": "lost", "host": first, "rank": None}
    following = store.attempts.move_on(ticket.attempt_id, watch, failure=failure, exclude_host=first, also=(second,))
    assert following is not None
    store.attempts.watch(following.attempt_id, watcher="me")
    store.queue.schedule("gpus")
    assert set(store.attempts.get(following.attempt_id).placement) == {"h1", "h2", "h3", "h4"} - {first, second}
