"""One's own experiments first, and actions on selected rows, on the seeded site."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]


def test_a_user_sees_own_experiments_first_and_a_link_shows_the_same_to_another_user(
    visit: Callable[..., Visit],
) -> None:
    page = visit("user").open("/plugin/dtrain/experiments")
    expect(page.get_by_role("heading", name="2 experiments")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?owner=user$"))
    page.get_by_role("group", name="Owner").get_by_role("button", name="All").click()
    expect(page.get_by_role("heading", name="14 experiments")).to_be_visible()
    other = visit("admin").open("/plugin/dtrain/experiments?owner=user")
    expect(other.get_by_role("heading", name="2 experiments")).to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_confirmation_counts_what_a_deletion_removes_and_names_what_stays(
    visit: Callable[..., Visit], site: PagesSite, theme: str, width: int
) -> None:
    one = visit("op", theme, width=width)
    page = one.open("/plugin/dtrain/experiments?owner=op")
    for box in page.get_by_role("checkbox").all():
        box.click()
    toolbar = page.get_by_role("toolbar", name="Actions on the selected experiments")
    expect(toolbar).to_contain_text("3 experiments selected")
    page.mouse.move(0, 0)
    assert faults(page) == []
    toolbar.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("2 experiments: deleted for good. Removed with them: 38 trials, ")
    expect(dialog).to_contain_text("1 experiment will stay as it is")
    assert faults(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert site.store().deletions.pending() == []


def test_selected_experiments_are_archived_and_returned(visit: Callable[..., Visit], site: PagesSite) -> None:
    page = visit("op").open("/plugin/dtrain/experiments?owner=op&state=completed")
    page.get_by_role("row", name="mnist-grid").get_by_role("checkbox").click()
    for verb, archived in (("Archive", True), ("Unarchive", False)):
        page.get_by_role("toolbar").get_by_role("button", name=verb, exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("link", name="mnist-grid")).to_have_count(0)
        (found,) = site.store().experiments.list(name="mnist-grid")
        assert found.archived is archived
        if archived:
            page.get_by_role("group", name="Archive").get_by_role("button", name="Archived", exact=True).click()
            page.get_by_role("row", name="mnist-grid").get_by_role("checkbox").click()


def test_a_viewer_selects_no_rows(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").open("/plugin/dtrain/experiments?selected=1")
    expect(page.get_by_role("link", name="mnist-grid")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("toolbar")).to_have_count(0)
