"""Garbage collection of trials that ended long ago: deleted and kept data."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store import garbage_collection
from airflow_provider_dtrain.store.database import tables
from airflow_provider_dtrain.store.garbage_collection import KINDS
from testbed.stores import host
from tests.support.search_world import Search

DAY_S = 86_400.0


@pytest.fixture
def old_and_new(store, submit, start, clock):
    """Four trials: one ended 40 days ago, one today, one runs since 40 days, one is ended but its host is silent."""
    store.hosts.add(host("a", 8))
    for digest in "efgh":
        store.payloads.put(digest * 64, b"x" * 100)
    tickets = {}
    for name, digest in (("old", "e"), ("new", "f"), ("runs", "g"), ("silent", "h")):
        tickets[name] = submit(name, slots=1, payload=digest * 64)
        watch = start(tickets[name])
        fill(store, tickets[name], watch)
        if name in ("old", "silent"):
            finish(store, tickets[name], watch, release=name == "old")
        tickets[f"{name} watch"] = watch
    clock.advance(40 * DAY_S)
    watch = store.attempts.watch(tickets["new"].attempt_id, watcher="again")
    finish(store, tickets["new"], watch, release=True)
    return tickets


def fill(store, ticket, watch):
    batch = [
        {"seq": n, "at": 1.7e9, "kind": "report", "step": n, "metrics": {"loss": 0.5}} for n in range(3)
    ] + [
        {"seq": 9, "at": 1.7e9, "kind": "checkpoint", "step": 2, "path": "checkpoints/2"},
        {"seq": 10, "at": 1.7e9, "kind": "weights", "step": 2, "digest": "ab" * 32, "tensors": "0" * 8},
    ]  # fmt: skip
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 99, batch)
    store.events.commit_log(ticket.attempt_id, watch, "a", 0, 5, b"tail of the log")


def finish(store, ticket, watch, *, release):
    store.attempts.end(ticket.attempt_id, watch, state="completed", result={"value": 1})
    if release:
        store.queue.release(ticket.attempt_id, watch, "a", proof="clear")


def counts(store):
    with store.db.engine.connect() as connection:
        names = ("trials", "attempts", "metrics", "checkpoints", "events", "streams", "payloads", "audit", "ranks")
        return {
            name: connection.scalar(sa.select(sa.func.count()).select_from(tables.metadata.tables[name]))
            for name in names
        }


def removed(store, cutoff):
    found = {kind.name: 0 for kind in KINDS}
    for one in store.retention.remove(cutoff):
        found[one.kind] += one.count
    return found


@pytest.mark.each_change
def test_what_belongs_to_a_trial_that_ended_long_ago_goes_and_its_results_stay(store, clock, old_and_new):
    before, cutoff = counts(store), clock.now - timedelta(days=30)
    would = {one.kind: (one.count, one.size_bytes) for one in store.retention.count(cutoff)}
    assert counts(store) == before
    found = removed(store, cutoff)
    assert {kind: count for kind, (count, _) in would.items()} == found
    assert (found["events"], found["offsets"], found["log tails"], found["launch plans"]) == (4, 2, 1, 1)
    assert would["payloads"] == (2, 200)
    assert would["log tails"][1] == len(b"tail of the log")
    after = counts(store)
    same = ("trials", "attempts", "metrics", "checkpoints", "ranks")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    old = old_and_new["old"]
    assert store.trials.get(old.trial_id).result == {"value": 1}
    assert len(store.metrics.of_trial(old.trial_id)) == 3
    # The weights of a trial can be compared for as long as the trial is known.
    assert [one.kind for one in store.events.of_attempt(old.attempt_id)] == ["weights"]
    assert store.events.ranks(old.attempt_id)[0].log_tail == ""
    assert removed(store, cutoff) == dict.fromkeys(found, 0)


@pytest.mark.each_change
def test_nothing_live_recent_or_unconfirmed_is_touched(store, clock, old_and_new):
    removed(store, clock.now - timedelta(days=30))
    for name, digest in (("new", "f"), ("runs", "g"), ("silent", "h")):
        attempt_id = old_and_new[name].attempt_id
        assert len(store.events.of_attempt(attempt_id)) == 5
        assert store.events.offsets(attempt_id)[("a", "rank0.events")] == 99
        assert store.events.ranks(attempt_id)[0].log_tail == "tail of the log"
        assert store.attempts.get(attempt_id).plan is not None
        assert store.payloads.has(digest * 64) is (name != "silent")
    assert not store.payloads.has("e" * 64)
    # The follower of the running trial continues at its offset.
    watch = store.attempts.watch(old_and_new["runs"].attempt_id, watcher="again")
    store.events.commit(old_and_new["runs"].attempt_id, watch, "a", "rank0.events", 99, 120, [])


def test_the_rungs_of_an_experiment_go_once_all_of_it_is_over(store, clock):
    store.hosts.add(host("a", 8))
    over, lasts = Search(store), Search(store, run="s")
    for search in (over, lasts):
        search.plan(max_trials=1 if search is over else 2)
        ticket = search.start(0)
        search.ask(ticket, 1, 0.5)
        search.validate(ticket, loss=0.5)
        search.end(ticket, "stopped")
    clock.advance(40 * DAY_S)
    found, cutoff = {}, clock.now - timedelta(days=30)
    assert {kind.kind: kind.count for kind in store.retention.count(cutoff)}["rung entries"] == 2
    for kind in store.retention.remove(cutoff):
        found[kind.kind] = found.get(kind.kind, 0) + kind.count
    assert found["rung entries"] == 2
    assert (over.entries(), len(lasts.entries())) == ([], 2)
    assert store.searches.best_trial(over.view.search_id).best_metric == 0.5
    assert store.searches.get(over.view.search_id) == over.view


def test_a_trial_that_goes_on_after_a_removal_gets_its_code_again(store, submit, start, clock):
    store.hosts.add(host("a", 8))
    store.payloads.put("e" * 64, b"code")
    ticket = submit("late", slots=1, payload="e" * 64)
    watch, failure = start(ticket), {"error": "HostLostError", "kind": "infra", "message": "lost"}
    store.attempts.end(ticket.attempt_id, watch, state="errored", failure=failure)
    store.queue.release(ticket.attempt_id, watch, "a", proof="clear")
    clock.advance(40 * DAY_S)
    assert removed(store, clock.now - timedelta(days=30))["payloads"] == 1
    assert store.attempts.get(ticket.attempt_id).payload is None
    # As an Airflow retry does: it packs the code, submits, and begins the next attempt.
    store.payloads.put("f" * 64, b"code, maybe another")
    assert submit("late", slots=1, payload="f" * 64).trial_id == ticket.trial_id
    again = store.attempts.next(ticket.attempt_id, watch, failure=failure, counted=False)
    assert store.attempts.get(again.attempt_id).payload == "f" * 64
    submit("late", slots=1, payload="e" * 64)
    assert store.attempts.get(again.attempt_id).payload == "f" * 64, "code that is there stays"


def test_a_payload_that_somebody_is_about_to_use_stays(store, clock):
    store.payloads.put("e" * 64, b"old")
    store.payloads.put("f" * 64, b"wanted again")
    clock.advance(40 * DAY_S)
    assert store.payloads.use("f" * 64)
    assert not store.payloads.use("0" * 64)
    assert removed(store, clock.now - timedelta(days=30))["payloads"] == 1
    assert (store.payloads.has("e" * 64), store.payloads.has("f" * 64)) == (False, True)


def test_removal_goes_in_small_steps_and_old_audit_rows_go_too(store, clock, monkeypatch):
    monkeypatch.setattr(garbage_collection, "BATCH", 10)
    store.hosts.add(host("a", 1))
    for number in range(25):
        store.pools.set("gpus", reservations=number)
    clock.advance(40 * DAY_S)
    store.pools.set("gpus", reservations=3)
    steps = [one.count for one in store.retention.remove(clock.now - timedelta(days=30)) if one.kind == "audit"]
    assert steps == [10, 10, 6]
    assert counts(store)["audit"] == 1


def test_of_the_runs_that_a_host_names_only_those_nobody_needs_are_collected(store, clock, old_and_new):
    cutoff = clock.now - timedelta(days=30)
    run = {name: store.attempts.get(old_and_new[name].attempt_id).run for name in ("old", "new", "runs", "silent")}
    strange = f"{store.store_id[:8]}-t999.1.7"
    names = [*run.values(), strange, "00000000-t1.1.1", "t1.1.1", "nonsense"]
    free, kept = store.retention.collectable(names, cutoff)
    # The only copy of its checkpoint lies in the folder.
    assert (free, kept) == ([strange], [run["old"]])
    free, kept = store.retention.collectable(names, cutoff, with_checkpoints=True)
    assert (sorted(free), kept) == (sorted([strange, run["old"]]), [])
    store.retention.runs_collected("a", [run["old"]])
    assert store.checkpoints.of_trial(old_and_new["old"].trial_id) == []
    assert len(store.checkpoints.of_trial(old_and_new["old"].trial_id, removed=True)) == 1
    assert len(store.checkpoints.of_trial(old_and_new["new"].trial_id)) == 1
    assert store.retention.collectable(names, cutoff)[0] == sorted([strange, run["old"]])


def test_code_and_libraries_of_trials_of_the_present_are_needed(store, clock, old_and_new):
    ticket = old_and_new["runs"]
    watch = store.attempts.watch(ticket.attempt_id, watcher="again")
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"a": {"library": "9" * 64, "ranks": []}}})
    needed = store.retention.needed_archives(clock.now - timedelta(days=30))
    assert needed == {"f" * 64, "g" * 64, "9" * 64}
