"""Metrics of the store, as Airflow's own StatsD logger sends them over a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from airflow_provider_dtrain.engine.session import gauges
from airflow_provider_dtrain.engine.session.gauges import emit_gauges, measuring
from airflow_provider_dtrain.hooks import meter as meters
from airflow_provider_dtrain.hooks.meter import StatsMeter, meter
from airflow_provider_dtrain.store.database.transactions import count, writes
from airflow_provider_dtrain.store.meter import Metric, NoMeter
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.statsd import StatsdServer, statsd_server
from tests.support.store_world import Clock, until

FAILED = {"error": "RankFailedError", "kind": "user", "message": "it failed", "host": None, "rank": 0}
Submit = Callable[..., Ticket]
Start = Callable[[Ticket], int]


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    with statsd_server(monkeypatch) as server:
        yield server


@pytest.fixture
def measured(store: Store, statsd: StatsdServer) -> Store:
    """A store with a host of two slots that emits to the server."""
    store.hosts.add(host("h1", 2))
    store.db.meter = meter()
    return store


def test_a_grant_a_restart_and_an_end_are_counted_under_airflows_prefix(
    measured: Store, statsd: StatsdServer, clock: Clock, submit: Submit, start: Start
) -> None:
    ticket = submit(slots=2)
    clock.advance(3)
    watch = start(ticket)
    lines = statsd.until("airflow.dtrain.gang.time_to_grant.gpus")
    assert {"airflow.dtrain.gang.grants:1|c", "airflow.dtrain.gang.grants.gpus:1|c"} <= set(lines)
    [wait] = [line for line in lines if line.startswith("airflow.dtrain.gang.time_to_grant:")]
    assert wait == "airflow.dtrain.gang.time_to_grant:3000.000000|ms"
    ticket = measured.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=True)
    statsd.until("airflow.dtrain.trial.restarts.gpus:1|c")
    watch = measured.attempts.watch(ticket.attempt_id, watcher="test")
    measured.attempts.end(ticket.attempt_id, watch, state="errored", failure=FAILED)
    statsd.until("airflow.dtrain.trial.finish.errored:1|c")
    measured.attempts.end(ticket.attempt_id, watch, state="errored", failure=FAILED)
    measured.hosts.set_state("h1", "unreachable")
    measured.hosts.set_state("h1", "lost")
    lines = statsd.until("airflow.dtrain.host.lost.gpus:1|c")
    assert lines.count("airflow.dtrain.trial.finish:1|c") == 1


def test_a_restart_that_is_not_counted_is_no_restart(
    measured: Store, statsd: StatsdServer, submit: Submit, start: Start
) -> None:
    ticket = submit(slots=2)
    measured.attempts.next(ticket.attempt_id, start(ticket), failure=FAILED, counted=False)
    measured.hosts.set_state("h1", "unreachable")
    measured.hosts.set_state("h1", "lost")
    assert not [line for line in statsd.until("airflow.dtrain.host.lost") if "restarts" in line]


def test_a_preemption_is_counted_when_the_queue_decides_it(
    measured: Store, statsd: StatsdServer, submit: Submit, start: Start
) -> None:
    start(submit(slots=2, preemptible=True, priority=50))
    measured.pools.set("gpus", preemption="priority", min_run_s=0.0)
    submit(slots=2, priority=1)
    measured.queue.schedule("gpus")
    statsd.until("airflow.dtrain.gang.preemptions.gpus:1|c")


def test_tags_name_the_pool_the_state_and_the_dag(
    store: Store, monkeypatch: pytest.MonkeyPatch, submit: Submit, start: Start
) -> None:
    with statsd_server(monkeypatch, with_tags=True) as server:
        store.hosts.add(host("h1", 2))
        store.db.meter = meter()
        ticket = submit(slots=2)
        store.attempts.end(ticket.attempt_id, start(ticket), state="completed", result={})
        server.until("airflow.dtrain.trial.finish,state=completed,pool_name=gpus,dag_id=d:1|c")


class Undone:
    """A component whose transaction counts something and fails."""

    def __init__(self, store: Store) -> None:
        self.db = store.db

    @writes
    def fail(self, conn) -> None:
        count(conn, Metric.RESTARTS, pool_name="undone")
        raise RuntimeError("undone")


def test_a_transaction_that_is_undone_counts_nothing(measured: Store, statsd: StatsdServer) -> None:
    with pytest.raises(RuntimeError):
        Undone(measured).fail()
    measured.hosts.set_state("h1", "unreachable")
    measured.hosts.set_state("h1", "lost")
    assert not [line for line in statsd.until("airflow.dtrain.host.lost") if "undone" in line]


def test_gauges_show_slots_and_gangs_of_each_pool(
    measured: Store, statsd: StatsdServer, submit: Submit, start: Start
) -> None:
    measured.hosts.add(host("h2", 4))
    measured.hosts.add(host("h3", 1))
    measured.hosts.set_slot_enabled("h2", 0, False)
    measured.hosts.set_state("h3", "unreachable")
    measured.hosts.set_state("h3", "lost")
    start(submit(slots=2))
    submit(slots=4, on_unplaceable="wait")
    measured.queue.schedule("gpus")
    emit_gauges(measured)
    lines = set(statsd.until("airflow.dtrain.pool.lost_hosts.gpus"))
    expected = {
        "free_slots": 3, "used_slots": 2, "unusable_slots": 2, "waiting_gangs": 1, "running_gangs": 1, "lost_hosts": 1
    }  # fmt: skip
    for name, value in expected.items():
        assert {f"airflow.dtrain.pool.{name}:{value}|g", f"airflow.dtrain.pool.{name}.gpus:{value}|g"} <= lines


def test_gauges_are_emitted_during_the_work_and_once_after_it(
    measured: Store, statsd: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_S", 0.01)
    with measuring(measured), measuring(measured):
        statsd.until("airflow.dtrain.pool.free_slots:2|g")
        assert gauges._passes_of(measured)._thread is not None
        measured.hosts.set_slot_enabled("h1", 0, False)
    statsd.until("airflow.dtrain.pool.free_slots:1|g")
    until(lambda: gauges._passes_of(measured)._thread is None)


def test_the_gauges_outlive_a_store_that_is_away(
    measured: Store, statsd: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_S", 0.01)
    answers: list[object] = [OSError("away")]
    pools = measured.cluster_page.pools
    monkeypatch.setattr(measured.cluster_page, "pools", lambda: _raise(answers.pop()) if answers else pools())
    with measuring(measured):
        statsd.until("airflow.dtrain.pool.free_slots:2|g")
    assert not answers


def _raise(error):
    raise error


@pytest.mark.each_change("sqlite")
def test_nothing_is_emitted_and_no_thread_starts_while_metrics_are_off(store: Store) -> None:
    assert isinstance(store.db.meter, NoMeter)
    assert isinstance(meter(), NoMeter)
    with measuring(store):
        assert not [key for key in gauges._passes if key[1] is store]


def test_a_process_that_airflow_has_not_configured_configures_its_stats(
    statsd: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commands and the API server: none of Airflow's modules has initialized the SDK's Stats there.
    monkeypatch.setitem(meters._stats().initialize.__globals__, "_factory", None)
    meter().count(Metric.GRANTS, 2, {"pool_name": "a.b"})
    assert statsd.until("airflow.dtrain.gang.grants.a__b:2|c")


class Broken:
    """Stats whose backend fails."""

    @staticmethod
    def timing(name: str, value: timedelta, tags: dict[str, str]) -> None:
        raise ValueError(name)


def test_a_metric_that_fails_is_logged_and_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    StatsMeter(Broken, with_legacy_names=False).timing(Metric.TIME_TO_GRANT, 1.0, {"pool_name": "gpus"})
    assert "dtrain.gang.time_to_grant was not emitted" in caplog.text
