"""Visits of pages in Chromium: time to first data, and tasks of the page's thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Browser, Page

from testbed.browser import LOADING, Visit
from testbed.pages_site import PagesSite

#: Time for a page to come to rest before its tasks are measured.
SETTLE_MS = 3000
#: Notes the time of the mount, of first data, and of the first line of a log.
RECORD = f"""
(() => {{
  const found = (window.measured = {{ mount: null, data: null, line: null }});
  const look = () => {{
    const root = document.querySelector('[data-testid=dtrain]');
    if (root !== null && found.mount === null) found.mount = performance.now();
    const waits = root === null || document.querySelector({LOADING!r}) !== null;
    if (!waits && found.data === null && root.innerText.length > 60) found.data = performance.now();
    if (found.line === null && document.querySelector('.dtrain-log-line')?.innerText) found.line = performance.now();
  }};
  new MutationObserver(look).observe(document, {{ childList: true, subtree: true, attributes: true }});
}})();
"""


@dataclass(frozen=True)
class Times:
    """Times of one visit, in seconds."""

    shell_s: float
    first_data_s: float


@dataclass(frozen=True)
class Task:
    """A task of the page's thread: the time by the clock, and the CPU time, which a busy machine does not change."""

    wall_ms: float
    cpu_ms: float


def opened(chrome: Browser, site: PagesSite, path: str, until: str = "data") -> Visit:
    """Return a visit of a page with an empty cache, once a moment was noted.

    :param until: ``data`` or ``line``
    """
    visit = Visit(chrome, site.server.base, site.server.token("admin"))
    visit.context.add_init_script(RECORD)
    visit.page.goto(site.server.base + site.address(path))
    visit.page.wait_for_function(f"window.measured.{until} !== null")
    return visit


def times_of(chrome: Browser, site: PagesSite, path: str) -> Times:
    """Return the times of a visit with an empty cache."""
    visit = opened(chrome, site, path)
    found = visit.page.evaluate("window.measured")
    visit.close()
    return Times(shell_s=found["mount"] / 1000, first_data_s=(found["data"] - found["mount"]) / 1000)


def tasks_during(chrome: Browser, page: Page, action: Callable[[Page], None]) -> list[Task]:
    """Return the tasks of a page that last more than 10 ms while something happens."""
    page.wait_for_timeout(SETTLE_MS)
    chrome.start_tracing(
        page=page, categories=["toplevel", "disabled-by-default-devtools.timeline", "devtools.timeline"]
    )
    action(page)
    events = json.loads(chrome.stop_tracing())["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    main = [one for one in events if names.get((one["pid"], one["tid"])) == "CrRendererMain"]
    tasks = [one for one in main if one.get("name", "").endswith("RunTask") and one.get("dur", 0) > 10_000]
    return [Task(wall_ms=one["dur"] / 1000, cpu_ms=one.get("tdur", one["dur"]) / 1000) for one in tasks]


def scroll(page: Page, seconds: float = 5.0) -> None:
    """Turn the wheel over the middle of the page."""
    page.mouse.move(700, 650)
    for step in range(round(seconds * 20)):
        page.mouse.wheel(0, 600 if step % 40 < 30 else -900)
        page.wait_for_timeout(50)
