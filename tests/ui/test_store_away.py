"""Pages of a store that goes away: an explanation beside the last data, and new data after its return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ApiServer
from testbed.browser import Visit
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import Server, host, server_programs
from tests.support.search_world import Search
from tests.ui.steps import WAIT_MS

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
EXPLAINED = "does not answer"


@pytest.fixture
def database() -> Iterator[Server]:
    programs = server_programs()
    if programs is None:
        pytest.skip("missing: PostgreSQL's server programs (initdb, pg_ctl)")
    server = Server(programs)
    server.start()
    yield server
    server.stop()


def test_a_page_explains_that_the_store_is_away_and_goes_on_when_it_is_back(
    chrome: Browser, database: Server, tmp_path: Path
) -> None:
    with database.new_store() as url:
        search = Search(Store.open(url))
        search.store.hosts.add(host("a", slots=8))
        search.plan(max_trials=4)
        ticket = search.start(0, slots=1)
        search.validate(ticket, loss=0.5)
        api = ApiServer(tmp_path, url)
        migrate_metadata(api.environment)
        try:
            api.start()
            _leave_and_return(Visit(chrome, api.base, api.token("admin")), database, search, ticket)
        finally:
            api.stop()
            search.store.close()


def _leave_and_return(visit: Visit, database: Server, search: Search, ticket: object) -> None:
    page = visit.open("/plugin/dtrain/queue")
    shown = page.get_by_test_id("dtrain")
    expect(shown.get_by_text("1 gang", exact=True)).to_be_visible(timeout=WAIT_MS)
    database.halt()
    expect(shown.get_by_text(EXPLAINED).first).to_be_visible(timeout=WAIT_MS)
    expect(shown.get_by_text("1 gang", exact=True)).to_be_visible()
    # Another page, of which nothing is known yet.
    other = visit.context.new_page()
    other.goto(visit.base + "/plugin/dtrain/experiments")
    expect(other.get_by_test_id("dtrain").get_by_text(EXPLAINED).first).to_be_visible(timeout=WAIT_MS)
    database.resume()
    search.submit(1, slots=1)
    expect(shown.get_by_text("2 gangs", exact=True)).to_be_visible(timeout=2 * WAIT_MS)
    expect(shown.get_by_text(EXPLAINED)).to_have_count(0)
    expect(other.get_by_test_id("dtrain").get_by_text("1 experiment", exact=True)).to_be_visible(timeout=2 * WAIT_MS)
    visit.close()
