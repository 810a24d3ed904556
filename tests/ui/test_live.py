"""Pages follow a trial that trains, without a reload."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from airflow_provider_dtrain.store.store import Store
from testbed.browser import Visit
from testbed.pages_site import PagesSite
from testbed.seed.live import NAME
from testbed.standalone import wait_until
from tests.ui.steps import WAIT_MS

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
#: Longest time from a row of the store to the page.
BEHIND_S = 2.0
SAMPLES = 5
CHART = "training/loss"
#: Latest step in the table of the chart.
_SHOWN = f"""
() => {{
  const cell = document.querySelector('[aria-label="{CHART} as a table"] tbody tr td:last-child');
  return cell === null ? 0 : Number(cell.textContent.replaceAll(',', ''));
}}
"""


def test_a_curve_grows_within_two_seconds_of_the_report(visit: Callable[..., Visit], site: PagesSite) -> None:
    address = f"/plugin/dtrain/experiments/{{experiment {NAME}}}?metric={quote(CHART, safe='')}"
    page = visit("viewer").open(site.address(address))
    page.get_by_role("group", name=f"View of {CHART}").get_by_role("button", name="Table").click()
    store = site.store()
    delays = [_delay_s(page, store) for _ in range(SAMPLES)]
    store.close()
    assert statistics.median(delays) < BEHIND_S, delays


def _delay_s(page: Page, store: Store) -> float:
    """Return the time from a report in the store to its appearance on the page."""
    before = _reported(store)
    step = wait_until(lambda: (now := _reported(store)) > before and now, timeout_s=30, what="a report", poll_s=0.02)
    began = time.monotonic()
    page.wait_for_function(f"step => ({_SHOWN})() >= step", arg=step, polling=20, timeout=WAIT_MS)
    return time.monotonic() - began


def _reported(store: Store) -> int:
    (experiment,) = store.experiments.list(name=NAME)
    (trial,) = store.trials.list(experiment_id=experiment.experiment_id)
    return store.trial_table.some([trial.trial_id])[0].units or 0
