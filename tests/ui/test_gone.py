"""Pages of trials that are gone from the store while they are open. Only a restored backup takes trials away."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from airflow_provider_dtrain.store.store import Store, migrate
from testbed.api_server import ApiServer
from testbed.browser import Visit
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import host
from tests.support.search_world import Search
from tests.ui.steps import WAIT_MS

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    """A search with one trial, in a file of SQLite."""
    url = f"sqlite:///{tmp_path / 'dtrain.db'}"
    migrate(url)
    found = Search(Store.open(url), name="kept")
    found.store.hosts.add(host("a", slots=8))
    found.plan(max_trials=4)
    trained(found, 0)
    yield found
    found.store.close()


@pytest.fixture
def api(search: Search, tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path / "airflow", f"sqlite:///{tmp_path / 'dtrain.db'}")
    migrate_metadata(server.environment)
    server.start()
    yield server
    server.stop()


def trained(search: Search, number: int) -> int:
    """Start a trial that reports, and return its id."""
    ticket = search.start(number, slots=1)
    search.validate(ticket, loss=0.5)
    search.validate(ticket, loss=0.25)
    return ticket.trial_id


def copied(source: Path, target: Path) -> None:
    """Copy a database into another one that may be open, as ``.backup`` and ``.restore`` of ``sqlite3`` do."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target, timeout=30)) as new:
        old.backup(new)


def test_pages_of_trials_that_a_restored_backup_lacks_explain_it_beside_their_last_data(
    search: Search, api: ApiServer, chrome: Browser, tmp_path: Path, screenshot: Callable[[Visit, str], None]
) -> None:
    store, backup = tmp_path / "dtrain.db", tmp_path / "backup.db"
    kept = search.store.trials.list()[0].trial_id
    copied(store, backup)
    lost = trained(search, 1)
    other = Search(search.store, name="lost", run="lost")
    trained(other, 0)
    assert other.view is not None
    of_lost = other.view.experiment_id
    assert search.view is not None
    addresses = {
        "trial": (f"trials/{lost}", "loss 0.25 at step 7"),
        "compare": (f"compare?trial={kept}&trial={lost}", "Compare 2 trials"),
        "experiment": (f"experiments/{of_lost}", "1 running, 4 trials planned"),
        "trials": (f"experiments/{search.view.experiment_id}?tab=trials", "2 trials"),
    }
    visits = {name: Visit(chrome, api.base, api.token("admin")) for name in addresses}
    for name, (path, text) in addresses.items():
        visits[name].open(f"/plugin/dtrain/{path}")
        expect(shown(visits[name].page, text)).to_be_visible(timeout=WAIT_MS)

    copied(backup, store)

    explained = {
        "trial": f"There is no trial {lost}.",
        "compare": f"There is no trial {lost}.",
        "experiment": f"There is no experiment {of_lost}.",
    }
    for name, words in explained.items():
        page = visits[name].page
        expect(page.get_by_role("alert").filter(has_text=words).first).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text("restored from an older backup").first).to_be_visible()
        expect(shown(page, addresses[name][1])).to_be_visible()
        screenshot(visits[name], f"gone-{name}")
    expect(shown(visits["trials"].page, "1 trial")).to_be_visible(timeout=WAIT_MS)
    screenshot(visits["trials"], "gone-trials")
    # A page that is opened now has nothing but the explanation.
    for name, words in explained.items():
        page = visits[name].open(f"/plugin/dtrain/{addresses[name][0]}")
        page.reload()
        visits[name].settle()
        expect(page.get_by_role("alert").filter(has_text=words).first).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text("restored from an older backup")).to_have_count(0)
        expect(page.get_by_role("link", name="Experiments", exact=True).first).to_be_visible()
        screenshot(visits[name], f"gone-{name}-opened")
    for one in visits.values():
        assert [error for error in one.errors if "404" not in error] == []
        one.close()


def shown(page: Page, text: str) -> Locator:
    return page.get_by_test_id("dtrain").get_by_text(text, exact=True).first
