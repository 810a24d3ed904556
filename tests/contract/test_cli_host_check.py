"""``airflow dtrain hosts check --evacuate`` with the results of a check."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.cli import hosts
from airflow_provider_dtrain.core.host_rates import HostRate, RateMetric, SlowRate
from airflow_provider_dtrain.engine.attempt.host_rates import Measured
from airflow_provider_dtrain.engine.operations import host_rates
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host


def rate(host: str, value: float) -> HostRate:
    return HostRate(host=host, metric=RateMetric.MEMORY, kind="AMD", value=value)


@pytest.mark.parametrize("evacuates", [True, False])
def test_hosts_that_a_check_names_are_drained_on_request_but_not_all_of_a_pool(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    evacuates: bool,
) -> None:
    names = ["a", "b"]
    for name in names:
        store.hosts.add(host(name, 1))
    rates = [rate(name, 1e9) for name in names]
    found = Measured(rates=rates, slow=[SlowRate(rate=one, reference=1e10, basis="peers") for one in rates])
    monkeypatch.setattr(host_rates, "check_hosts", lambda *_, **__: found)
    monkeypatch.setattr(hosts, "_hook", lambda: SimpleNamespace(store=store, ensure_local=lambda: None))
    options = {"tolerance": 0.15, "python": None, "wait": 0.0, "output": "json", "evacuate": evacuates}
    with pytest.raises(SystemExit) as ended:
        hosts.check(Namespace(host=names, pool=None, **options))
    assert ended.value.code == 1
    states = sorted(store.hosts.get(name).state for name in names)
    assert states == (["drained", "ready"] if evacuates else ["ready", "ready"])
    notes = capsys.readouterr().err
    assert notes.count("is drained, and gangs there resume elsewhere") == evacuates
    assert notes.count("is not drained: it is not ready, or it is the last ready host of its pool") == evacuates
