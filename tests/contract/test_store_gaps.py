"""Gaps in what hosts sent, and the usage of an attempt, on each database."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.store.gaps import MOST_GAPS
from testbed.stores import host

AT = 1_767_323_045.25


@pytest.fixture(autouse=True)
def _hosts(store):
    store.hosts.add(host("h1", 2))


@pytest.fixture
def followed(submit, start):
    ticket = submit()
    return ticket.attempt_id, start(ticket)


def event(kind, seq, **body):
    return {"seq": seq, "at": AT, "kind": kind, **body}


def gap(offset, size, code="corrupt", lines=1):
    body = {"offset": offset, "bytes": size, "lines": lines, "code": code, "reason": f"because of {code}"}
    return {"seq": None, "at": AT, "kind": "gap", **body}


def commit(store, followed, old, new, batch):
    return store.events.commit(*followed, "h1", "rank0.events", old, new, batch)


def gaps(store, followed):
    found = [one.body for one in store.events.of_attempt(followed[0], kinds=["gap"])]
    return [(one["code"], one["offset"], one["bytes"], one["lines"]) for one in found]


def test_a_gap_is_stored_with_its_place_and_is_no_event_for_the_follower(store, followed):
    report = event("report", 1, step=1, metrics={"loss": 1.0})
    assert commit(store, followed, 0, 100, [gap(0, 30), report, gap(80, 20)]) == [report]
    assert gaps(store, followed) == [("corrupt", 0, 30, 1), ("corrupt", 80, 20, 1)]
    assert store.events.offsets(followed[0]) == {("h1", "rank0.events"): 100}


def test_a_gap_that_continues_the_last_one_is_added_to_it(store, followed):
    for number in range(5):
        commit(store, followed, number * 10, number * 10 + 10, [gap(number * 10, 10)])
    assert gaps(store, followed) == [("corrupt", 0, 50, 5)]


def test_gaps_of_a_limit_are_one_wherever_they_are(store, followed):
    commit(store, followed, 0, 100, [gap(0, 10, "attempt_events_limit"), gap(50, 10, "attempt_events_limit", 7)])
    assert gaps(store, followed) == [("attempt_events_limit", 0, 20, 8)]


@pytest.mark.each_change
def test_very_many_gaps_share_rows(store, followed):
    marks = [gap(number * 20, 10) for number in range(3 * MOST_GAPS)]
    commit(store, followed, 0, 20 * len(marks), marks)
    found = gaps(store, followed)
    assert len(found) == MOST_GAPS
    assert sum(lines for *_, lines in found) == len(marks)


def test_a_limit_that_is_hit_is_the_reason_of_an_attempt(store, followed):
    commit(store, followed, 0, 10, [gap(0, 10)])
    assert store.attempts.get(followed[0]).reason == ""
    commit(store, followed, 10, 20, [gap(10, 10, "attempt_events_limit")])
    assert store.attempts.get(followed[0]).reason == "because of attempt_events_limit"


def test_the_usage_of_an_attempt_counts_what_its_ranks_stored(store, followed):
    batch = [event("report", n, step=n, metrics={"loss": 1.0, f"m{n}": 2.0}) for n in range(3)]
    batch += [event("validation", 4, step=4, metrics={"loss": 1.0}), event("checkpoint", 5, step=1, path="c")]
    commit(store, followed, 0, 500, [*batch, gap(500, 0, "attempt_metric_names_limit")])
    store.events.commit(*followed, "h1", "supervisor.events", 0, 90, [event("prepared", 1, port=1)])
    usage = store.events.usage(followed[0])
    assert (usage.events, usage.event_bytes) == (5, 500)
    assert (usage.reports, usage.validations, usage.checkpoints) == (3, 1, 1)
    assert usage.names == {"loss", "m0", "m1", "m2"}


def test_the_events_of_supervisors_are_counted_by_host_kind_and_rank(store, followed):
    told = [event("prepared", 1, port=1, rank="no number"), event("exit", 2, rank=0, exit_code=0)]
    told += [event("exit", 3, rank=1, exit_code=0), event("prepared", 4, port=1)]
    store.events.commit(*followed, "h1", "supervisor.events", 0, 90, [*told, gap(90, 0, "repeated")])
    commit(store, followed, 0, 50, [event("init", 1)])
    assert store.events.usage(followed[0]).of_supervisors == {
        ("h1", "prepared", None): {1, 4}, ("h1", "exit", 0): {2}, ("h1", "exit", 1): {3},
    }  # fmt: skip


def test_a_kind_of_event_is_found_once_however_often_a_rank_wrote_it(store, followed):
    commit(store, followed, 0, 500, [event("init", n) for n in range(50)] + [event("stopped", 51, step=1)])
    found = store.events.kinds_of(followed[0], ("init", "stopped", "first_step"))
    assert sorted(found) == [("h1", "rank0.events", "init"), ("h1", "rank0.events", "stopped")]
