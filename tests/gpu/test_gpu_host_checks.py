"""Measurement of a real GPU: plausible rates, which repeat."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_dtrain.core.host_rates import RateMetric, rates_of
from tests.support.nvidia_smi import users, uuid
from tests.support.supervisor_host import Host, until

pytestmark = pytest.mark.gpu

ASKED = {"store": "s", "token": 1, "python": sys.executable, "windows": 6, "disk_bytes": 0, "cpu_share": 0.0}


def test_rates_of_a_gpu_are_plausible_and_repeat(one_host: Host) -> None:
    checks = []
    channel = one_host.channel()
    for _ in range(2):
        answer = channel.call("measure", slots=[{"index": 0, "device": uuid()}], limit_s=120.0, **ASKED)
        rates, problems = rates_of("h", answer["results"], [0])
        assert problems == []
        checks.append({rate.metric: rate for rate in rates})
    for check in checks:
        assert set(check) == {RateMetric.MATMUL, RateMetric.MEMORY}
        assert 1e12 < check[RateMetric.MATMUL].value < 5e15
        assert 1e10 < check[RateMetric.MEMORY].value < 2e13
        assert all(rate.slot == 0 and rate.spread < 0.1 for rate in check.values())
    for metric in checks[0]:
        assert checks[1][metric].value == pytest.approx(checks[0][metric].value, rel=0.1)
    until(lambda: not users(), "a free GPU")
