"""Lines of measurements from hosts: honest ones become points, hostile ones become gaps."""

from __future__ import annotations

import json
import time
import zlib
from typing import Any

import pytest

from airflow_provider_dtrain.core.series.measurements import Clock, Measured, Reading, read
from airflow_provider_dtrain.core.series.metrics import OF_RANKS, SYSTEM_METRICS
from airflow_provider_dtrain.core.series.points import Key

NOW = 1_767_312_000.0
HOST = Measured(rank=None, devices=frozenset({"GPU-1"}), ranks=frozenset({1, 2}))
RANK = Measured(rank=3)
CLOCK = Clock(boot_s=None, wall_s=0.0)


def line(**fields: Any) -> bytes:
    body = json.dumps({"seq": 1, "at": NOW, **fields}, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def system(**fields: Any) -> bytes:
    return line(kind="system", **fields)


def timings(us: Any, **fields: Any) -> bytes:
    return line(kind="timings", first=0, batches=1, us=us, **fields)


def reading(data: bytes, source: Measured = HOST, clock: Clock = CLOCK) -> Reading:
    return read(data, source, clock, earliest_s=NOW - 1000, latest_s=NOW + 60)


def codes(found: Reading) -> dict[str, int]:
    return {code: lines for code, (lines, _, _) in found.gaps.items()}


def test_samples_of_one_second_become_one_point() -> None:
    found = reading(b"".join(system(at=NOW + at / 4, cpu_util=value) for at, value in enumerate((10, 20, 30, 40, 50))))
    points = found.series[Key("cpu_util")]
    assert (points.at, points.count) == ([int(NOW), int(NOW) + 1], [4, 1])
    assert (points.mean, points.minimum, points.maximum) == ([25.0, 50.0], [10.0, 50.0], [40.0, 50.0])
    assert found.gaps == {}


def test_timings_are_in_seconds_and_keep_their_extremes() -> None:
    found = reading(timings({"backward": [4, 2000, 100, 900]}), RANK)
    points = found.series[Key("backward", "", 3)]
    assert (points.count, points.mean, points.minimum, points.maximum) == ([4], [0.0005], [0.0001], [0.0009])


def test_gpus_of_the_plan_are_taken_and_no_other_device() -> None:
    gpus = [
        {"uuid": "GPU-1", "gpu_util": 5, "gpu_free_memory": 7},
        {"uuid": "<script>alert(1)</script>", "gpu_util": 5},
        {"uuid": "GPU-2", "gpu_util": 5},
        {"gpu_util": 5},
        "GPU-1",
        {"uuid": ["GPU-1"]},
    ]
    found = reading(system(cpu_util=1, gpus=gpus))
    assert set(found.series) == {Key("cpu_util"), Key("gpu_util", "GPU-1"), Key("gpu_free_memory", "GPU-1")}
    assert codes(found) == {"value": 5}


def test_facts_of_the_ranks_of_the_plan_are_taken_and_of_no_other_rank() -> None:
    ranks = [
        {"rank": 1, "cpu_wait": 5, "cpu_throttled": 7},
        {"rank": 2, "cpu_wait": 101, "cpu_steal": 5},
        {"rank": 3, "cpu_wait": 5},
        {"rank": True, "cpu_wait": 5},
        {"rank": [1], "cpu_wait": 5},
        {"cpu_wait": 5},
        1,
    ]
    found = reading(system(cpu_wait=5, ranks=ranks))
    assert set(found.series) == {Key("cpu_wait", "", 1), Key("cpu_throttled", "", 1)}
    assert codes(found) == {"value": 6}
    assert reading(system(ranks={"rank": 1})).series == {}


def test_a_uuid_of_many_megabytes_costs_no_more_than_its_bytes() -> None:
    began = time.process_time()
    found = reading(system(gpus=[{"uuid": "x" * (10 << 20)}]))
    assert found.series == {}
    assert codes(found) == {"invalid": 1}
    assert time.process_time() - began < 1


def test_invented_names_make_no_series() -> None:
    names = {f"name{number}": [1, 1, 1, 1] for number in range(500)}
    found = reading(timings({**names, "backward": [1, 5, 5, 5]}), RANK)
    assert set(found.series) == {Key("backward", "", 3)}
    assert codes(found) == {"value": 500}
    found = reading(system(**dict.fromkeys(names, 1), cpu_util=5, train_batch=5))
    assert set(found.series) == {Key("cpu_util")}


@pytest.mark.parametrize("value", [-1, 100.1, 1e300, "5", [5], True, {}, 10**18])
def test_a_value_out_of_its_range_is_a_gap(value: object) -> None:
    found = reading(system(cpu_util=value, memory_available=5))
    assert set(found.series) == {Key("memory_available")}
    assert codes(found) == {"value": 1}


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_are_not_finite_are_refused_with_their_line(text: str) -> None:
    body = f'{{"seq":1,"at":{NOW},"kind":"system","cpu_util":{text}}}'.encode()
    found = reading(b"%08x %s\n" % (zlib.crc32(body), body))
    assert found.series == {}
    assert codes(found) == {"value" if text == "1e400" else "invalid": 1}


@pytest.mark.parametrize("field", ["at", "boot", "cpu_util", "seq"])
def test_an_integer_of_a_thousand_digits_is_a_gap(field: str) -> None:
    found = reading(system(**{"cpu_util": 5, "boot": 1.0, field: 10**1000}), HOST, Clock(boot_s=1 - NOW, wall_s=0))
    assert found.series == {}
    assert sum(codes(found).values()) == 1
    found = reading(timings({"backward": [1, 10**1000, 1, 1], "forward": [10**1000, 1, 1, 1]}), RANK)
    assert codes(found) == {"value": 2}


@pytest.mark.parametrize(
    "sums",
    [[0, 1, 1, 1], [1, 1, 1], [1, 1, 1, 1, 1], 5, None, [1, -1, 0, 0], [1, 5, 6, 5], [10**10, 1, 1, 1], [1, 1, 1, "1"],
     [True, 1, 1, 1], [1, 1, 1, 1e19]],
)  # fmt: skip
def test_durations_that_do_not_fit_together_are_a_gap(sums: object) -> None:
    found = reading(timings({"backward": sums}), RANK)
    assert found.series == {}
    assert codes(found) == {"value": 1}


def test_a_mean_outside_its_extremes_is_brought_between_them() -> None:
    (points,) = reading(timings({"backward": [1, 9_000_000, 5, 10]}), RANK).series.values()
    assert points.mean == points.maximum == [0.00001]


@pytest.mark.parametrize("shift", [-1001, 61, 86_400 * 365, -86_400 * 365 * 30])
def test_a_clock_that_jumps_is_a_gap(shift: float) -> None:
    found = reading(system(at=NOW, cpu_util=1) + system(at=max(0, NOW + shift), cpu_util=2))
    assert found.series[Key("cpu_util")].mean == [1.0]
    assert codes(found) == {"clock": 1}


def test_a_clock_that_runs_backwards_keeps_points_in_order() -> None:
    found = reading(b"".join(system(at=NOW + at, cpu_util=10 + at) for at in (5, 4, 3, 6, 3)))
    points = found.series[Key("cpu_util")]
    assert [at - NOW for at in points.at] == [3, 4, 5, 6]
    assert points.count == [2, 1, 1, 1]


def test_the_time_since_boot_decides_where_it_is_known() -> None:
    clock = Clock(boot_s=100 - NOW, wall_s=0.0)
    found = reading(system(at=5.0, boot=110.0, cpu_util=1) + system(at=NOW, boot=1e12, cpu_util=2), HOST, clock)
    assert found.series[Key("cpu_util")].at == [int(NOW) + 10]
    assert codes(found) == {"clock": 1}
    ahead = Clock(boot_s=None, wall_s=3600.0)
    assert reading(system(at=NOW + 3600, cpu_util=1), HOST, ahead).series[Key("cpu_util")].at == [int(NOW)]


def test_damaged_lines_are_counted_and_the_rest_is_read() -> None:
    whole = system(cpu_util=1)
    found = reading(b"rubbish\n" + whole + b"00000000 {}\n\n" + whole[:-5] + b"\n" + whole[:20])
    assert found.series[Key("cpu_util")].count == [1]
    assert codes(found) == {"corrupt": 4}
    assert found.taken == len(b"rubbish\n" + whole + b"00000000 {}\n\n" + whole[:-5] + b"\n")


def test_a_file_has_only_the_lines_of_its_writer() -> None:
    assert reading(system(cpu_util=1), RANK).series == {}
    assert reading(timings({"backward": [1, 1, 1, 1]}), HOST).series == {}
    assert reading(line(kind="segment", base=7) + line(kind="batches", us={"backward": [1]}), RANK).gaps == {}


def test_every_metric_of_the_host_is_known_with_its_unit() -> None:
    gpu = {name: 1 for name in SYSTEM_METRICS if name.startswith("gpu")}
    rank = dict.fromkeys(OF_RANKS, 1)
    values = {name: 1 for name in SYSTEM_METRICS if name not in gpu and name not in rank}
    found = reading(system(**values, gpus=[{"uuid": "GPU-1", **gpu}], ranks=[{"rank": 1, **rank}]))
    assert {key.metric for key in found.series} == set(SYSTEM_METRICS)


def test_hooks_of_callbacks_are_series_of_one_metric() -> None:
    found = reading(
        timings({"callbacks.Stopping.on_validation_end": [2, 300, 100, 200], "callbacks": [1, 1, 1, 1]}), RANK
    )
    assert found.series[Key("callbacks", "Stopping.on_validation_end", 3)].count == [2]
    assert codes(found) == {"value": 1}, "the metric itself has no durations"


@pytest.mark.parametrize(
    "name", ["callbacks.", "callbacks.A", "callbacks.A.b", "callbacks.A.on_x.on_y", "callbacks.<b>.on_x",
             "callbacks.é.on_x", "callbacks.A.on_x\n", f"callbacks.{'A' * 65}.on_x"],
)  # fmt: skip
def test_a_callback_has_the_name_of_a_class_and_a_hook(name: str) -> None:
    found = reading(timings({name: [1, 1, 1, 1]}), Measured(rank=3))
    assert (found.series, codes(found)) == ({}, {"value": 1})


def test_a_rank_has_a_limited_number_of_callbacks_over_all_answers() -> None:
    rank = Measured(rank=0)
    for number in range(0, 100, 10):
        names = {f"callbacks.A{number + place}.on_x": [1, 5, 5, 5] for place in range(10)}
        found = reading(timings({"callbacks.A3.on_x": [1, 7, 7, 7], **names}), rank)
        assert codes(found) == {}
        assert Key("callbacks", "A3.on_x", 0) in found.series
    assert set(found.series) == {Key("callbacks", "A3.on_x", 0), Key("callbacks", "other", 0)}
    assert found.series[Key("callbacks", "other", 0)].count == [10]
