"""Fixtures of the tests of pages: one seeded site and one browser per process, visits by users."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from testbed.browser import Visit, browser, chromium
from testbed.pages_site import PagesSite
from tests.ui.steps import WAIT_MS

ROOT = Path(__file__).parents[2]
#: The site has neither followers nor a scheduler, so the API refuses what only a host can answer.
REFUSED = re.compile(r"409 \(Conflict\).*/operations/")
#: Screenshots of all pages, which CI keeps.
SCREENSHOTS = ROOT / "build" / "screenshots"


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("missing: chromium")
    with browser() as started:
        yield started


@pytest.fixture(scope="session")
def site(chrome: Browser) -> Iterator[PagesSite]:
    """A site with the scene ``small`` in an Airflow, whose trials go on in real time."""
    kept = os.environ.get("DTRAIN_PAGES_SITE")
    with PagesSite.of(Path(kept) if kept else None) as started:
        yield started


@pytest.fixture
def visit(site: PagesSite, chrome: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens tabs as a user. The test fails if one of them has logged an error."""
    visits: list[Visit] = []

    def begin(user: str = "admin", theme: str = "light", **options: int) -> Visit:
        visits.append(Visit(chrome, site.server.base, site.server.token(user), theme, **options))
        return visits[-1]

    yield begin
    for one in visits:
        one.close()
    assert [error for one in visits for error in one.errors if not REFUSED.search(error)] == []


@pytest.fixture
def screenshot() -> Callable[[Visit, str], None]:
    def take(one: Visit, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        one.page.screenshot(path=SCREENSHOTS / f"{name}.png")

    return take


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Let expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=WAIT_MS)
    yield
    expect.set_options(timeout=5000)
