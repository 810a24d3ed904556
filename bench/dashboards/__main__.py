"""Answer the questions of docs/dashboards.md on our pages, in MLflow and in Optuna Dashboard.

``python -m bench.dashboards`` starts the seeded site, installs and fills the other programs, and prints the table of
the page. ``--site FOLDER`` uses the site that ``python -m testbed.pages_site FOLDER`` keeps running.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Page

from bench.dashboards import mlflow_pages, optuna_pages, ours
from bench.dashboards.hand import Hand, measured
from bench.dashboards.questions import QUESTIONS, Way
from bench.dashboards.truth import Truth, exported
from bench.framework import peers
from testbed.browser import HEIGHT, WIDTH, Visit, browser
from testbed.pages_site import PagesSite
from testbed.standalone import free_port, wait_until

FILL = Path(__file__).with_name("fill_peers.py")
FILL_S = 600.0


@contextmanager
def peers_with(truth: Truth) -> Iterator[tuple[str, str]]:
    """Fill the other programs with the trials, and yield their addresses: of MLflow, of Optuna Dashboard."""
    python = peers.python_of("dashboards")
    with tempfile.TemporaryDirectory() as home:
        folder, ports = Path(home), (free_port(), free_port())
        (folder / "trials.json").write_text(json.dumps(exported(truth)))
        command = [python, FILL, folder / "trials.json", folder, *map(str, ports)]
        with (folder / "peers.log").open("wb") as log:
            filling = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(
                lambda: (folder / "ready").exists() or filling.poll() is not None, timeout_s=FILL_S, what="the peers"
            )
            if filling.poll() is not None:
                raise peers.PeerError(peers.last_line((folder / "peers.log").read_text(errors="replace")))
            yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        finally:
            filling.terminate()
            filling.wait(timeout=60)


def peer_page(chrome: Browser, url: str, storage: dict[str, str]) -> Page:
    """Open the first page of a program for a user who has been there before."""
    context = chrome.new_context(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-US", timezone_id="UTC")
    entries = json.dumps(storage)
    context.add_init_script(
        f"for (const [key, value] of Object.entries({entries}))"
        " if (localStorage.getItem(key) === null) localStorage.setItem(key, value)"
    )
    page = context.new_page()
    page.goto(url)
    page.get_by_text("mnist-grid").first.wait_for()
    return page


def cell(page: Page, way: Way, truth: Truth) -> str:
    """Return the cost of an answer, or that its way did not lead to it."""

    def steps(hand: Hand) -> None:
        way(hand, truth)

    try:
        return str(measured(page, steps))
    except Exception as error:
        print(f"{way.__module__}.{way.__name__}: {str(error)[:500]}", file=sys.stderr)
        return "failed"
    finally:
        page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    has_failed = False
    with PagesSite.of(options.site) as site, browser() as chrome:
        truth = Truth(site.store())
        with peers_with(truth) as (mlflow, optuna):
            print(f"Load {os.getloadavg()[0]:.1f}. {peers.versions_of('dashboards')}")
            print("| | question | ours | MLflow | Optuna Dashboard |\n|---|---|---|---|---|")
            for number, question in enumerate(QUESTIONS, 1):
                own = Visit(chrome, site.server.base, site.server.token("admin")).open(ours.HOME)
                cells = [cell(own, question.ours, truth)]
                opened = (
                    (question.mlflow, partial(peer_page, chrome, mlflow + mlflow_pages.HOME, mlflow_pages.STORAGE)),
                    (question.optuna, partial(peer_page, chrome, optuna + optuna_pages.HOME, {})),
                )
                cells += [f"no: {way}" if isinstance(way, str) else cell(first(), way, truth) for way, first in opened]
                has_failed |= "failed" in cells
                print(f"| {number} | {question.text} | {' | '.join(cells)} |", flush=True)
            print(f"Load {os.getloadavg()[0]:.1f}.")
    if has_failed:
        sys.exit("A way did not lead to its answer, see above.")


if __name__ == "__main__":
    main()
