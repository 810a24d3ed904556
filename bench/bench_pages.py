"""Time from the mount of the bundle to first data of each page, long tasks while a user scrolls, size of the bundle.

The site has 10,000 trials and 1,000 hosts of 8 slots; seeding it takes some minutes. With ``--quick`` it is small. The
time of Airflow's own shell, from the request of the page to the mount, is the baseline.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from testbed.browser import LOADING, Visit, browser
from testbed.pages_site import PagesSite

WWW = Path(__file__).resolve().parents[1] / "airflow_provider_dtrain" / "www"
#: Time for a page to come to rest before its tasks are measured.
SETTLE_MS = 3000
EXPERIMENT = "/plugin/dtrain/experiments/{experiment big-sweep}"
PAGES = {
    "cluster": "/plugin/dtrain/cluster",
    "queue": "/plugin/dtrain/queue",
    "experiments": "/plugin/dtrain/experiments",
    "curves": EXPERIMENT,
    "trials": EXPERIMENT + "?tab=trials",
    "hyperparameters": EXPERIMENT + "?tab=hyperparameters",
    "rungs": EXPERIMENT + "?tab=rungs",
    "trial": "/plugin/dtrain/trials/{trial big-sweep/8000}",
    "compare": "/plugin/dtrain/compare?trial={trial big-sweep/1}&trial={trial big-sweep/8000}",
}
#: Notes the time of the mount and of first data.
RECORD = f"""
(() => {{
  const found = (window.measured = {{ mount: null, data: null }});
  const look = () => {{
    const root = document.querySelector('[data-testid=dtrain]');
    if (root !== null && found.mount === null) found.mount = performance.now();
    const waits = root === null || document.querySelector({LOADING!r}) !== null;
    if (!waits && found.data === null && root.innerText.length > 60) found.data = performance.now();
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


SCROLLS = {
    "10,000 trials scroll": (PAGES["trials"], True),
    "the cluster with 8,000 squares scrolls": (PAGES["cluster"], True),
    "the cluster with 8,000 squares stays open": (PAGES["cluster"], False),
}
SHELL, DATA = "Airflow's shell", "ours"


def measure(run: Run) -> None:
    run.add("bundle", DATA, bundle_kb())
    with (
        PagesSite(run.folder, scene=run.size("large", "small"), has_airflow=False) as site,
        browser() as chrome,
    ):
        pages = {name: PAGES[name] for name in run.size(tuple(PAGES), ("cluster", "queue", "experiments"))}
        for _ in range(run.rounds):
            for name, path in pages.items():
                found = times_of(chrome, site, path)
                run.add(f"page {name}", DATA, found.first_data_s)
                run.add(f"page {name}", SHELL, found.shell_s)
        for name, (path, scrolls) in SCROLLS.items() if not run.is_quick else ():
            tasks = long_tasks(chrome, site, path, 5.0, scrolls=scrolls)
            run.add("longest task, CPU", name, max((one.cpu_ms for one in tasks), default=0.0))
            run.add("longest task", name, max((one.wall_ms for one in tasks), default=0.0))


def bundle_kb() -> float:
    """Return the size of the files that a browser loads, gzipped."""
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in WWW.rglob("*.js")) / 1000


def _open(chrome: Browser, site: PagesSite, path: str) -> Visit:
    visit = Visit(chrome, site.server.base, site.server.token("admin"))
    visit.context.add_init_script(RECORD)
    visit.page.goto(site.server.base + site.address(path))
    visit.page.wait_for_function("window.measured.data !== null")
    return visit


def times_of(chrome: Browser, site: PagesSite, path: str) -> Times:
    """Return the times of a visit with an empty cache."""
    visit = _open(chrome, site, path)
    found = visit.page.evaluate("window.measured")
    visit.close()
    return Times(shell_s=found["mount"] / 1000, first_data_s=(found["data"] - found["mount"]) / 1000)


def long_tasks(chrome: Browser, site: PagesSite, path: str, seconds: float, *, scrolls: bool) -> list[Task]:
    """Return the tasks of a page that last more than 10 ms."""
    visit = _open(chrome, site, path)
    page = visit.page
    page.wait_for_timeout(SETTLE_MS)
    chrome.start_tracing(
        page=page, categories=["toplevel", "disabled-by-default-devtools.timeline", "devtools.timeline"]
    )
    if scrolls:
        _scroll(page, seconds)
    else:
        page.wait_for_timeout(seconds * 1000)
    events = json.loads(chrome.stop_tracing())["traceEvents"]
    visit.close()
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    main = [one for one in events if names.get((one["pid"], one["tid"])) == "CrRendererMain"]
    tasks = [one for one in main if one.get("name", "").endswith("RunTask") and one.get("dur", 0) > 10_000]
    return [Task(wall_ms=one["dur"] / 1000, cpu_ms=one.get("tdur", one["dur"]) / 1000) for one in tasks]


def _scroll(page: Page, seconds: float) -> None:
    """Turn the wheel over the middle of the page."""
    page.mouse.move(700, 650)
    for step in range(round(seconds * 20)):
        page.mouse.wheel(0, 600 if step % 40 < 30 else -900)
        page.wait_for_timeout(50)


TASKS = dict.fromkeys(SCROLLS, OURS)
BENCH = Bench(
    what="The pages in a browser",
    rows=(
        Row(
            name="bundle",
            what="Files that a browser loads, gzipped",
            unit="kB",
            sides={DATA: OURS},
            goals=(Goal(side=DATA, at_most=250),),
        ),
        *(
            Row(
                name=f"page {name}",
                what="From the mount to first data, beside the time of Airflow's shell before it",
                unit="s",
                sides={DATA: OURS, SHELL: PEER},
                base=SHELL,
                goals=(Goal(side=DATA, at_most=1),),
            )
            for name in PAGES
        ),
        Row(
            name="longest task, CPU",
            what="Of the page's thread; not with --quick",
            unit="ms of CPU",
            sides=TASKS,
            goals=tuple(Goal(side=side, at_most=50) for side in SCROLLS),
        ),
        Row(name="longest task", what="The same, wall clock", unit="ms", sides=TASKS),
    ),
    measure=measure,
    rounds=(3, 1),
)
