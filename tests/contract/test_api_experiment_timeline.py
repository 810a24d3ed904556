"""The timeline of an experiment: which trial held which slots, and when."""

from __future__ import annotations

import pytest

from testbed.stores import host
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.each_change]


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=2))
    store.hosts.add(host("b", slots=2))
    return Search(store)


def timeline(api, search, **arguments):
    return api.get(f"/experiments/{search.view.experiment_id}/timeline", **arguments)


def test_each_attempt_has_its_slots_from_grant_to_end(api, search, clock):
    first = search.start(0, slots=4)
    begun = clock.now
    clock.advance(60)
    search.submit(1, slots=2)
    found = timeline(api, search)
    (span,) = found["spans"]
    assert (found["total"], span["trial_id"], span["number"], span["attempt"]) == (1, first.trial_id, 0, 1)
    assert (span["state"], span["attempt_state"], span["ended_at"]) == ("running", "running", None)
    assert span["placement"] == {"a": [0, 1], "b": [0, 1]}
    assert span["granted_at"] == begun.isoformat().replace("+00:00", "Z")
    search.validate(first, loss=0.5)
    search.end(first)
    (ended,) = timeline(api, search)["spans"]
    assert (ended["ended_at"], ended["state"]) == (clock.now.isoformat().replace("+00:00", "Z"), "completed")
    assert ended["placement"] == span["placement"], "the slots of an ended attempt stay known"


def test_an_attempt_that_waits_has_no_slots_and_no_span(api, search):
    search.submit(0, slots=2)
    assert timeline(api, search) == {"total": 0, "spans": []}


def test_each_restart_is_a_span_of_its_own(api, search, clock):
    ticket = search.start(0, slots=2)
    clock.advance(10)
    search.draw_again(ticket)
    spans = timeline(api, search)["spans"]
    assert [(one["trial_id"], one["attempt"]) for one in spans] == [(ticket.trial_id, 1), (ticket.trial_id, 2)]
    assert spans[0]["ended_at"] <= spans[1]["granted_at"]


def test_the_latest_attempts_are_sent_when_there_are_more(api, search):
    tickets = [search.start(number, slots=1) for number in range(4)]
    found = timeline(api, search, limit=2)
    assert (found["total"], [one["trial_id"] for one in found["spans"]]) == (4, [one.trial_id for one in tickets[2:]])
    for bad in ("0", "10001", "x"):
        assert api.refusal("GET", f"/experiments/{search.view.experiment_id}/timeline", params={"limit": bad})[0] == 422


def test_a_poll_without_a_change_costs_no_answer(api, search):
    ticket = search.start(0, slots=1)
    path = f"/experiments/{search.view.experiment_id}/timeline"
    tag = api.answer("GET", path).headers["etag"]
    assert api.answer("GET", path, headers={"If-None-Match": tag}).status_code == 304
    search.end(ticket)
    assert api.answer("GET", path, headers={"If-None-Match": tag}).status_code == 200


def test_an_answer_is_not_modified_only_while_it_is_the_same(api, search, clock):
    first, second = search.submit(0, slots=4), search.submit(1, slots=4)
    store, path = search.store, f"/experiments/{search.view.experiment_id}/timeline"
    again = []

    def grant_returns():
        """The grant of one attempt returns, and another one gets its slots, in one pass."""
        store.queue.schedule(search.pool)
        clock.advance(61)
        store.queue.renew(second.attempt_id, store.attempts.watch(second.attempt_id, watcher="test"))
        assert store.queue.schedule(search.pool).granted == (second.allocation_id,)

    def gang_returns():
        """An attempt that runs gives its slots back, and another one starts, between two polls."""
        watch = search.watches[second.attempt_id]
        again.append(store.attempts.yield_gang(second.attempt_id, watch, reason="preempted", paused=True))
        for name in ("a", "b"):
            store.queue.release(second.attempt_id, watch, name, proof="clear")
        start(first)

    def start(ticket):
        store.queue.renew(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="test"))
        search.follow(ticket.attempt_id)

    changes = [
        grant_returns,
        lambda: search.follow(second.attempt_id),
        lambda: search.validate(second, loss=0.5),
        gang_returns,
        lambda: search.end(first),
        lambda: start(again[0]),
        lambda: search.end(again[0]),
    ]
    has_changed = []
    for change in changes:
        before = api.answer("GET", path)
        same = {"If-None-Match": before.headers["etag"]}
        assert api.answer("GET", path, headers=same).status_code == 304
        clock.advance(1)
        change()
        polled, now = api.answer("GET", path, headers=same), timeline(api, search)
        assert (before if polled.status_code == 304 else polled).json() == now
        has_changed.append(before.json() != now)
    # A grant that nothing has taken up has no span.
    assert has_changed == [False, True, True, True, True, True, True]
