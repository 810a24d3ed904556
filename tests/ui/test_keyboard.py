"""The Tab key reaches every action of a page, and leaves each field again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from testbed.browser import Visit
from testbed.pages_site import PagesSite
from tests.ui.facts import PAGES
from tests.ui.steps import WAIT_MS, open_dialog

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
REACHED = ("cluster", "queue", "experiments", "experiment", "trial", "editor", "compare", "experiment-hyperparameters")
#: Stops of the Tab key on the largest page.
STOPS_MOST = 600
#: Numbers the controls that the Tab key must reach. Squares and tabs share one stop, and arrow keys move within them. A
#: select of Chakra has a hidden one for forms, and arrow keys in the field of a combobox do what its button does.
_CONTROLS = """
() => {
  const visible = element => element.checkVisibility({ visibilityProperty: true }) && !element.disabled;
  const all = document.querySelectorAll('[data-testid=dtrain] :is(button, a[href], input, select, textarea)');
  const others = '.dtrain-slots, [role=tablist], [role=radiogroup], [aria-hidden=true], button[data-scope=combobox]';
  const found = [...all].filter(element => visible(element) && element.closest(others) === null);
  found.forEach((element, index) => element.setAttribute('data-control', index));
  return found.map(element => element.getAttribute('aria-label') || element.textContent || element.outerHTML);
}
"""
_FOCUSED = "() => document.activeElement.closest('[data-control]')?.getAttribute('data-control')"


@pytest.mark.parametrize("name", REACHED)
def test_the_tab_key_reaches_every_control(visit: Callable[..., Visit], site: PagesSite, name: str) -> None:
    (facts,) = (one for one in PAGES if one.name == name)
    page = visit("admin").open(site.address(facts.path))
    # The importance of hyperparameters is computed later than the rest, and the axes are then sorted by it.
    for text in facts.texts:
        page.get_by_test_id("dtrain").get_by_text(text).first.wait_for(timeout=WAIT_MS)
    names = page.evaluate(_CONTROLS)
    assert len(names) > 5
    missing = {str(number) for number in range(len(names))}
    page.get_by_test_id("dtrain").evaluate("root => { root.tabIndex = -1; root.focus(); }")
    for _ in range(STOPS_MOST):
        if not missing:
            break
        # A field for several lines takes the Tab key, until Escape.
        page.keyboard.press("Escape")
        page.keyboard.press("Tab")
        missing.discard(page.evaluate(_FOCUSED))
    assert sorted(names[int(number)] for number in missing) == []


@pytest.mark.parametrize(
    ("path", "menu", "chosen"),
    [
        ("/plugin/dtrain/cluster", "Actions of host a100-01", "Drain"),
        ("/plugin/dtrain/queue", "Actions of trial", "Change the priority"),
        ("/plugin/dtrain/experiments", "Actions of experiment", "Edit name and tags"),
    ],
)
def test_the_menu_of_a_row_is_opened_used_and_left_with_the_keyboard(
    visit: Callable[..., Visit], path: str, menu: str, chosen: str
) -> None:
    page = visit("admin").open(path)
    button = page.get_by_role("button", name=menu).first
    button.wait_for(timeout=WAIT_MS)
    name = button.get_attribute("aria-label")
    focused = "() => document.activeElement.getAttribute('aria-label')"
    button.focus()
    for _ in range(2):
        page.keyboard.press("Enter")
        items = page.get_by_role("menuitem")
        items.first.wait_for(timeout=WAIT_MS)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.locator("[role=menuitem][data-highlighted]").count() == 1
        page.keyboard.press("Escape")
        items.first.wait_for(state="hidden", timeout=WAIT_MS)
        page.wait_for_function(f"name => ({focused})() === name", arg=name, timeout=WAIT_MS)
    page.keyboard.press("Enter")
    dialog = open_dialog(page, chosen)
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden", timeout=WAIT_MS)
    page.wait_for_function(f"name => ({focused})() === name", arg=name, timeout=WAIT_MS)


def test_a_row_with_the_focus_shows_its_long_texts_side_by_side(visit: Callable[..., Visit]) -> None:
    tab = visit("viewer")
    # No gang of the scene has waited so long that its start has a bound.
    tab.page.route("**/api/v1/queue*", _with_bounds)
    page = tab.open("/plugin/dtrain/queue")
    row = page.get_by_role("row").filter(has_text="bert-distill")
    row.wait_for(timeout=WAIT_MS)
    page.get_by_role("row").nth(1).focus()
    for _ in range(int(row.get_attribute("data-index") or 0)):
        page.keyboard.press("ArrowDown")
    reason, start = (row.locator(f"[data-column={name}] [data-full]").bounding_box() for name in ("reason", "expected"))
    assert reason is not None
    assert start is not None
    assert reason["height"] > start["height"] / 2 > 10
    assert reason["x"] + reason["width"] <= start["x"], "one text covers the other"


def _with_bounds(route: Route) -> None:
    answer = route.fetch()
    if answer.status == 304:
        route.fulfill(response=answer)
        return
    document = answer.json()
    for row in document["rows"]:
        row["expected"] = "not known; may be protected in 35 h 58 min"
    route.fulfill(response=answer, json=document)


def test_the_first_change_of_the_address_keeps_the_focus_and_the_typed_text(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").open("/plugin/dtrain/experiments")
    field = page.get_by_role("textbox", name="Search names")
    field.focus()
    for length, character in enumerate("cif", 1):
        page.keyboard.type(character)
        page.wait_for_url(f"**/experiments?q={'cif'[:length]}", timeout=WAIT_MS)
    expect(field).to_be_focused()
    expect(field).to_have_value("cif")
