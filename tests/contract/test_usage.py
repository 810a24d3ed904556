"""Slot hours by day: from the grant to the release of each gang, with the rights of the reader."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.slot_hours import SlotUse, days_until, slot_hours
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.usage import UsageBy
from airflow_provider_dtrain.store.database.tables import allocations
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.usage import ROWS_MOST, usage_of
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def use(name: str, slots: int, since_h: float, until_h: float) -> SlotUse:
    first, last = (int(hours // 24) for hours in (since_h, until_h))
    seconds = {"since_s": slots * since_h * 3600, "until_s": slots * until_h * 3600}
    return SlotUse(name=name, first=first, last=last, slots=slots, **seconds)


def test_a_gang_counts_on_each_day_that_it_held_its_slots() -> None:
    assert days_until(NOON, 3) == [date(2026, 3, 8), date(2026, 3, 9), date(2026, 3, 10)]
    # The clock of the process that reports may be behind.
    uses = [use("a", 4, 22, 52), use("a", 1, 60, 60.5), use("since long", 1, 0, 100)]
    assert slot_hours(uses, 3) == {"a": [8, 96, 16.5], "since long": [24, 24, 24]}


def test_days_are_those_of_utc() -> None:
    east = datetime.fromisoformat("2026-03-11T01:00:00+09:00")
    assert days_until(east, 1) == [date(2026, 3, 10)]


@pytest.fixture
def site(store, clock) -> Search:
    """Two experiments and a held gang: DAG d of user ann, DAG other of no user, DAG held."""
    clock.now = NOON
    store.hosts.add(host("a", slots=8))
    found, other = Search(store), Search(store, name="other", dag="other", run="r2")
    for one in (found, other):
        one.plan()
    granted = {"config_id": found.config, "payload": None, "user_id": "ann"}
    store.submissions.add(Submission(dag_id="d", run_id="r", **granted))
    ended = found.start(0, slots=4)
    other.start(0, slots=1)
    store.gangs.submit(GangSubmission(key=TrialKey(dag_id="held", run_id="r", task_id="hold"), pool="gpus", slots=2))
    store.queue.schedule("gpus")
    found.submit(1, slots=8)
    clock.advance(3600)
    found.end(ended)
    clock.advance(3600)
    return found


def of(store, by: UsageBy, rights=None, **options) -> dict[str, float]:
    found = usage_of(store, rights or AllRights(), by=by, days=options.pop("days", 2), **options)
    return {row.name: round(row.total, 3) for row in found.rows}


def test_released_gangs_count_to_their_release_and_others_until_now(store, site) -> None:
    assert of(store, UsageBy.POOL) == {"gpus": 4 * 1 + 1 * 2 + 2 * 2}
    assert of(store, UsageBy.DAG) == {"d": 4, "held": 4, "other": 2}
    assert of(store, UsageBy.USER) == {"ann": 4, "": 6}
    assert of(store, UsageBy.POOL, pool="nowhere") == {}


def test_the_next_day_begins_at_midnight(store, site, clock) -> None:
    clock.now = NOON + timedelta(hours=14)
    found = usage_of(store, AllRights(), by=UsageBy.DAG, days=2)
    assert {row.name: row.slot_hours for row in found.rows} == {"held": [24, 4], "other": [12, 2], "d": [4, 0]}
    assert of(store, UsageBy.DAG, days=1) == {"held": 4, "other": 2}


def brute_force(grants: list[tuple[int, datetime, datetime]], days: list[date]) -> list[float]:
    """Return the slot hours of each day, grant by grant."""
    begins = [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days]
    return [
        sum(
            max(0.0, slots * (min(until, begin + timedelta(days=1)) - max(since, begin)).total_seconds() / 3600)
            for slots, since, until in grants
        )
        for begin in begins
    ]


def test_the_sums_of_the_database_are_those_of_single_grants(store, clock) -> None:
    clock.now = NOON
    store.hosts.add(host("a", slots=8))
    drawn = random.Random(5)
    submitted = GangSubmission(key=TrialKey(dag_id="d", run_id="r", task_id="t"), pool="gpus", slots=1)
    midnight = datetime(2026, 3, 10, tzinfo=UTC)
    grants = [(3, midnight - timedelta(days=1), midnight), (1, midnight, midnight + timedelta(milliseconds=1))]
    for _ in range(200):
        since = NOON - timedelta(hours=drawn.uniform(0, 24 * 9))
        until = None if drawn.random() < 0.1 else since + timedelta(hours=drawn.uniform(-2, 60))
        grants.append((drawn.randint(1, 64), since, until))
    first = store.gangs.submit(submitted)
    with store.db.engine.begin() as conn:
        row = dict(conn.execute(sa.select(allocations).where(allocations.c.id == first.allocation_id)).mappings().one())
        rows = [
            row | {"id": 100 + n, "slots": slots, "granted_at": since, "ended_at": until, "state": "released"}
            for n, (slots, since, until) in enumerate(grants)
        ]
        conn.execute(allocations.insert(), rows)
    found = usage_of(store, AllRights(), by=UsageBy.POOL, days=5)
    expected = brute_force([(slots, since, until or NOON) for slots, since, until in grants], days_until(NOON, 5))
    assert found.rows[0].slot_hours == pytest.approx(expected, abs=0.02)
    assert min(expected) > 500


def test_many_names_are_added_up(store, site, monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.store.queries.usage.ROWS_MOST", 2)
    found = usage_of(store, AllRights(), by=UsageBy.DAG, days=1)
    assert ([row.name for row in found.rows], found.more, found.rows[-1].total) == (["d", "held", ""], 1, 2)
    assert ROWS_MOST == 50


@pytest.mark.parametrize("days", [0, -1, 93, 10**9])
@SQLITE
def test_a_report_has_a_bound(store, site, days: int) -> None:
    with pytest.raises(UserError, match="from 1 to 92"):
        usage_of(store, AllRights(), by=UsageBy.POOL, days=days)


@pytest.mark.airflow
@SQLITE
def test_dags_that_a_user_may_not_read_are_counted_without_names_and_users(store, site, airflow_home) -> None:
    reader = Api(store, readable={"other"})
    for by, rows in (("dag", {"other": 2, "": 8}), ("user", {"": 10}), ("pool", {"gpus": 10})):
        answer = reader.answer("GET", f"/cluster/usage?by={by}&days=2")
        assert {row["name"]: row["total"] for row in answer.json()["rows"]} == rows
        assert "ann" not in answer.text
        assert "held" not in answer.text
    for query in ("by=name", "days=0", "days=x", "pool=" + "p" * 64):
        assert reader.answer("GET", f"/cluster/usage?{query}").status_code == 422, query
