"""Utilization per minute, as followers write it every few seconds."""

from __future__ import annotations

import struct

import pytest

from airflow_provider_dtrain.core.series.points import Key
from airflow_provider_dtrain.core.series.utilization import Utilization
from tests.support.telemetry import START_S, points

KEY = Key("gpu_util", "GPU-0")


@pytest.mark.parametrize("each_s", [1, 5, 10, 60])
def test_a_minute_has_the_mean_of_its_samples_however_many_commits_brought_them(each_s):
    values = [90.0] * 40 + [80.0] * 20
    found = Utilization()
    for second in range(0, 60, each_s):
        found.take({KEY: points(START_S + second, each_s, lambda index, second=second: values[second + index])})
        found = Utilization.parse(found.pack())
    assert found.rows()["gpu_util", "GPU-0"][-1] == pytest.approx(sum(values) / 60, abs=0.25)


def test_bytes_of_a_later_version_are_no_utilization():
    assert Utilization.parse(struct.pack("<IIB", START_S // 60, 2, 1) + bytes(200)).rows() == {}
