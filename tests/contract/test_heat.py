"""Heat map of the slots: the latest minute of each device, and nothing where nothing measures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_provider_dtrain.core.series.points import Key
from airflow_provider_dtrain.resources.heat import HeatMetric
from airflow_provider_dtrain.store.queries.heat import heat_of
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry
from airflow_provider_dtrain.store.records.trials import SlotRecord
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.telemetry import START_S, points

GIB = 2**30


def at(second: float) -> datetime:
    return datetime.fromtimestamp(START_S + second, UTC)


@pytest.fixture
def running(store, submit, start, clock):
    """A running trial on hosts a (GPUs) and c (CPU slots)."""
    clock.now = at(0)
    store.hosts.add(host("a", 3))
    cpus = tuple(SlotRecord(index=index) for index in range(2))
    of_cpus = host("c", pool="cpus", slot_type="cpu", facts={"memory_bytes": 64 * GIB})
    store.hosts.add(replace(of_cpus, slots=cpus))
    ticket = submit("t", slots=2)
    return ticket, start(ticket)


def measure(store, running, name: str, start: int, count: int, **values: float) -> None:
    ticket, watch = running
    series = {}
    for metric, value in values.items():
        own, _, slot = metric.partition("__")
        series[Key(own, f"GPU-a-{slot}" if slot else "")] = points(START_S + start, count, value)
    assert store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host=name, series=series)])


def test_each_slot_has_the_latest_minute_of_its_device_and_others_have_a_gap(store, running, clock):
    clock.now = at(180)
    measure(store, running, "a", 0, 60, gpu_util__0=10, gpu_free_memory__0=80 * GIB, gpu_power__1=100)
    measure(
        store,
        running,
        "a",
        60,
        60,
        gpu_util__0=90,
        gpu_free_memory__0=20 * GIB,
        gpu_temperature__1=61,
        gpu_power__1=312.5,
    )
    shown = {metric: heat_of(store, ["a", "nowhere"], metric) for metric in HeatMetric}
    values = {metric.value: [one.slots for one in found.hosts] for metric, found in shown.items()}
    assert values == {
        "load": [[90, None, None]],
        "memory": [[75, None, None]],
        "temperature": [[None, 61, None]],
        "power": [[None, 312.5, None]],
    }
    power, load = shown[HeatMetric.POWER], shown[HeatMetric.LOAD]
    assert (power.unit, power.minimum, power.maximum) == ("W", 0, 400)
    assert (load.unit, load.minimum, load.maximum) == ("%", 0, 100)


def test_a_value_of_some_minutes_ago_is_not_shown_as_the_present_one(store, running, clock):
    clock.now = at(60)
    measure(store, running, "a", 0, 60, gpu_util__0=10, gpu_temperature__0=50)
    for second, count in ((170, 1), (600, 0)):
        clock.now = at(second)
        for metric in (HeatMetric.LOAD, HeatMetric.TEMPERATURE):
            assert len(heat_of(store, ["a"], metric).hosts) == count, (second, metric)


def test_cpu_slots_have_load_and_memory_of_their_host_and_no_temperature(store, running, clock):
    clock.now = at(60)
    measure(store, running, "c", 0, 60, cpu_util=40, memory_available=16 * GIB)
    assert [one.slots for one in heat_of(store, ["c"], HeatMetric.LOAD).hosts] == [[40, 40]]
    assert [one.slots for one in heat_of(store, ["c"], HeatMetric.MEMORY).hosts] == [[75, 75]]
    assert heat_of(store, ["c"], HeatMetric.TEMPERATURE).hosts == []


def test_more_free_memory_than_a_device_has_is_no_value(store, running, clock):
    clock.now = at(60)
    measure(store, running, "a", 0, 60, gpu_free_memory__0=90 * GIB)
    assert heat_of(store, ["a"], HeatMetric.MEMORY).hosts == []


def test_the_latest_minutes_of_facts_leave_the_row_of_a_host_small(store, running, clock):
    """Two hours of utilization are kept, and only some minutes of what the heat map alone shows."""
    ticket, _ = running
    for minute in range(20):
        clock.now = at(60 * (minute + 1))
        measure(
            store, running, "a", 60 * minute, 60, gpu_util__0=minute, gpu_temperature__0=minute, gpu_power__0=minute
        )
    (line,) = store.telemetry.sparklines(["a"], at(0), points=20)
    assert (line.metric, line.mean.count(None)) == ("gpu_util", 0)
    assert store.telemetry.latest(["a"])["a", "GPU-a-0", "gpu_power"] == 19


@pytest.mark.airflow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_route_answers_for_the_named_hosts_and_refuses_other_metrics(store, running, clock, airflow_home):
    api = Api(store)
    clock.now = at(60)
    measure(store, running, "a", 0, 60, gpu_util__0=10)
    found = api.get("/cluster/heat", metric="load", host=["a", "<b>"])
    assert [(one["name"], one["slots"]) for one in found["hosts"]] == [("a", [10, None, None])]
    assert api.get("/cluster/heat")["hosts"] == []
    assert api.answer("GET", "/cluster/heat?metric=colour").status_code == 422
