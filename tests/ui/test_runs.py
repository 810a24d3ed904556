"""The page of runs in a browser: a filter that is typed, completed and built, groups, and a saved view."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from testbed.accessibility import faults
from testbed.browser import Visit

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
#: A metric of many trials as curves, and a table.
CURVES = "/plugin/dtrain/runs?" + urlencode(
    {"where": "metrics.accuracy != null", "columns": "best", "chart": '["curves","metrics.accuracy",""]'}
)


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


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_the_names_of_twenty_curves_are_read_and_marked_with_the_keyboard(
    visit: Callable[..., Visit], screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(CURVES)
    names = page.get_by_role("list", name="Trials of the chart metrics.accuracy")
    expect(names.get_by_role("button")).to_have_count(20)
    # No two have the same colour and dash.
    assert len(set(names.locator("svg line").evaluate_all("lines => lines.map(one => one.outerHTML)"))) == 20
    first, second = (names.get_by_role("button").nth(index) for index in (0, 1))
    expect(first).to_have_text(re.compile(r"^Trial \d+, .*last"))
    first.focus()
    page.keyboard.press("Tab")
    expect(names.get_by_role("link").first).to_be_focused()
    page.keyboard.press("Tab")
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(first).to_have_attribute("aria-pressed", "false")
    screenshot(one, f"runs-legend-{theme}-{width}")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    trial = re.sub(r"\D", "", first.inner_text().split(",")[0])
    names.get_by_role("link").first.press("Enter")
    expect(page).to_have_url(re.compile(rf"/trials/{trial}$"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("path", "button"), [(CURVES, "best"), ("/plugin/dtrain/experiments", "Name"), ("/plugin/dtrain/queue", "Priority")]
)
def test_rows_that_await_an_answer_are_dimmed_and_keep_their_contrast(
    visit: Callable[..., Visit], screenshot: Callable[[Visit, str], None], path: str, button: str, theme: str
) -> None:
    one = visit("viewer", theme)
    page = one.open(path)
    header = page.get_by_role("columnheader").get_by_role("button", name=button, exact=True)
    expect(header).to_be_visible()
    expect(page.locator("[data-stale]")).to_have_count(0)
    # The requests for another order are never answered.
    page.route("**/dtrain/api/v1/**", lambda _: None)
    header.click()
    expect(page.locator("[data-stale]").first).to_be_visible()
    screenshot(one, f"stale-{path.split('?')[0].rsplit('/', 1)[1]}-{theme}")
    assert faults(page) == []
    page.unroute_all(behavior="ignoreErrors")
