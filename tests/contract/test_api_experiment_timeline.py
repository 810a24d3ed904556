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
