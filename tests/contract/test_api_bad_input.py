"""Input that no sane program reports: answers stay bounded, and say what is left out."""

from __future__ import annotations

import math

import pytest

from airflow_provider_dtrain.store.queries.metric_names import NAMES_MOST
from testbed.stores import host
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
#: For facts that do not depend on the database.
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    found = Search(store)
    found.plan(max_trials=4)
    return found


@SQLITE
def test_ten_thousand_metric_names_are_listed_in_part_with_their_number(api, search):
    ticket = search.start(0, slots=1)
    search.validate(ticket, **{f"metric {index}": 0.5 for index in range(10_000)})
    page = api.get(f"/trials/{ticket.trial_id}")
    assert len(page["metrics"]) == NAMES_MOST
    assert any("10,000 metric names" in words for words in page["limits"])
    assert len(api.get(f"/experiments/{search.view.experiment_id}")["metrics"]) == NAMES_MOST
    assert len(api.get(f"/trials/{ticket.trial_id}/curves")["series"]) == 20
    (one,) = api.get("/curves", metric="metric 9999", trial=ticket.trial_id)["series"]
    assert one["y"] == [0.5]


@SQLITE
def test_values_without_a_finite_number_and_clocks_that_run_backwards_are_drawn_by_step(api, search):
    ticket = search.start(0, slots=1)
    values = [0.5, math.nan, math.inf, -math.inf, 0.25]
    events = [
        {"kind": "validation", "step": step, "epoch": float(step), "at": 1e9 - 100 * step, "metrics": {"loss": value}}
        for step, value in enumerate(values, 1)
    ]
    search.commit(ticket, *events)
    for axis, x in (("batches", [1, 2, 3, 4, 5]), ("time", [0, -100, -200, -300, -400])):
        (one,) = api.get("/curves", metric="loss", trial=ticket.trial_id, x=axis)["series"]
        assert (one["x"], one["y"]) == (x, [0.5, None, None, None, 0.25])
    (of_trial,) = api.get(f"/trials/{ticket.trial_id}/curves")["series"]
    assert of_trial["y"] == [0.5, None, None, None, 0.25]
