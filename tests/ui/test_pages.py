"""The pages show the facts of the seeded site to every user, and users act on them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite
from tests.ui.facts import PAGES, Facts
from tests.ui.steps import WAIT_MS, act, row

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
Visits = Callable[..., Visit]


@pytest.mark.each_change("experiments-light")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("facts", PAGES, ids=[page.name for page in PAGES])
def test_a_page_shows_the_seeded_facts_and_is_accessible(
    visit: Visits, site: PagesSite, screenshot: Callable[[Visit, str], None], facts: Facts, theme: str
) -> None:
    one = visit("viewer", theme)
    page = one.open(site.address(facts.path))
    for text in facts.texts:
        expect(page.get_by_test_id("dtrain").get_by_text(text).first).to_be_visible(timeout=WAIT_MS)
    screenshot(one, f"{facts.name}-{theme}")
    assert faults(page) == []
    assert page.evaluate("window.hacked") is None, "a text of the store ran as code"


@pytest.mark.each_change
def test_an_admin_drains_and_enables_a_host_with_the_keyboard(visit: Visits, site: PagesSite) -> None:
    page = visit("admin").open("/plugin/dtrain/cluster")
    act(page, "Actions of host cpu-01", "Drain", answer="<b>swap the disk</b>")
    expect(row(page, "cpu-01")).to_contain_text("drained", timeout=WAIT_MS)
    expect(row(page, "cpu-01")).to_contain_text("<b>swap the disk</b>")
    assert site.store().hosts.get("cpu-01").state == "drained"
    act(page, "Actions of host cpu-01", "Enable")
    expect(row(page, "cpu-01")).to_contain_text("ready", timeout=WAIT_MS)


def test_a_viewer_sees_no_action_and_the_api_refuses_one(visit: Visits, site: PagesSite) -> None:
    one = visit("viewer")
    for facts in PAGES[:3]:
        page = one.open(site.address(facts.path))
        expect(page.get_by_role("button", name="Actions of")).to_have_count(0)
    token = site.server.token("viewer")
    for path in ("hosts/cpu-01/drain", "trials/1/kill", "experiments/1/kill"):
        status, answer = site.server.request("POST", f"/dtrain/api/v1/{path}", {"reason": "x"}, token=token)
        assert (status, answer["detail"]["code"]) == (403, "forbidden"), path


def test_an_address_with_filters_shows_the_same_after_a_reload(visit: Visits) -> None:
    one = visit("viewer")
    page = one.open("/plugin/dtrain/experiments?state=completed&sort=name")
    expect(page.get_by_role("row").nth(1)).to_contain_text("cifar10-asha", timeout=WAIT_MS)
    expect(page.get_by_text("resnet-asha")).to_have_count(0)
    page.reload()
    one.settle()
    expect(page.get_by_role("row").nth(1)).to_contain_text("cifar10-asha", timeout=WAIT_MS)
    expect(page.get_by_text("resnet-asha")).to_have_count(0)


def test_the_back_button_returns_to_the_former_filter(visit: Visits) -> None:
    one = visit("viewer")
    page = one.open("/plugin/dtrain/experiments")
    for chosen in ("errored", "killed"):
        page.get_by_role("combobox", name="Filter by state").click()
        page.get_by_role("option", name=chosen).click()
        page.wait_for_url(f"**/experiments?state={chosen}")
    page.go_back()
    page.wait_for_url("**/experiments?state=errored")
    expect(page.get_by_role("combobox", name="Filter by state")).to_contain_text("errored", timeout=WAIT_MS)
    page.go_back()
    page.wait_for_url("**/experiments")
    expect(page.get_by_text("14 experiments")).to_be_visible(timeout=WAIT_MS)


def test_a_chart_is_saved_as_a_picture_with_its_legend(visit: Visits, site: PagesSite) -> None:
    page = visit("viewer").open(site.address("/plugin/dtrain/experiments/{experiment cifar10-asha}"))
    chart = page.get_by_role("group", name="Chart of validation/accuracy")
    expect(chart).to_be_visible(timeout=WAIT_MS)
    shown = chart.bounding_box()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download validation/accuracy as PNG").click()
    content = waiting.value.path().read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert (waiting.value.suggested_filename, content[:8]) == ("validation_accuracy.png", b"\x89PNG\r\n\x1a\n")
    # Title and legend are above the chart.
    assert shown is not None
    assert (width > shown["width"], height > shown["height"] + 60) == (True, True)
