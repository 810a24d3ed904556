"""On a phone, pages show state, reason and best value first, and do not scroll sideways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite
from tests.ui.facts import PAGES, Facts
from tests.ui.steps import WAIT_MS

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
Visits = Callable[..., Visit]
PHONE_PX = 390
ASHA = "/plugin/dtrain/experiments/{experiment cifar10-asha}"
#: Elements at the right of the window that no box with a scroll bar of its own contains.
OUTSIDE = """() => [...document.querySelectorAll('[data-testid=dtrain] *')].filter((one) => {
    const box = one.getBoundingClientRect();
    if (box.width === 0 || box.right <= window.innerWidth + 1) return false;
    for (let above = one.parentElement; above; above = above.parentElement)
        if (getComputedStyle(above).overflowX !== 'visible') return false;
    return true;
}).map((one) => one.outerHTML.slice(0, 120))"""


@pytest.mark.each_change("queue-light", "experiment-timeline-dark")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("facts", PAGES, ids=[page.name for page in PAGES])
def test_a_page_does_not_scroll_sideways_and_is_accessible(
    visit: Visits, site: PagesSite, screenshot: Callable[[Visit, str], None], facts: Facts, theme: str
) -> None:
    one = visit("viewer", theme, width=PHONE_PX)
    page = one.open(site.address(facts.path))
    for text in facts.texts[:1]:
        # In a table, a text may be in a column that is not in the window.
        page.get_by_test_id("dtrain").get_by_text(text).first.wait_for(state="attached", timeout=WAIT_MS)
    screenshot(one, f"phone-{facts.name}-{theme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
    assert page.evaluate(OUTSIDE) == []
    assert faults(page) == []


def in_first_screen(page: Page, text: str) -> bool:
    """Return whether the first element with a text is on the screen without scrolling, in its whole width."""
    found = page.get_by_test_id("dtrain").get_by_text(text).filter(visible=True).first
    found.wait_for(timeout=WAIT_MS)
    box, size = found.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    return box["x"] + box["width"] <= size["width"] and box["y"] + box["height"] <= size["height"]


def test_state_reason_and_best_value_are_in_the_first_screen(visit: Visits, site: PagesSite) -> None:
    one = visit("viewer", width=PHONE_PX)
    for path, texts in {
        "/plugin/dtrain/queue": ("Queued", "It is paused by bob"),
        "/plugin/dtrain/queue?pool=h100": ("cannot run", "24 slots can never be granted"),
        "/plugin/dtrain/experiments": ("Completed", "accuracy 0.8834"),
        ASHA: ("Completed", "accuracy 0.8834", "6 completed, 24 stopped"),
        f"{ASHA}?tab=trials": ("Stopped", "(best)"),
        "/plugin/dtrain/trials/{trial gpt2-finetune/0}": ("Running", "16 slots on a100-02", "Best metric"),
    }.items():
        page = one.open(site.address(path))
        assert [text for text in texts if not in_first_screen(page, text)] == [], path
    expect(page.get_by_text("Request", exact=True)).to_be_hidden()
    page.get_by_text("More facts").click()
    expect(page.get_by_text("Request", exact=True)).to_be_visible()
