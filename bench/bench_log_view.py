"""The log view with a log of a million lines: time to the first lines, and tasks of the page's thread while it scrolls.

The copy of the log is complete, so no host is read. The page is opened at its address, and from the page of the trial
by a click. With ``--quick`` the log has 20,000 lines.
"""

from __future__ import annotations

from datetime import UTC, datetime

from playwright.sync_api import Browser, Page

from airflow_provider_dtrain.store.store import Store
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row
from bench.page_visits import opened, scroll, tasks_during
from testbed.browser import browser
from testbed.pages_site import PagesSite

TRIAL = "/plugin/dtrain/trials/{trial mnist-grid/1}"
LOG = TRIAL + "?tab=log"
LINES, PART = 1_000_000, 50_000
ADDRESS, CLICK = "by its address", "by a click"
WHEEL, JUMPS = "the wheel turns", "jumps to any place"
FRAME = "document.querySelector('[role=region][aria-label^=\"Log of rank\"]')"


def measure(run: Run) -> None:
    lines = run.size(LINES, 20_000)
    with PagesSite(run.folder, has_airflow=False) as site:
        store = site.store()
        write_log(store, int(site.address("{trial mnist-grid/1}")), lines)
        store.close()
        with browser() as chrome:
            for _ in range(run.rounds):
                run.add("first lines", ADDRESS, by_address(chrome, site, lines))
                run.add("first lines", CLICK, by_click(chrome, site, lines))
                for name, action in ((WHEEL, scroll), (JUMPS, jump)):
                    visit = opened(chrome, site, LOG, "line")
                    tasks = tasks_during(chrome, visit.page, action)
                    visit.close()
                    run.add("longest task, CPU", name, max((one.cpu_ms for one in tasks), default=0.0))
                    run.add("longest task", name, max((one.wall_ms for one in tasks), default=0.0))


def write_log(store: Store, trial_id: int, count: int) -> None:
    """Write the complete copy of the log of rank 0 of a trial."""
    attempt, end = store.trials.get(trial_id).attempt_id, 0
    assert attempt is not None
    for first in range(0, count, PART):
        numbers = range(first, min(count, first + PART))
        content = "".join(
            f"{'ERROR storage' if one % 997 == 0 else 'INFO trainer'}: step {one}: loss {2.5 / (1 + one / 5e4):.5f}, "
            f"lr 3.00e-04\n"
            for one in numbers
        ).encode()
        store.log_copies.append(attempt, 0, end, content, samples=[(end, datetime.now(UTC).timestamp())])
        end += len(content)
    store.log_copies.complete(attempt, 0, end)


def by_address(chrome: Browser, site: PagesSite, lines: int) -> float:
    """Return the seconds from the mount of the bundle to the first lines."""
    visit = opened(chrome, site, LOG, "line")
    found = visit.page.evaluate("window.measured")
    check(visit.page, lines)
    visit.close()
    return float(found["line"] - found["mount"]) / 1000


def by_click(chrome: Browser, site: PagesSite, lines: int) -> float:
    """Return the seconds from a click on the tab of a loaded page to the first lines."""
    visit = opened(chrome, site, TRIAL)
    page = visit.page
    page.wait_for_timeout(1000)
    page.evaluate("document.addEventListener('click', () => (window.clicked = performance.now()), {capture: true})")
    page.get_by_role("tab", name="Logs").click()
    page.wait_for_function("window.measured.line !== null")
    found = float(page.evaluate("window.measured.line - window.clicked"))
    check(page, lines)
    visit.close()
    return found / 1000


def check(page: Page, lines: int) -> None:
    """Check that the whole log can be scrolled."""
    assert f"step {lines - 1}:" in page.evaluate(f"{FRAME}.innerText"), "the log begins at its end"


def jump(page: Page) -> None:
    """Go to far places of the log, as a drag of the scroll bar does."""
    for share in (0.1, 0.9, 0.35, 0.6, 0.0, 1.0, 0.5):
        page.evaluate(f"{FRAME}.scrollTop = {share} * {FRAME}.scrollHeight")
        page.wait_for_timeout(600)


SIDES = (WHEEL, JUMPS)
BENCH = Bench(
    what="The log view with a million lines, in a browser",
    rows=(
        Row(
            name="first lines",
            what="From the mount of the bundle, or from the click on the tab",
            unit="s",
            sides={ADDRESS: OURS, CLICK: OURS},
            goals=tuple(Goal(side=side, at_most=0.5) for side in (ADDRESS, CLICK)),
        ),
        Row(
            name="longest task, CPU",
            what="Of the page's thread",
            unit="ms of CPU",
            sides=dict.fromkeys(SIDES, OURS),
            goals=tuple(Goal(side=side, at_most=50) for side in SIDES),
        ),
        Row(name="longest task", what="The same, wall clock", unit="ms", sides=dict.fromkeys(SIDES, OURS)),
    ),
    measure=measure,
    rounds=(5, 1),
)
