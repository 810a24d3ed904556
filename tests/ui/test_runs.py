"""The page of runs in a browser: a filter that is typed, completed and built, groups, and a saved view."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from testbed.browser import Visit

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]


def test_a_filter_is_typed_and_built_and_saved_as_a_view(
    visit: Callable[..., Visit], screenshot: Callable[[Visit, str], None]
) -> None:
    one = visit("admin")
    page = one.open("/plugin/dtrain/runs")
    field = page.get_by_label("Filter", exact=True)
    field.click()
    field.type("accu")
    expect(page.get_by_role("button", name="metrics.accuracy", exact=True)).to_be_visible()
    field.press("ArrowDown")
    field.type(" > 0.5")
    field.press("Enter")
    expect(page).to_have_url(re.compile(re.escape("where=metrics.accuracy+%3E+0.5")))
    page.get_by_role("button", name="Build").click()
    page.get_by_role("combobox", name="Name of the condition").click()
    page.keyboard.type("params.optimizer")
    expect(page.get_by_role("option", name="params.optimizer", exact=True)).to_be_visible()
    page.keyboard.press("Enter")
    page.get_by_label("Operator of the condition").select_option("contains")
    page.get_by_label("Value of the condition").fill("ADAM")
    page.get_by_role("button", name="Add condition").click()
    expect(field).to_have_value('metrics.accuracy > 0.5 and params.optimizer ~ "ADAM"')
    page.get_by_role("combobox", name="Group by").click()
    page.keyboard.type("params.optimizer")
    expect(page.get_by_role("option", name="params.optimizer", exact=True)).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="1 group")).to_be_visible()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Save as a new view").click()
    page.get_by_role("textbox", name="Name", exact=False).last.fill("Only Adam")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("button", name="Only Adam")).to_be_visible()
    screenshot(one, "runs-view")
    # It is not shared: another user does not see it.
    other = visit("viewer").open("/plugin/dtrain/runs")
    other.get_by_role("button", name="Views").click()
    expect(other.get_by_role("menuitem", name="Save as a new view")).to_be_visible()
    expect(other.get_by_text("Only Adam")).to_have_count(0)
    page.get_by_role("button", name="Only Adam").click()
    page.get_by_role("menuitem", name="Remove the view").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_role("button", name="Views")).to_be_visible()
