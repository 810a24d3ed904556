"""Parts of pages that users operate: media, notes and comments, contour, heat map, stacks, flame graph, code."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
ASHA = "/plugin/dtrain/experiments/{experiment cifar10-asha}"
GRID = "/plugin/dtrain/trials/{trial mnist-grid/0}"
BOTH = pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])


def text_in(page: Page, text: str | re.Pattern[str]) -> Locator:
    return page.get_by_test_id("dtrain").get_by_text(text).first


@BOTH
def test_the_slider_shows_the_media_of_an_earlier_step(
    visit: Callable[..., Visit], site: PagesSite, theme: str, width: int
) -> None:
    page = visit("viewer", theme, width=width).open(site.address(f"{GRID}?tab=media"))
    image = page.get_by_role("img", name="samples/reconstruction")
    expect(image).to_have_attribute("alt", "samples/reconstruction, step 400")
    image.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('img[alt^=\"samples/\"]').naturalWidth === 96")
    slider = page.get_by_role("slider", name="Step")
    slider.focus()
    page.keyboard.press("Home")
    expect(image).to_have_attribute("alt", "samples/reconstruction, step 100")
    expect(text_in(page, "Its first report is at step 400.")).to_be_visible()
    expect(page).to_have_url(re.compile("step=100"))
    assert faults(page) == []
    page.keyboard.press("End")
    expect(text_in(page, "400, the latest")).to_be_visible()
    # The end is the address without a step.
    expect(page).not_to_have_url(re.compile("step="))


@BOTH
def test_a_note_in_markdown_and_comments_are_written_read_and_deleted(
    visit: Callable[..., Visit], site: PagesSite, theme: str, width: int
) -> None:
    tab = visit("op", theme, width=width)
    page = tab.open(site.address("/plugin/dtrain/trials/{trial eval-harness/0}?tab=comments"))
    page.get_by_role("button", name="Edit name, description and tags").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Description").fill(
        "## Plan\n\n- **first** [docs](https://example.com)\n- <img src=x onerror=window.hacked=1>"
    )
    assert faults(page, "[role=dialog]") == []
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="Plan")).to_be_visible()
    expect(page.get_by_role("link", name="docs")).to_have_attribute("href", "https://example.com/")
    expect(text_in(page, "<img src=x onerror=window.hacked=1>")).to_be_visible()
    page.get_by_role("textbox", name=re.compile("^Comment on trial")).fill(
        "It needs *more* data.\n<script>window.hacked=1</script>"
    )
    page.get_by_role("button", name="Comment", exact=True).click()
    comment = page.get_by_role("article").filter(has_text="It needs more data.")
    expect(comment).to_be_visible()
    expect(comment).to_contain_text("op")
    assert faults(page) == []
    assert page.evaluate("window.hacked") is None
    other = visit("viewer").open(page.url.removeprefix(site.server.base))
    expect(other.get_by_role("article").filter(has_text="It needs more data.")).to_be_visible()
    expect(other.get_by_role("button", name="Comment", exact=True)).to_have_count(0)
    comment.get_by_role("button", name="Delete comment").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(comment).to_have_count(0)


def test_the_contour_follows_the_chosen_hyperparameters_and_has_a_table(
    visit: Callable[..., Visit], site: PagesSite
) -> None:
    page = visit("viewer").open(site.address(f"{ASHA}?tab=hyperparameters&pair=lr&pair=dropout"))
    expect(page.get_by_role("heading", name="accuracy over lr and dropout")).to_be_visible()
    page.get_by_role("combobox", name="Hyperparameter from bottom to top").click()
    page.get_by_role("option", name="global_batch_size").click()
    expect(page.get_by_role("heading", name="accuracy over lr and global_batch_size")).to_be_visible()
    group = page.get_by_role("group", name="View of accuracy over lr and global_batch_size")
    group.get_by_role("button", name="Table").click()
    expect(page.get_by_role("region", name="Trials by lr and global_batch_size")).to_be_visible()
    assert faults(page) == []


@BOTH
def test_the_rank_plot_has_all_trials_and_its_table_ranks_the_best_trial_highest(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address(f"{ASHA}?tab=hyperparameters&draw=rank&pair=lr&pair=dropout"))
    title = "Rank by accuracy over lr and dropout"
    chart = page.get_by_role("img", name=title)
    expect(chart).to_have_attribute("data-points", "32")
    expect(page.get_by_text("A colour is the place of a trial among 32 trials")).to_be_visible()
    chart.scroll_into_view_if_needed()
    # Points of the best trials and of the worst ones have different colours.
    colours = chart.locator("canvas").evaluate(
        """canvas => {
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const found = new Set();
            for (let at = 0; at < data.length; at += 4) {
                const [r, g, b] = data.slice(at, at + 3);
                const isColoured = data[at + 3] > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 60;
                if (isColoured) found.add(`${r >> 4} ${g >> 4} ${b >> 4}`);
            }
            return found.size;
        }"""
    )
    assert colours >= 8
    screenshot(one, f"rank-{theme}-{width}")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("group", name=f"View of {title}").get_by_role("button", name="Table").click()
    rows = page.get_by_role("region", name="Trials by lr and dropout").get_by_role("row")
    best, next_best = (rows.nth(number).get_by_role("cell").all_inner_texts() for number in (1, 2))
    assert (best[3], float(best[4])) == ("0.8834", 1.0)
    assert float(next_best[4]) < 1.0


@BOTH
def test_an_importance_of_too_few_trials_is_refused_and_one_that_may_be_chance_is_marked(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address("/plugin/dtrain/experiments/{experiment mnist-grid}?tab=hyperparameters"))
    card = page.get_by_role("region", name="Importance for accuracy")
    expect(card).to_contain_text("Too few trials: the importance needs 10 ended ones with a metric, and there are 6.")
    expect(card.get_by_role("listitem")).to_have_count(0)
    card.scroll_into_view_if_needed()
    screenshot(one, f"importance-too-few-{theme}-{width}")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = one.open(site.address(f"{ASHA}?tab=hyperparameters"))
    bars = page.get_by_role("region", name="Importance for accuracy").get_by_role("listitem")
    expect(bars).to_have_count(4)
    expect(bars.nth(0)).to_contain_text("lr")
    expect(bars.nth(0)).not_to_contain_text("may be chance")
    expect(bars.nth(3)).to_contain_text("optimizer may be chance")


def test_the_colours_of_the_heat_map_and_the_spans_of_use_are_in_the_address(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").open("/plugin/dtrain/cluster")
    page.get_by_role("group", name="Colour of the squares").get_by_text("Temperature").click()
    expect(page).to_have_url(re.compile("heat=temperature"))
    expect(text_in(page, "°C")).to_be_visible()
    page.get_by_role("button", name="Use by day").click()
    page.get_by_role("group", name="Slot hours by").get_by_text("User").click()
    expect(page).to_have_url(re.compile("by=user"))
    expect(page.get_by_role("region", name="Slot hours")).to_contain_text("Slot hours")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV").click()
    assert waiting.value.suggested_filename == "slot-hours-user.csv"
    assert waiting.value.path().read_text().count("\n") > 2


def test_stacks_that_no_process_can_read_end_with_a_reason_and_a_command(
    visit: Callable[..., Visit], site: PagesSite
) -> None:
    page = visit("op").open(site.address("/plugin/dtrain/trials/{trial gpt2-finetune/0}?tab=profile"))
    page.get_by_role("button", name="Python stacks of all ranks").click()
    # The site has no follower and no scheduler.
    expect(text_in(page, re.compile("airflow dtrain trials stack"))).to_be_visible(timeout=60_000)
    assert faults(page) == []


def test_a_call_of_the_flame_graph_is_enlarged_with_the_keyboard(visit: Callable[..., Visit], site: PagesSite) -> None:
    page = visit("viewer").open(site.address(f"{GRID}?tab=profile"))
    graph = page.get_by_role("group", name=re.compile("^Flame graph"))
    first = graph.get_by_role("button").first
    first.focus()
    page.keyboard.press("ArrowDown")
    name = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Show everything")).to_be_visible()
    wide = graph.get_by_role("button", name=name).first.bounding_box()
    frame = graph.bounding_box()
    assert wide is not None
    assert frame is not None
    assert wide["width"] > frame["width"] * 0.9
    assert faults(page) == []
    page.get_by_role("button", name="Show everything").click()
    expect(page.get_by_role("button", name="Show everything")).to_have_count(0)


def test_a_file_of_the_code_and_the_differences_from_another_experiment_are_in_the_address(
    visit: Callable[..., Visit], site: PagesSite
) -> None:
    page = visit("viewer").open(site.address(f"{ASHA}?tab=code"))
    page.get_by_role("combobox", name="Experiment to compare with").click()
    page.keyboard.type("mnist")
    page.get_by_role("option", name=re.compile("^mnist-grid")).click()
    expect(text_in(page, "+def all_digits():")).to_be_visible()
    expect(page).to_have_url(re.compile(r"against=\d+"))
    page.get_by_role("button", name="Show the files").click()
    expect(page).not_to_have_url(re.compile("against"))


def test_experiments_are_moved_in_a_dialog_that_is_accessible(visit: Callable[..., Visit], site: PagesSite) -> None:
    page = visit("op", "dark", width=390).open("/plugin/dtrain/experiments?owner=op&state=completed")
    page.get_by_role("row", name="mnist-grid").get_by_role("checkbox").click()
    toolbar = page.get_by_role("toolbar")
    toolbar.get_by_role("button", name="Move").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Project").fill("digits")
    assert faults(page, "[role=dialog]") == []
    dialog.get_by_role("button", name="Move").click()
    expect(dialog).to_have_count(0)
    (found,) = site.store().experiments.list(name="mnist-grid")
    assert found.project == "digits"
