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
