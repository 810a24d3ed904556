"""The log view in a browser: search, links to lines and times, ranks side by side, the way to the charts and back."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
ENDED = "/plugin/dtrain/trials/{trial lr-too-high/0}?tab=log"
RUNNING = "/plugin/dtrain/trials/{trial gpt2-finetune/0}?tab=log"
#: Text of the top line of a frame that is wholly visible.
TOP = """label => {
    const frame = document.querySelector(`[aria-label="${label}"]`);
    const top = frame.getBoundingClientRect().top;
    const line = [...frame.querySelectorAll('.dtrain-log-line')].find(
        one => one.getBoundingClientRect().top >= top - 1);
    return line?.querySelector('.dtrain-log-text')?.textContent ?? '';
}"""


def text_in(page: Page, text: str | re.Pattern[str]) -> Locator:
    return page.get_by_test_id("dtrain").get_by_text(text).first


def test_a_search_shows_matching_lines_and_a_click_on_a_number_shows_the_lines_around_it(
    visit: Callable[..., Visit], site: PagesSite
) -> None:
    page = visit("viewer").open(site.address(ENDED))
    page.get_by_role("textbox", name="Search the log").fill("SHARD 39")
    expect(text_in(page, "2 lines found")).to_be_visible()
    expect(page).to_have_url(re.compile("grep=SHARD"))
    page.locator(".dtrain-log-line").filter(has_text="shard 39 took 5 s").first.get_by_role(
        "link", name="Link to line"
    ).click()
    expect(page).to_have_url(re.compile(r"line=\d+"))
    chosen = page.locator(".dtrain-log-line[data-chosen]")
    expect(chosen).to_contain_text("shard 39 took 5 s")
    expect(page.locator(".dtrain-log-line").filter(has_text="step 38:").first).to_be_visible()
    # The same address shows the same to another user.
    other = visit("op", "dark").open(page.url.removeprefix(site.server.base))
    expect(other.locator(".dtrain-log-line[data-chosen]")).to_contain_text("shard 39 took 5 s")


def test_an_expression_is_searched_and_a_wrong_one_is_explained(visit: Callable[..., Visit], site: PagesSite) -> None:
    one = visit("viewer")
    page = one.open(site.address(ENDED))
    page.get_by_text("Expression", exact=True).click()
    field = page.get_by_role("textbox", name="Regular expression")
    field.fill(r"^ERROR .* step \d?49 ")
    expect(text_in(page, "2 lines found")).to_be_visible()
    field.fill("(")
    expect(text_in(page, "The expression is not valid")).to_be_visible()
    assert faults(page) == []
    page.get_by_role("button", name="Show all lines").click()
    expect(text_in(page, "loss is nan")).to_be_visible()
    # The browser notes the refusal of the expression.
    assert [error for error in one.errors if "422" not in error] == []
    one.errors.clear()


def test_a_line_is_shown_whole_with_a_link_and_its_time_leads_to_the_charts_and_back(
    visit: Callable[..., Visit], site: PagesSite
) -> None:
    page = visit("viewer").open(site.address(RUNNING) + "&level=error")
    line = page.locator(".dtrain-log-line").filter(has_text="ERROR storage").first
    line.locator(".dtrain-log-text").click()
    expect(page.get_by_role("button", name="Copy a link to the line")).to_be_visible()
    assert faults(page) == []
    line.get_by_title("Charts at").click()
    expect(page.get_by_role("link", name="Log at this time")).to_be_visible()
    expect(page.get_by_role("tab", name="Training")).to_have_attribute("aria-selected", "true")
    page.get_by_role("link", name="Log at this time").click()
    expect(text_in(page, "The log begins at")).to_be_visible()
    expect(page.locator(".dtrain-log-line").filter(has_text="ERROR storage").first).to_be_visible()


def test_ranks_beside_each_other_follow_the_one_that_is_scrolled(visit: Callable[..., Visit], site: PagesSite) -> None:
    page = visit("viewer").open(site.address(RUNNING) + "&ranks=0&ranks=2")
    frames = [page.get_by_role("region", name=f"Log of rank {rank}") for rank in (0, 2)]
    for frame in frames:
        expect(frame.locator(".dtrain-log-text").filter(has_text="step").first).to_be_visible()
    frames[0].hover()
    page.mouse.wheel(0, -4000)
    same = page.wait_for_function(
        f"""() => {{
            const [one, other] = ['Log of rank 0', 'Log of rank 2'].map(name => /step (\\d+)/.exec(({TOP})(name)));
            return one && other && Math.abs(one[1] - other[1]) <= 12 && Number(other[1]);
        }}"""
    )
    page.mouse.wheel(0, -20_000)
    page.wait_for_function(
        f"first => /step (\\d+)/.exec(({TOP})('Log of rank 2'))?.[1] < first - 400", arg=same.json_value()
    )


def test_the_whole_log_is_downloaded(visit: Callable[..., Visit], site: PagesSite) -> None:
    page = visit("viewer").open(site.address(ENDED))
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download").click()
    content = waiting.value.path().read_bytes()
    assert content.startswith(b"INFO trainer: rank 0, step 0:")
    assert content.endswith(b"loss is nan\n")
    assert b"\xff" in content, "the bytes are those of the host"
