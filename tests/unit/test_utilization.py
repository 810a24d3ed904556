"""Utilization per minute, as followers write it every few seconds."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.series.chunk import decode
from airflow_provider_dtrain.core.series.points import Key
from airflow_provider_dtrain.store.telemetry.sparklines import MINUTES, with_utilization
from tests.support.telemetry import START_S, points

KEY = Key("gpu_util", "GPU-0")


@pytest.mark.parametrize("each_s", [1, 5, 10, 60])
def test_a_minute_has_the_mean_of_its_samples_however_many_commits_brought_them(each_s):
    values = [90.0] * 40 + [80.0] * 20
    data = None
    for second in range(0, 60, each_s):
        part = points(START_S + second, each_s, lambda index, second=second: values[second + index])
        data = with_utilization(data, {KEY: part})
    found = decode(data)[KEY]
    assert (found.at, found.count) == ([START_S], [60])
    assert found.mean == [pytest.approx(sum(values) / 60, abs=0.25)]


def test_the_last_two_hours_of_both_metrics_are_kept_and_series_without_a_minute_go():
    data = with_utilization(
        None, {Key("net_sent"): points(START_S, 60, 1), Key("gpu_util", "GPU-1"): points(START_S, 60, 1)}
    )
    for minute in range(MINUTES + 5):
        data = with_utilization(data, {KEY: points(START_S + 60 * minute, 60, minute % 100)})
    (found,) = decode(data).items()
    assert found[0] == KEY
    assert found[1].at == [START_S + 60 * minute for minute in range(5, MINUTES + 5)]
    assert found[1].mean == [minute % 100 for minute in range(5, MINUTES + 5)]
    assert with_utilization(data, {}) == data


def test_damaged_bytes_are_no_utilization():
    assert decode(with_utilization(b"\x03damaged", {KEY: points(START_S, 60, 7)}))[KEY].mean == [7.0]
