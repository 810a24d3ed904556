"""Pages of reports: the store selects what counts, by the rule of ``core.lifecycle.current_branch``."""

from __future__ import annotations

import random

import pytest

from airflow_provider_dtrain.core.lifecycle.current_branch import current_branch
from testbed.stores import host
from tests.support.search_world import Search

# The statements differ between the databases.
pytestmark = pytest.mark.each_change


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    return Search(store)


@pytest.mark.parametrize("seed", range(4))
def test_pages_have_the_reports_that_count_in_their_order(search, seed):
    draw, store = random.Random(seed), search.store
    ticket = search.start(0, slots=1, max_restarts=9)
    for _ in range(5):
        start = draw.randrange(0, 30)
        events = [
            {"kind": draw.choice(["training", "validation"]), "step": start + one, "metrics": {"loss": float(one)}}
            for one in range(draw.randrange(0, 20))
        ]
        if events:
            search.commit(ticket, *events)
        failure = {"error": "RankFailedError", "kind": "user", "message": "x"}
        ticket = store.attempts.next(
            ticket.attempt_id, search.watches[ticket.attempt_id], failure=failure, counted=True
        )
        search.follow(ticket.attempt_id)
    every = store.metrics.of_trial(ticket.trial_id)
    assert every
    for with_abandoned in (False, True):
        kept = every if with_abandoned else current_branch(every)
        for group in (None, "training", "validation"):
            wanted = [row for row in kept if group in (None, row.group)]
            for size in (3, 1000):
                found, page = [], None
                while page is None or page:
                    page = store.metrics.page(
                        ticket.trial_id, group, with_abandoned=with_abandoned, offset=len(found), limit=size
                    )
                    found += page
                assert found == wanted
            assert store.metrics.page(ticket.trial_id, group, with_abandoned=with_abandoned) == wanted


def test_builtin_metrics_are_a_group_of_their_own_beside_reported_ones_of_the_same_name(search):
    store = search.store
    ticket = search.start(0, slots=1)
    search.commit(
        ticket,
        {"kind": "report", "step": 10, "metrics": {"gradient_norm": 1.0}},
        {"kind": "builtin", "step": 10, "metrics": {"gradient_norm": 2.0, "samples_per_second": 64.0}},
        {"kind": "validation", "step": 10, "metrics": {"loss": 3.0}},
    )
    of = ticket.trial_id
    assert [row.group for row in store.metrics.of_trial(of)] == ["training", "validation"]
    assert [row.group for row in store.metrics.page(of)] == ["training", "validation"]
    assert [row.group for _, row in store.metrics.since(of, 0, limit=9)] == ["training", "validation"]
    for found in (store.metrics.of_trial(of, "builtin"), store.metrics.page(of, "builtin")):
        assert [row.metrics for row in found] == [{"gradient_norm": 2.0, "samples_per_second": 64.0}]
    known = store.curves.names([of])
    assert [f"{one.group}/{one.name}" for one in known] == [
        "validation/loss", "training/gradient_norm", "builtin/gradient_norm", "builtin/samples_per_second",
    ]  # fmt: skip
    curves = {f"{one.group}/{one.name}": one.values for one in store.curves.of_trial(of, known, points=10)}
    assert (curves["training/gradient_norm"], curves["builtin/gradient_norm"]) == ([1.0], [2.0])
    usage = store.events.usage(ticket.attempt_id)
    assert (usage.reports, usage.validations, usage.builtins) == (1, 1, 1)
    assert usage.names == {"gradient_norm", "loss"}, "its names are not of the program"


def test_a_restarted_attempt_replaces_builtin_metrics_of_the_steps_that_it_takes_again(search):
    store = search.store
    ticket = search.start(0, slots=1, max_restarts=2)
    search.commit(ticket, *({"kind": "builtin", "step": step, "metrics": {"gradient_norm": 1.0}} for step in (10, 20)))
    failure = {"error": "RankFailedError", "kind": "user", "message": "x"}
    watch = search.watches[ticket.attempt_id]
    ticket = store.attempts.next(ticket.attempt_id, watch, failure=failure, counted=True)
    search.follow(ticket.attempt_id)
    search.commit(ticket, {"kind": "builtin", "step": 15, "metrics": {"gradient_norm": 2.0}})
    (curve,) = store.curves.of_trials([ticket.trial_id], "gradient_norm", "builtin", points=10)
    assert (curve.steps, curve.values) == ([10, 15], [1.0, 2.0])
