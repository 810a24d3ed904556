"""Time from the mount of the bundle to first data of each page, long tasks while a user scrolls, size of the bundle.

    python -m bench.bench_pages [--site FOLDER] [--visits 3] [--seconds 5]

Without a folder it seeds a site with 10,000 trials and 1,000 hosts of 8 slots, which takes some minutes.
``python -m testbed.pages_site FOLDER --scene large`` keeps such a site for several runs. The time of Airflow's own
shell, from the request of the page to the mount, is in a column of its own. On a busy machine compare the columns only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page

from testbed.browser import LOADING, Visit, browser
from testbed.pages_site import PagesSite

WWW = Path(__file__).resolve().parents[1] / "airflow_provider_dtrain" / "www"
#: Time for a page to come to rest before its tasks are measured.
SETTLE_MS = 3000
FIRST_DATA_S, TASK_MS, BUNDLE_KB = 1.0, 50, 250
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


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, metavar="FOLDER")
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="time for which a page scrolls or stays open")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print(f"bundle {bundle_kb():.0f} kB gzipped (aim: < {BUNDLE_KB})")
    with _site(args.site) as site, browser() as chrome:
        print(f"\n{'page':<16} {'shell s':>8} {'first data s':>13}   aim: < {FIRST_DATA_S:g} s from the mount")
        for name, path in PAGES.items():
            found = [times_of(chrome, site, path) for _ in range(args.visits)]
            shell = statistics.median(one.shell_s for one in found)
            data = statistics.median(one.first_data_s for one in found)
            print(f"{name:<16} {shell:>8.2f} {data:>13.2f}", flush=True)
        print(f"\n{'while':<44} {'tasks':>6} {'longest, CPU ms':>16} {'clock ms':>9}   aim: no task above {TASK_MS} ms")
        for name, path, scrolls in (
            ("10,000 trials scroll", PAGES["trials"], True),
            ("the cluster with 8,000 squares scrolls", PAGES["cluster"], True),
            ("the cluster with 8,000 squares stays open", PAGES["cluster"], False),
        ):
            tasks = long_tasks(chrome, site, path, args.seconds, scrolls=scrolls)
            count = sum(one.cpu_ms > TASK_MS for one in tasks)
            cpu = max((one.cpu_ms for one in tasks), default=0.0)
            wall = max((one.wall_ms for one in tasks), default=0.0)
            print(f"{name:<44} {count:>6} {cpu:>16.0f} {wall:>9.0f}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def bundle_kb() -> float:
    """Return the size of the files that a browser loads, gzipped."""
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in WWW.rglob("*.js")) / 1000


@contextmanager
def _site(folder: Path | None) -> Iterator[PagesSite]:
    if folder is not None:
        yield PagesSite.attach(folder.absolute())
        return
    with (
        tempfile.TemporaryDirectory() as home,
        PagesSite(Path(home), scene="large", has_airflow=False) as started,
    ):
        yield started


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


if __name__ == "__main__":
    main()
