"""Pages of batch inferences in a browser: with bad rows, running, failed in a shard, and with shards set aside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
BOTH = pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390)])
#: Words of a training, which a batch inference does not have.
TRAINING = re.compile(
    r"\b(metric|step|epoch|batches|checkpoint|train|trains|trained|hyperparameter)s?\b", re.IGNORECASE
)
#: Characters that change the text around them or a terminal.
CONTROLS = re.compile("[\x1b\x07\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def site(chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesSite]:
    """A site with the scene ``inference``."""
    with PagesSite(tmp_path_factory.mktemp("inference"), scene="inference") as started:
        yield started


def text_of(page: Page) -> str:
    """Return the text of the provider's part without the names of tabs, which are the same for every trial."""
    return str(
        page.get_by_test_id("dtrain").evaluate(
            "part => { const copy = part.cloneNode(true);"
            " copy.querySelectorAll('[role=tablist], nav').forEach(one => one.remove()); return copy.innerText }"
        )
    )


def check(one: Visit, width: int) -> None:
    """Check what applies to all of these pages."""
    page = one.page
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    text = text_of(page)
    assert CONTROLS.search(text) is None
    assert TRAINING.findall(text) == []


@BOTH
def test_a_finished_run_names_its_bad_rows_and_shows_hostile_results_as_text(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address("/plugin/dtrain/trials/{trial label-images/0}"))
    expect(page.get_by_role("tab", name="Results and shards")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("1,048,576 of 1,048,576", exact=True)).to_be_visible()
    expect(page.get_by_text("7 marked in the column error")).to_be_visible()
    rows = page.get_by_role("region", name="Bad rows").get_by_role("row")
    expect(rows).to_have_count(1 + 1 + 3 + 2)
    expect(rows.nth(1)).to_contain_text("cannot identify image file invoice\\u202egnp.exe")
    expect(rows.nth(1)).to_contain_text("row id 380941")
    expect(page.get_by_role("list", name="Legend of the shards").get_by_role("listitem")).to_have_text(["256 done"])
    results = page.get_by_role("region", name="First results")
    expect(results.get_by_role("row")).to_have_count(21)
    expect(results.get_by_text("<img src=x onerror=window.hacked=1><b>bold</b>")).to_have_count(1)
    expect(results.get_by_text("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07")).to_have_count(1)
    expect(results.get_by_text("invoice\\u202egnp.exe")).to_have_count(1)
    expect(results.get_by_role("columnheader").nth(4)).to_contain_text("<script>window.hacked=1</script>\\u202e")
    expect(results.locator("img, b, script")).to_have_count(0)
    screenshot(one, f"inference-bad-rows-{theme}-{width}")
    check(one, width)


@BOTH
def test_a_running_one_shows_rows_shards_and_throughput_that_go_on(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address("/plugin/dtrain/trials/{trial caption-archive/0}"))
    done = page.get_by_text(re.compile(r"^[\d,]+ of 2,560 shards$"))
    expect(done).to_be_visible()
    expect(page.get_by_text(re.compile(r"^[\d,]+ of 61,440,000$"))).to_be_visible()
    expect(page.get_by_text("Rows per second", exact=True)).to_be_visible()
    expect(page.get_by_text("expected end")).to_be_visible()
    # One bar: the head of the page has the progress.
    expect(page.get_by_role("progressbar")).to_have_count(1)
    legend = page.get_by_role("list", name="Legend of the shards")
    expect(legend).to_contain_text("1 failed, tried again")
    expect(legend).to_contain_text(re.compile(r"\d+ running"))
    failed = page.get_by_role("region", name="Shards that failed").get_by_role("row")
    expect(failed).to_have_count(2)
    expect(failed.nth(1)).to_contain_text("s3 read timed out after 60 s")
    screenshot(one, f"inference-running-{theme}-{width}")
    check(one, width)
    before = done.inner_text()
    expect(done).not_to_have_text(before)


@BOTH
def test_a_failed_shard_is_the_cause_and_the_page_says_what_to_do(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address("/plugin/dtrain/trials/{trial embed-corpus/0}"))
    expect(page.get_by_role("alert")).to_contain_text("embedding has 767 values in row 41, expected 768 <img src=x")
    expect(page.get_by_text("only the missing shards are computed")).to_be_visible()
    screenshot(one, f"inference-failed-{theme}-{width}")
    check(one, width)
    page.get_by_role("link", name="See which shards failed, and with which errors.").click()
    one.settle()
    failed = page.get_by_role("region", name="Shards that failed").get_by_role("row")
    expect(failed).to_have_count(2)
    expect(failed.nth(1)).to_contain_text("37")
    expect(failed.nth(1)).to_contain_text("3 times")
    expect(page.get_by_role("img", name="120 shards: 119 done, 0 running, 0 waiting, 1 failed")).to_be_visible()
    screenshot(one, f"inference-failed-shards-{theme}-{width}")
    check(one, width)


@BOTH
def test_shards_that_were_set_aside_come_before_the_results(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address("/plugin/dtrain/trials/{trial index-mail/0}"))
    expect(page.get_by_text("38 of 40, 2 set aside", exact=True)).to_be_visible()
    expect(page.get_by_text("13 left out")).to_be_visible()
    aside = page.get_by_role("region", name="Shards that failed")
    expect(aside.get_by_role("row")).to_have_count(3)
    expect(aside.get_by_text("set aside")).to_have_count(2)
    expect(page.get_by_role("region", name="Bad rows")).to_contain_text("mail-003.jsonl line")
    below = page.get_by_role("region", name="First results").bounding_box()
    above = aside.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]
    screenshot(one, f"inference-set-aside-{theme}-{width}")
    check(one, width)


@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_of_its_experiment_has_shards_instead_of_metrics(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], width: int
) -> None:
    one = visit("viewer", "light", width=width)
    page = one.open(site.address("/plugin/dtrain/experiments/{experiment index-mail}"))
    expect(page.get_by_role("tab", name="Trials")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("38 of 40, 2 set aside")).to_be_visible()
    for name in ("Curves", "Hyperparameters"):
        expect(page.get_by_role("tab", name=name)).to_have_count(0)
    screenshot(one, f"inference-experiment-{width}")
    check(one, width)
