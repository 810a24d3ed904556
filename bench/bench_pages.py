"""Time from the mount of the bundle to first data of each page, long tasks while a user scrolls, size of the bundle.

The site has 10,000 trials and 1,000 hosts of 8 slots; seeding it takes some minutes. With ``--quick`` it is small. The
time of Airflow's own shell, from the request of the page to the mount, is the baseline.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from bench.large_store import seeded
from bench.page_visits import opened, scroll, tasks_during, times_of
from testbed.browser import browser
from testbed.pages_site import PagesSite

WWW = Path(__file__).resolve().parents[1] / "airflow_provider_dtrain" / "www"
EXPERIMENT = "/plugin/dtrain/experiments/{experiment big-sweep}"
TRIAL = "/plugin/dtrain/trials/{trial big-sweep/8000}"
PAGES = {
    "cluster": "/plugin/dtrain/cluster",
    "day by host": "/plugin/dtrain/cluster?view=day",
    "use by day": "/plugin/dtrain/cluster?view=use",
    "queue": "/plugin/dtrain/queue",
    "experiments": "/plugin/dtrain/experiments",
    "curves": EXPERIMENT,
    "trials": EXPERIMENT + "?tab=trials",
    "hyperparameters": EXPERIMENT + "?tab=hyperparameters",
    "rungs": EXPERIMENT + "?tab=rungs",
    "timeline": EXPERIMENT + "?tab=timeline",
    "configuration": EXPERIMENT + "?tab=config",
    "trial": TRIAL,
    "ranks of a trial": TRIAL + "?tab=ranks",
    "runs": "/plugin/dtrain/runs",
    "new experiment": "/plugin/dtrain/experiments/new",
    "compare": "/plugin/dtrain/compare?trial={trial big-sweep/1}&trial={trial big-sweep/8000}",
}
SCROLLS = {
    "10,000 trials scroll": (PAGES["trials"], True),
    "the cluster with 8,000 squares scrolls": (PAGES["cluster"], True),
    "the cluster with 8,000 squares stays open": (PAGES["cluster"], False),
}
SHELL, DATA = "Airflow's shell", "ours"


def measure(run: Run) -> None:
    run.add("bundle", DATA, bundle_kb())
    with (
        PagesSite(run.folder, has_airflow=False, url=seeded(run), is_seeded=True) as site,
        browser() as chrome,
    ):
        pages = {name: PAGES[name] for name in run.size(tuple(PAGES), ("cluster", "queue", "experiments"))}
        for _ in range(run.rounds):
            for name, path in pages.items():
                found = times_of(chrome, site, path)
                run.add(f"page {name}", DATA, found.first_data_s)
                run.add(f"page {name}", SHELL, found.shell_s)
        for name, (path, scrolls) in SCROLLS.items() if not run.is_quick else ():
            visit = opened(chrome, site, path)
            tasks = tasks_during(chrome, visit.page, scroll if scrolls else lambda page: page.wait_for_timeout(5000))
            visit.close()
            run.add("longest task, CPU", name, max((one.cpu_ms for one in tasks), default=0.0))
            run.add("longest task", name, max((one.wall_ms for one in tasks), default=0.0))


def bundle_kb() -> float:
    """Return the size of the files that a browser loads, gzipped."""
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in WWW.rglob("*.js")) / 1000


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
    rounds=(2, 1),
)
