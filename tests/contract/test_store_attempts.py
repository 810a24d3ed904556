"""Followers of an attempt on each database: watches, events exactly once, ends, restarts."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, StoreError
from testbed.stores import host

AT = 1_767_323_045.25
FAILED = {"error": "RankFailedError", "kind": "user", "message": "it failed", "host": None, "rank": 0}


@pytest.fixture(autouse=True)
def _hosts(store):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))


def event(kind, seq=1, **body):
    return {"seq": seq, "at": AT, "kind": kind, **body}


def test_each_follower_gets_a_higher_watch(store, submit):
    attempt = submit().attempt_id
    with ThreadPoolExecutor(4) as threads:
        watches = list(threads.map(lambda n: store.attempts.watch(attempt, watcher=str(n)), range(8)))
    assert sorted(watches) == list(range(1, 9))
    store.attempts.hand_over(attempt, 8)
    assert store.attempts.get(attempt).watcher == "handed over"
    with pytest.raises(StaleWatchError, match="must stop"):
        store.queue.renew(attempt, 8)
    with pytest.raises(NotFoundError):
        store.attempts.watch(10**6, watcher="me")


@pytest.mark.each_change
def test_renewal_says_whose_watch_is_current(store, submit, start, clock):
    store.hosts.add(host("more", 4))
    tickets = [submit() for _ in range(3)]
    watches = {ticket.attempt_id: start(ticket) for ticket in tickets}
    one, two, ended = watches
    store.attempts.end(ended, watches[ended], state="killed")
    store.attempts.watch(two, watcher="another")
    clock.advance(10)
    assert store.attempts.renew(watches) == {one}
    assert store.attempts.get(one).renewed_at == clock.now
    assert store.attempts.get(two).renewed_at < clock.now
    assert store.attempts.renew({}) == set()


def test_a_lease_that_nobody_renews_becomes_stale(store, submit, start, clock):
    ticket = submit()
    watch = start(ticket)
    clock.advance(61)
    assert [view.attempt_id for view in store.attempts.stale(60)] == [ticket.attempt_id]
    store.attempts.renew({ticket.attempt_id: watch})
    assert store.attempts.stale(60) == []


def test_events_are_committed_exactly_once(store, submit, start):
    ticket = submit()
    watch = start(ticket)
    name = store.attempts.get(ticket.attempt_id).held_hosts[0]
    batch = [event("report", 1, step=1, metrics={"loss": 0.5}), event("report", 2, step=2, metrics={"loss": 0.25})]
    arguments = (ticket.attempt_id, watch, name, "rank0.events", 0, 200, batch)
    outcomes = []

    def commit(_):
        try:
            store.events.commit(*arguments)
            outcomes.append("done")
        except StaleWatchError:
            outcomes.append("stale")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(commit, range(6)))
    assert sorted(outcomes) == ["done"] + ["stale"] * 5
    assert store.events.offsets(ticket.attempt_id) == {(name, "rank0.events"): 200}
    rows = [(row.step, row.metrics["loss"]) for row in store.metrics.of_trial(ticket.trial_id)]
    assert rows == [(1, 0.5), (2, 0.25)]
    with pytest.raises(StaleWatchError, match="is not at byte 100"):
        store.events.commit(ticket.attempt_id, watch, name, "rank0.events", 100, 300, [])


def test_an_event_that_cannot_be_stored_moves_no_offset(store, submit, start):
    ticket = submit()
    watch = start(ticket)
    with pytest.raises((StoreError, TypeError)):
        store.events.commit(ticket.attempt_id, watch, "h1", "rank0.events", 0, 9, [event("report", body=object())])
    assert store.events.offsets(ticket.attempt_id) == {}
    assert store.events.of_attempt(ticket.attempt_id) == []


@pytest.mark.each_change
def test_events_change_ranks_metrics_checkpoints_and_result(store, submit, start):
    ticket = submit(slots=2)
    watch = start(ticket)
    attempt, name = ticket.attempt_id, store.attempts.get(ticket.attempt_id).held_hosts[0]
    store.events.commit(attempt, watch, name, "supervisor.events", 0, 10, [
        event("started", ranks=[{"rank": 0, "pid": 11}, {"rank": 1, "pid": 12}]),
    ])  # fmt: skip
    store.events.commit(attempt, watch, name, "rank0.events", 0, 10, [
        event("validation", 1, step=3, metrics={"loss": math.nan, "top": math.inf, "low": -math.inf}, epoch=1),
        event("checkpoint", 2, step=3, path="checkpoints/3", size_bytes=5, sha256="ab", metrics={"loss": 0.1}),
        event("result", 3, value=[1, None]),
        event("first_step", 4),
    ])  # fmt: skip
    error = {"message": "m", "traceback": "t\0"}
    store.events.commit_log(attempt, watch, name, 0, 70_000, b"x" * 70_000)
    store.events.commit(attempt, watch, name, "supervisor.events", 10, 20, [
        event("exit", 2, rank=0, exit_code=0, error=None, log_tail="short", sent_signal=False),
        event("exit", 3, rank=1, exit_code=-9, error=error, log_tail="end é", sent_signal=True),
        event("ended", 4, reason="failed", first_failure=1),
    ])  # fmt: skip
    zero, one = store.events.ranks(attempt)
    assert (zero.pid, zero.exit_code, len(zero.log_tail)) == (11, 0, 65_536)
    assert (one.pid, one.exit_code, one.sent_signal, one.log_tail) == (12, -9, True, "end é")
    assert one.error == error
    assert one.exited_at.timestamp() == AT
    [row] = store.metrics.of_trial(ticket.trial_id, "validation")
    assert math.isnan(row.metrics["loss"])
    assert (row.metrics["top"], row.metrics["low"], row.attempt) == (math.inf, -math.inf, 1)
    assert row.epoch == 1
    assert store.metrics.of_trial(ticket.trial_id, "training") == []
    [checkpoint] = store.checkpoints.of_trial(ticket.trial_id)
    assert (checkpoint.run, checkpoint.host, checkpoint.path) == (
        store.attempts.get(attempt).run,
        name,
        "checkpoints/3",
    )
    store.checkpoints.add_copy(checkpoint.checkpoint_id, "/copies/3")
    assert store.checkpoints.of_trial(ticket.trial_id)[0].copy_url == "/copies/3"
    assert store.attempts.get(attempt).result == {"value": [1, None]}
    assert [(e.kind, e.body["rank"]) for e in store.events.of_attempt(attempt, kinds=["exit"])] == [
        ("exit", 0),
        ("exit", 1),
    ]
    assert len(store.events.of_attempt(attempt)) == 8


def test_a_host_speaks_only_for_its_own_ranks(store, submit, start):
    ticket = submit(slots=4)
    watch = start(ticket)
    attempt = ticket.attempt_id
    mine, foreign = store.events.ranks(attempt)[0], store.events.ranks(attempt)[3]
    assert mine.host != foreign.host
    lie = event("exit", rank=foreign.rank, exit_code=1, error=None, log_tail="", sent_signal=False)
    store.events.commit(attempt, watch, mine.host, "supervisor.events", 0, 10, [lie])
    assert [rank.exit_code for rank in store.events.ranks(attempt)] == [None] * 4


def test_only_rank_0_sets_the_result(store, submit, start):
    ticket = submit(slots=2)
    watch = start(ticket)
    attempt = ticket.attempt_id
    zero, one = store.events.ranks(attempt)
    store.events.commit(attempt, watch, one.host, "rank1.events", 0, 10, [event("result", value=1)])
    assert store.attempts.get(attempt).result is None
    store.events.commit(attempt, watch, zero.host, "rank0.events", 0, 10, [event("result", value=0)])
    store.events.commit(attempt, watch, one.host, "rank1.events", 10, 20, [event("result", 2, value=1)])
    assert store.attempts.get(attempt).result == {"value": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "report", "step": "7", "metrics": {}},
        {"kind": "report", "step": 2**70, "metrics": {}},
        {"kind": "validation", "step": 1, "metrics": [1]},
        {"kind": "checkpoint", "step": 1, "path": "../../etc/passwd"},
        {"kind": "checkpoint", "step": True, "path": "x"},
        {"kind": "exit", "rank": "0", "exit_code": {}},
        {"kind": "exit"},
        {"kind": "started", "ranks": 5},
        {"kind": "x" * 200, "at": 1e300},
    ],
)
def test_an_event_of_another_shape_is_kept_but_means_nothing(store, submit, start, body):
    ticket = submit()
    watch = start(ticket)
    store.events.commit(ticket.attempt_id, watch, "h1", "rank0.events", 0, 10, [{"seq": 1, "at": AT, **body}])
    assert len(store.events.of_attempt(ticket.attempt_id)) == 1
    assert store.metrics.of_trial(ticket.trial_id, rank=None) == []
    assert store.checkpoints.of_trial(ticket.trial_id) == []


def test_a_restart_keeps_the_gang_and_its_token(store, submit, start):
    ticket = submit(slots=2)
    watch = start(ticket)
    before = store.attempts.get(ticket.attempt_id)
    store.attempts.set_stopping(ticket.attempt_id, watch, "a rank failed")
    after = store.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=True)
    view = store.attempts.get(after.attempt_id)
    assert (after.allocation_id, view.token, view.placement) == (ticket.allocation_id, before.token, before.placement)
    assert (view.state, view.allocation_state, view.restarts, view.number) == ("starting", "starting", 1, 2)
    assert view.run != before.run
    assert store.events.offsets(after.attempt_id) == {}
    assert store.attempts.get(ticket.attempt_id).failure == FAILED
    new = store.attempts.watch(after.attempt_id, watcher="me")
    store.attempts.set_running(after.attempt_id, new)
    assert store.attempts.get(after.attempt_id).allocation_state == "running"
    with pytest.raises(StaleWatchError, match="continues with the gang"):
        store.queue.release(ticket.attempt_id, watch, before.held_hosts[0], proof="clear")
    with pytest.raises(ConflictError, match="at attempt 2"):
        store.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=True)


def test_a_retry_of_an_errored_trial_waits_for_a_new_gang(store, submit, start):
    ticket = submit("a", slots=2)
    watch = start(ticket)
    name = store.attempts.get(ticket.attempt_id).held_hosts[0]
    store.queue.release(ticket.attempt_id, watch, name, proof="clear")
    store.attempts.end(ticket.attempt_id, watch, state="errored", failure=FAILED)
    after = store.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=False)
    view = store.attempts.get(after.attempt_id)
    assert (view.state, view.trial_state, view.position, view.restarts) == ("waiting", "queued", 1, 0)
    assert submit("a", slots=2) == after


def test_an_end_is_repeatable_and_final(store, submit, start, clock):
    ticket = submit()
    watch = start(ticket)
    store.attempts.end(ticket.attempt_id, watch, state="completed", result={"loss": 1})
    view = store.attempts.get(ticket.attempt_id)
    assert (view.state, view.trial_state, view.result, view.ended_at) == (
        "completed",
        "completed",
        {"loss": 1},
        clock.now,
    )
    assert view.allocation_state == "expired"
    assert [found.attempt_id for found in store.attempts.unreleased()] == [ticket.attempt_id]
    store.attempts.end(ticket.attempt_id, watch, state="errored")
    assert store.trials.get(ticket.trial_id).state == "completed"
    with pytest.raises(ConflictError, match="is completed"):
        store.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=True)
    store.queue.release(ticket.attempt_id, watch, view.held_hosts[0], proof="clear")
    assert store.attempts.unreleased() == store.queue_view.tasks() == []


@pytest.mark.parametrize(
    ("state", "kind", "expected"),
    [
        ("completed", "", "completed"),
        ("stopped", "", "completed"),
        ("errored", "user", "failed"),
        ("errored", "infra", "lost"),
        ("killed", "user", "failed"),
    ],
)
def test_how_a_trial_ends_marks_its_attempt(store, submit, start, state, kind, expected):
    ticket = submit()
    watch = start(ticket)
    store.attempts.end(ticket.attempt_id, watch, state=state, failure={**FAILED, "kind": kind} if kind else None)
    assert (store.attempts.get(ticket.attempt_id).state, store.trials.get(ticket.trial_id).state) == (expected, state)


def test_a_waiting_trial_that_ends_leaves_the_queue(store, submit):
    ticket = submit()
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    infra = {**FAILED, "kind": "infra"}
    store.attempts.end(ticket.attempt_id, watch, state="errored", failure=infra)
    assert store.attempts.get(ticket.attempt_id).allocation_state == "released"
    assert store.queue.schedule("gpus").granted == ()
    granted = submit()
    store.queue.schedule("gpus")
    store.attempts.end(granted.attempt_id, store.attempts.watch(granted.attempt_id, watcher="me"), state="killed")
    assert [slot for slot in store.hosts.slots() if slot.allocation_id] == []


def test_a_kill_is_a_control_request_with_a_name(store, submit):
    ticket = submit()
    assert store.control.pending(ticket.attempt_id).kill_by is None
    store.control.kill(ticket.trial_id, "ann")
    assert store.control.pending(ticket.attempt_id).kill_by == "ann"
    assert store.trials.get(ticket.trial_id).kill_requested_by == "ann"
    with pytest.raises(NotFoundError):
        store.control.kill(10**6, "ann")


@pytest.mark.each_change
def test_trials_are_listed_newest_first_and_narrowed(store, submit, start):
    one, two = submit(), submit(experiment_name="other")
    watch = start(one)
    assert [trial.trial_id for trial in store.trials.list()] == [two.trial_id, one.trial_id]
    assert [trial.trial_id for trial in store.trials.list(state="running")] == [one.trial_id]
    assert [trial.trial_id for trial in store.trials.list(experiment_id=two.experiment_id)] == [two.trial_id]
    assert [trial.trial_id for trial in store.trials.list(limit=1)] == [two.trial_id]
    store.attempts.next(one.attempt_id, watch, failure=FAILED, counted=True)
    assert (store.trials.get(one.trial_id).attempts, store.trials.get(one.trial_id).restarts) == (2, 1)
    assert [view.number for view in store.attempts.of_trial(one.trial_id)] == [1, 2]


@pytest.mark.parametrize("epoch", [math.nan, math.inf, -1, "two", True, 10**400])
def test_an_epoch_that_is_no_number_of_at_least_0_is_unknown(store, submit, start, epoch):
    ticket = submit(slots=1)
    watch = start(ticket)
    name = store.attempts.get(ticket.attempt_id).held_hosts[0]
    store.events.commit(ticket.attempt_id, watch, name, "rank0.events", 0, 10, [
        event("report", 1, step=3, metrics={"loss": 1.0}, epoch=epoch),
    ])  # fmt: skip
    assert [row.epoch for row in store.metrics.of_trial(ticket.trial_id, "training")] == [None]
