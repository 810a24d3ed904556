"""Tiers of the telemetry: what compaction and retention keep."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.series.points import Key
from airflow_provider_dtrain.core.series.tiers import TIERS
from airflow_provider_dtrain.store.database.tables import telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry
from airflow_provider_dtrain.store.telemetry import compaction
from testbed.stores import host
from tests.support.telemetry import START_S, points

CPU = Key("cpu_util")
HOUR, DAY = 3600, 86_400


@pytest.fixture(autouse=True)
def at_the_first_point(clock):
    """The time is that of the first point."""
    clock.now = at(0)


@pytest.fixture
def running(store, submit, start):
    store.hosts.add(host("a", 8))
    ticket = submit("t", slots=2)
    return ticket, start(ticket)


def add(store, running, start, count, value=50.0, name="a", key=CPU):
    ticket, watch = running
    part = HostTelemetry(host=name, series={key: points(START_S + start, count, value)})
    assert store.telemetry.add(ticket.attempt_id, watch, [part])


def rows(store):
    """Return the number of rows per (metric, step)."""
    of = telemetry_chunks.c
    with store.db.engine.connect() as connection:
        query = sa.select(of.metric, of.step_s, sa.func.count()).group_by(of.metric, of.step_s)
        return {(metric, step): count for metric, step, count in connection.execute(query)}


def series(store, running, **arguments):
    (found,) = store.telemetry.series(running[0].trial_id, metrics=["cpu_util"], **arguments)
    return found


def at(second):
    return datetime.fromtimestamp(START_S + second, UTC)


def test_slices_become_chunks_of_each_tier_and_answers_stay_the_same(store, running):
    for start in range(0, 700, 10):
        add(store, running, start, 10, lambda index, start=start: (start + index) % 100)
    before = series(store, running), series(store, running, max_points=80)
    store.telemetry.compact(running[0].attempt_id)
    assert rows(store) == {("cpu_util", 1): 2, ("cpu_util", 10): 1, ("cpu_util", 60): 1, ("cpu_util", 600): 1}
    assert (series(store, running), series(store, running, max_points=80)) == before
    store.telemetry.compact(running[0].attempt_id)
    assert sum(rows(store).values()) == 5, "nothing is compacted twice"


def test_later_slices_are_merged_into_the_chunks_of_their_time(store, running):
    for start, count in ((0, 95), (95, 530), (625, 75)):
        add(store, running, start, count, lambda index, start=start: (start + index) % 100)
        store.telemetry.compact(running[0].attempt_id)
    assert rows(store) == {("cpu_util", 1): 2, ("cpu_util", 10): 1, ("cpu_util", 60): 1, ("cpu_util", 600): 1}
    assert series(store, running).mean == [second % 100 for second in range(700)]
    by_minute = series(store, running, max_points=12)
    assert (by_minute.step_s, len(by_minute.at_s)) == (60, 12)
    assert by_minute.mean[1] == pytest.approx(sum(second % 100 for second in range(60, 120)) / 60, rel=0.001)
    add(store, running, 700, 5, key=Key("gpu_util", "GPU-1"))
    store.telemetry.compact(running[0].attempt_id)
    assert series(store, running).mean == [second % 100 for second in range(700)], "a compaction without this metric"


def test_points_that_come_late_are_merged(store, running):
    add(store, running, 0, 700)
    store.telemetry.compact(running[0].attempt_id)
    add(store, running, 590, 20, 99.0)
    for _ in range(2):
        found = series(store, running)
        assert found.mean[589] == 50.0
        assert found.mean[590:610] == [pytest.approx(74.5, rel=0.001)] * 20, "the mean of both samples of a second"
        store.telemetry.compact(running[0].attempt_id)
    assert store.telemetry.gaps(running[0].trial_id) == {}


def test_a_compaction_of_many_slices_takes_several_transactions(store, running, monkeypatch):
    monkeypatch.setattr(compaction, "SLICES_MOST", 7)
    for start in range(0, 200, 10):
        add(store, running, start, 10)
    store.telemetry.compact(running[0].attempt_id)
    assert rows(store) == {("cpu_util", tier.step_s): 1 for tier in TIERS}
    assert series(store, running).mean == [50.0] * 200


@pytest.mark.parametrize("hours", [7])
def test_every_tier_has_the_extremes_and_the_mean_of_the_whole(store, running, hours):
    spike = 2 * HOUR + 77
    for start in range(0, hours * HOUR, HOUR):
        add(store, running, start, HOUR, lambda index, start=start: 100 if start + index == spike else 10)
        store.telemetry.compact(running[0].attempt_id)
    assert rows(store) == {("cpu_util", 1): 42, ("cpu_util", 10): 7, ("cpu_util", 60): 2, ("cpu_util", 600): 1}
    for most in (20_000, 3000, 500, 40):
        found = series(store, running, max_points=most)
        assert len(found.at_s) <= most
        assert (min(found.minimum), max(found.maximum)) == (10.0, 100.0)
        assert None not in found.mean
        assert found.at_s[0] == START_S
        (place,) = [second for second, value in zip(found.at_s, found.maximum, strict=True) if value == 100.0]
        assert place <= START_S + spike < place + found.step_s
        assert sum(found.mean) / len(found.mean) == pytest.approx(10 + 90 / (hours * HOUR), rel=0.002)
    (whole,) = store.telemetry.ranges(running[0].trial_id)
    assert whole.count == hours * HOUR


def test_each_tier_goes_when_its_time_is_over_and_the_coarser_one_answers(store, running, clock):
    for start in range(0, 8 * HOUR, HOUR):
        add(store, running, start, HOUR)
    store.telemetry.compact(running[0].attempt_id)
    clock.now = at(8 * HOUR)
    prune(store)
    assert rows(store)["cpu_util", 1] == 7, "the windows of the last hour, and the one that ends where it begins"
    recent = series(store, running, since=at(8 * HOUR - 60), max_points=100)
    old = series(store, running, since=at(60), until=at(120), max_points=100)
    assert (recent.step_s, old.step_s) == (1, 10)
    whole = series(store, running, max_points=3000)
    assert (whole.step_s, None in whole.mean, len(whole.at_s)) == (10, False, 2880), "one length everywhere"
    clock.now = at(8 * HOUR + DAY)
    prune(store)
    assert ("cpu_util", 1) not in rows(store)
    oldest = series(store, running, since=at(60), until=at(240), max_points=100)
    assert (oldest.step_s, oldest.at_s) == (60, [START_S + 60, START_S + 120, START_S + 180])
    assert oldest.mean == [50.0] * 3
    whole = series(store, running)
    assert (whole.step_s, None in whole.mean, whole.at_s[0], whole.at_s[-1]) == (60, False, START_S, START_S + 28_740)


def prune(store, days=30):
    return sum(one.count for one in store.telemetry.prune(days))


def test_nothing_is_left_after_the_days_of_the_option_and_0_keeps_it(store, running, clock):
    ticket, watch = running
    clock.now = at(1000)
    add(store, running, 0, 1000)
    store.attempts.end(ticket.attempt_id, watch, state="completed")
    clock.now = at(32 * DAY)
    assert prune(store, days=0) > 0, "finer tiers"
    assert rows(store) == {("cpu_util", 60): 1, ("cpu_util", 600): 1}
    assert store.telemetry.prunable(30).count == 2
    assert prune(store, days=30) == 2
    assert rows(store) == {}
    with store.db.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(telemetry_hosts)) == 0
    assert store.telemetry.series(ticket.trial_id) == []


def test_slices_that_a_dead_follower_has_left_are_compacted_by_retention(store, running, clock):
    clock.now = at(100)
    add(store, running, 0, 100)
    prune(store)
    assert rows(store) == {("", 0): 1}, "its follower may live"
    clock.now = at(HOUR + 101)
    prune(store)
    assert rows(store) == {("cpu_util", tier.step_s): 1 for tier in TIERS}
    assert series(store, running).at_s == [START_S + second for second in range(0, 100, 10)]


@pytest.mark.each_change
def test_a_compaction_that_another_process_overtakes_changes_nothing(store, running, monkeypatch):
    add(store, running, 0, 700)
    ticket, _ = running
    original = store.telemetry._write_compaction

    def overtaken(compaction):
        monkeypatch.setattr(store.telemetry, "_write_compaction", original)
        add(store, running, 700, 1)
        return original(compaction)

    monkeypatch.setattr(store.telemetry, "_write_compaction", overtaken)
    store.telemetry.compact(ticket.attempt_id)
    assert rows(store) == {("", 0): 2}
    store.telemetry.compact(ticket.attempt_id)
    assert rows(store)["cpu_util", 1] == 2
    assert len(series(store, running).at_s) == 701


def test_a_damaged_chunk_is_left_out_and_the_rest_is_shown(store, running):
    for start in (0, 600, 1200):
        add(store, running, start, 600)
    store.telemetry.compact(running[0].attempt_id)
    of = telemetry_chunks.c
    with store.db.engine.begin() as connection:
        damaged = (of.step_s == 1, of.start_s == START_S + 600)
        connection.execute(telemetry_chunks.update().where(*damaged).values(data=b"\x03damaged"))
    found = series(store, running)
    assert found.mean.count(None) == 1
    assert len(found.at_s) == 1201
    add(store, running, 700, 10)
    store.telemetry.compact(running[0].attempt_id)
    assert len(series(store, running).at_s) == 600 + 1 + 10 + 1 + 600, "new points replace what cannot be read"
