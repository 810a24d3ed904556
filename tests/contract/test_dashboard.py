"""The Grafana dashboard, on what Airflow's own OpenTelemetry and StatsD loggers write."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from opentelemetry.sdk.metrics import MeterProvider

from airflow_provider_dtrain.engine.session.gauges import emit_gauges
from airflow_provider_dtrain.hooks.meter import StatsMeter
from airflow_provider_dtrain.store.meter import Metric
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.statsd import statsd_server
from tests.support.statsd_exporter import exported

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "dtrain.json").read_text())
MAPPINGS = yaml.safe_load((ROOT / "docs" / "grafana" / "statsd-mapping.yml").read_text())["mappings"]
FAILED = {"error": "RankFailedError", "kind": "user", "message": "it failed", "host": None, "rank": 0}
#: Metrics of the gauge pass, and those with durations. All others are counts.
GAUGES = frozenset(metric for metric in Metric if metric.startswith("dtrain.pool."))
TIMINGS = frozenset([Metric.TIME_TO_GRANT])
QUERIES = [
    pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}-{target['refId']}".replace(" ", "-"))
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]


@pytest.fixture
def exposition() -> Iterator[Callable[[], str]]:
    """Return the page that Prometheus would read, with the metrics of Airflow's ``Stats``."""
    client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    reader = pytest.importorskip("opentelemetry.exporter.prometheus", reason="its exporter is not installed")
    provider = MeterProvider(metric_readers=[reader.PrometheusMetricReader()], shutdown_on_exit=False)
    stats.initialize(factory=lambda: SafeOtelLogger(provider), export_legacy_names=True)
    try:
        yield lambda: client.generate_latest().decode()
    finally:
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        provider.shutdown()


@pytest.fixture
def busy(store: Store, submit: Callable[..., Ticket], start: Callable[[Ticket], int]) -> Callable[[], None]:
    """Return a function that makes the store emit each metric once."""
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    store.db.meter = StatsMeter(stats, with_legacy_names=True)
    store.pools.set("gpus", preemption="priority", min_run_s=0.0)

    def emit() -> None:
        tickets = [submit(slots=2, preemptible=True, priority=50) for _ in range(2)]
        watches = [start(ticket) for ticket in tickets]
        urgent = submit(slots=2, priority=1)
        store.queue.schedule("gpus")
        again = store.attempts.next(tickets[0].attempt_id, watches[0], failure=FAILED, counted=True)
        emit_gauges(store)
        for ticket in (again, tickets[1], urgent):
            watch = store.attempts.watch(ticket.attempt_id, watcher="test")
            store.attempts.end(ticket.attempt_id, watch, state="errored", failure=FAILED)
            for name in store.attempts.get(ticket.attempt_id).held_hosts:
                store.queue.release(ticket.attempt_id, watch, name, proof="clear")
        for state in ("unreachable", "lost", "ready"):
            store.hosts.set_state("h2", state)

    return emit


def samples(page: str) -> dict[str, list[dict[str, str]]]:
    """Return name -> labels of each series of an exposition."""
    parser = pytest.importorskip("prometheus_client.parser")
    found: dict[str, list[dict[str, str]]] = {}
    for family in parser.text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\bairflow_\w+", expression))


def test_every_panel_reads_metrics_and_labels_that_are_emitted(
    busy: Callable[[], None], exposition: Callable[[], str]
) -> None:
    busy()
    check_panels(samples(exposition()))


def test_every_panel_reads_what_the_mapping_makes_of_statsd_once(
    busy: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with statsd_server(monkeypatch, with_tags=True) as server:
        busy()
        lines = server.until("airflow.dtrain.host.lost.gpus")
    page = exported(lines, MAPPINGS)
    check_panels({name: [dict(labels) for labels in series] for name, series in page.items()})
    assert all("pool_name" in dict(labels) for series in page.values() for labels in series)
    assert sum(page["airflow_dtrain_gang_grants_total"].values()) == 2
    assert page["airflow_dtrain_trial_finish_total"].keys() == {
        (("dag_id", "d"), ("pool_name", "gpus"), ("state", "errored"))
    }
    waited = [float(line.split(":")[1].split("|")[0]) for line in lines if "time_to_grant,pool_name" in line]
    name = "airflow_dtrain_gang_time_to_grant_milliseconds"
    assert sum(page[f"{name}_count"].values()) == len(waited) == 2
    assert sum(page[f"{name}_sum"].values()) == pytest.approx(sum(waited))


def check_panels(found: dict[str, list[dict[str, str]]]) -> None:
    """Check that every query of the dashboard finds its metrics with their labels.

    :param found: name -> labels of each series
    """
    for expression, legend in (param.values for param in QUERIES):
        names = metric_names(expression)
        assert names, expression
        labels = {*re.findall(r"by \((\w+)\)", expression), *re.findall(r"(\w+)=~?\"", expression)}
        labels |= set(re.findall(r"{{(\w+)}}", legend))
        for name in names:
            assert any(labels <= set(series) for series in found.get(name, [])), (name, labels)
    [pool] = [entry for entry in DASHBOARD["templating"]["list"] if entry["name"] == "pool"]
    assert metric_names(pool["query"]["query"]) <= set(found)


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for param in QUERIES for name in metric_names(param.values[0])}
    for metric in Metric:
        name = "airflow_" + metric.value.replace(".", "_")
        suffixes = [""] if metric in GAUGES else ["_milliseconds_sum"] if metric in TIMINGS else ["_total"]
        assert any(name + suffix in shown for suffix in suffixes), metric


def test_the_page_has_every_metric_with_its_tags() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = dict(re.findall(r"^\| `(dtrain\.[\w.]+)` \| (\w+) \|", page, re.MULTILINE))
    kinds = {m: "gauge" if m in GAUGES else "timing" if m in TIMINGS else "counter" for m in Metric}
    assert rows == {metric.value: kind for metric, kind in kinds.items()}


@pytest.mark.nightly
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed: apt-get install prometheus"
)
def test_prometheus_answers_every_query(
    busy: Callable[[], None], exposition: Callable[[], str], tmp_path: Path
) -> None:
    client = pytest.importorskip("prometheus_client")
    busy()
    server, _ = client.start_http_server(0, addr="127.0.0.1")
    try:
        with Prometheus(tmp_path, server.server_port) as ask:
            _until(lambda: ask("airflow_dtrain_gang_grants_total"))
            busy()
            _until(lambda: ask("increase(airflow_dtrain_gang_grants_total[10s]) > 0"))
            for param in QUERIES:
                expression = param.values[0].replace("$__rate_interval", "30s").replace("$pool", ".*")
                assert ask(expression), expression
    finally:
        server.shutdown()


class Prometheus:
    """A real Prometheus that scrapes a port each second."""

    def __init__(self, folder: Path, port: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        config = folder / "prometheus.yml"
        jobs = f"[{{job_name: a, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]"
        config.write_text(f"{{global: {{scrape_interval: 1s}}, scrape_configs: {jobs}}}\n")
        self._command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={self._address}",
        ]

    def __enter__(self) -> Callable[[str], list[Any]]:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self._ask

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def _ask(self, expression: str) -> list[Any]:
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]


def _until(is_so: Callable[[], object], deadline_s: float = 60.0) -> None:
    give_up_at = time.monotonic() + deadline_s
    while True:
        try:
            if is_so():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        assert time.monotonic() < give_up_at, "Prometheus has not scraped the page in time"
        time.sleep(0.2)
