"""Pages of failed trials in a browser: an experiment that mostly failed alike, and trials that could not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from testbed.accessibility import faults
from testbed.browser import Visit
from testbed.pages_site import PagesSite
from testbed.seed.failures import NO_IMAGE, TOO_LARGE

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
BOTH = pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390)])
SWEEP = "/plugin/dtrain/experiments/{experiment width-sweep}"


@pytest.fixture(scope="module")
def site(chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesSite]:
    """A site with the scene ``failures``."""
    with PagesSite(tmp_path_factory.mktemp("failures"), scene="failures") as started:
        yield started


@BOTH
def test_an_experiment_that_mostly_failed_alike_opens_on_its_causes(
    visit: Callable[..., Visit], site: PagesSite, screenshot: Callable[[Visit, str], None], theme: str, width: int
) -> None:
    one = visit("viewer", theme, width=width)
    page = one.open(site.address(SWEEP))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("9 of 10 trials failed, 8 of them with the same error.")
    expect(alert).to_contain_text("CUDA out of memory. Tried to allocate ... GiB.")
    expect(page.get_by_role("tab", name="Failures")).to_have_attribute("aria-selected", "true")
    groups = page.get_by_role("tabpanel").get_by_role("list").first.get_by_role("listitem").filter(has_text="×")
    expect(groups).to_have_count(2)
    expect(groups.nth(0)).to_contain_text("8 ×")
    expect(groups.nth(0)).to_contain_text("model.py:41")
    expect(groups.nth(1)).to_contain_text("KeyError: 'label'")
    expect(groups.nth(0).get_by_role("link")).to_have_count(8)
    screenshot(one, f"failures-{theme}-{width}")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    groups.nth(1).get_by_role("link").click()
    one.settle()
    expect(page.get_by_text("data.py:34").first).to_be_visible()


@BOTH
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("segmentation-nightly", ("KeyError: 'label'", "Changed since", "torch", "2.9.0", "lr", "0.4")),
        ("own-image", (NO_IMAGE.split(":", 1)[0], "What to try")),
        ("too-large", (TOO_LARGE, "What to try")),
        ("night-train", ("did not answer for 180 s", "What to try")),
    ],
)
def test_a_failed_trial_opens_on_its_cause_without_empty_charts(
    visit: Callable[..., Visit],
    site: PagesSite,
    screenshot: Callable[[Visit, str], None],
    name: str,
    texts: tuple[str, ...],
    theme: str,
    width: int,
) -> None:
    trial = max(one.trial_id for one in site.store().trials.list(limit=None) if one.experiment == name)
    one = visit("viewer", theme, width=width)
    page = one.open(f"/plugin/dtrain/trials/{trial}")
    for text in texts:
        expect(page.get_by_test_id("dtrain").get_by_text(text).filter(visible=True).first).to_be_visible()
    expect(page.get_by_test_id("chart")).to_have_count(0)
    screenshot(one, f"failure-{name}-{theme}-{width}")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
