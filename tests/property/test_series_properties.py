"""Time series of telemetry: what storage and reduction keep, for any points."""

from __future__ import annotations

import contextlib
import math
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.series.chunk import ChunkError, decode, encode
from airflow_provider_dtrain.core.series.points import Key, Points, merged
from airflow_provider_dtrain.store.telemetry.sparklines import MINUTES, with_utilization
from tests.support.budgets import budget

#: Largest relative change of a value by storage.
RELATIVE_ERROR = 2.0**-11
NUMBERS = st.floats(min_value=1e-20, max_value=1e18) | st.just(0.0) | st.integers(0, 2048).map(float)
KEYS = st.builds(
    Key,
    st.sampled_from(["cpu_util", "gpu_util", "train_batch"]),
    st.text(max_size=20),
    st.none() | st.integers(0, 2**20),
)


@st.composite
def series(draw: st.DrawFn, most: int = 12) -> Points:
    found = Points()
    at = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, most))):
        low, mean, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
        found.add(at, draw(st.integers(1, 2**40)), mean, low, high)
        at += draw(st.integers(1, 3) | st.integers(1, 2**40))
    return found


def close(before: list[float], after: list[float]) -> bool:
    return all(math.isclose(one, other, rel_tol=RELATIVE_ERROR) for one, other in zip(before, after, strict=True))


@settings(max_examples=budget(200), deadline=None)
@given(st.dictionaries(KEYS, series(), max_size=5))
def test_a_chunk_keeps_times_and_counts_exactly_and_values_within_its_error(found: dict[Key, Points]) -> None:
    read = decode(encode(found))
    assert read.keys() == found.keys()
    for key, points in found.items():
        kept = read[key]
        assert (kept.at, kept.count) == (points.at, points.count)
        columns = ("mean", "minimum", "maximum")
        assert all(close(getattr(points, name), getattr(kept, name)) for name in columns)
        assert all(a <= b <= c for a, b, c in zip(kept.minimum, kept.mean, kept.maximum, strict=True))
        # A second trip through storage, as in a roll-up, changes nothing more.
        assert decode(encode({key: kept})) == {key: kept}


@settings(max_examples=budget(200), deadline=None)
@given(st.dictionaries(KEYS, series(), min_size=1, max_size=5))
def test_one_metric_of_a_chunk_is_what_the_whole_chunk_has_of_it(found: dict[Key, Points]) -> None:
    chunk = encode(found)
    metric = next(iter(found)).metric
    assert decode(chunk, metric) == {key: points for key, points in decode(chunk).items() if key.metric == metric}


@settings(max_examples=budget(200), deadline=None)
@given(series(), st.integers(0, 2000), st.integers(0, 255))
def test_a_damaged_chunk_is_refused_or_read_and_never_anything_else(points: Points, at: int, byte: int) -> None:
    body = bytearray(zlib.decompress(encode({Key("cpu_util"): points})[1:]))
    body[at % len(body)] = byte
    with contextlib.suppress(ChunkError):
        decode(b"\x03" + zlib.compress(bytes(body)))
    whole = encode({Key("cpu_util"): points})
    with pytest.raises(ChunkError):
        decode(whole[: at % len(whole)])


@settings(max_examples=budget(200), deadline=None)
@given(st.binary(max_size=300))
def test_bytes_that_are_no_chunk_are_refused(data: bytes) -> None:
    with pytest.raises(ChunkError):
        decode(data)


@settings(max_examples=budget(200), deadline=None)
@given(st.lists(series(20), max_size=4), st.sampled_from([1, 7, 10, 60]))
def test_a_reduction_keeps_extremes_counts_and_the_mean(parts: list[Points], step: int) -> None:
    found = merged(parts, step)
    assert all(at % step == 0 for at in found.at)
    assert found.at == sorted(set(found.at))
    assert sum(found.count) == sum(sum(part.count) for part in parts)
    if not found.at:
        return
    assert min(found.minimum) == min(min(part.minimum) for part in parts if part.at)
    assert max(found.maximum) == max(max(part.maximum) for part in parts if part.at)
    assert all(a <= b <= c for a, b, c in zip(found.minimum, found.mean, found.maximum, strict=True))
    weight = sum(count * mean for part in parts for count, mean in zip(part.count, part.mean, strict=True))
    kept = sum(count * mean for count, mean in zip(found.count, found.mean, strict=True))
    assert math.isclose(weight, kept, rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=budget(200), deadline=None)
@given(st.lists(series(20), min_size=2, max_size=4))
def test_a_reduction_in_two_steps_is_the_reduction_in_one(parts: list[Points]) -> None:
    once = merged(parts, 60)
    twice = merged([merged([part], 10) for part in parts], 60)
    assert (once.at, once.count, once.minimum, once.maximum) == (twice.at, twice.count, twice.minimum, twice.maximum)
    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(once.mean, twice.mean, strict=True))


@settings(max_examples=budget(200), deadline=None)
@given(st.integers(0, 5000), st.integers(0, 60), st.sampled_from([1, 2, 5, 10]), st.sampled_from([1, 2, 3, 6, 30]))
def test_points_without_gaps_are_reduced_as_any_other(start: int, count: int, apart: int, factor: int) -> None:
    found = Points()
    for index in range(count):
        mean = float((index * 7919) % 101)
        found.add(start + apart * index, 3, mean, mean - 1, mean + 2)
    step = apart * factor
    fast, slow = found.reduced(step), found._reduced_each(step)
    assert (fast.at, fast.count, fast.minimum, fast.maximum) == (slow.at, slow.count, slow.minimum, slow.maximum)
    assert fast.mean == pytest.approx(slow.mean)


@settings(max_examples=budget(200), deadline=None)
@given(series(), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_part_has_the_points_of_its_time(points: Points, start: int, end: int) -> None:
    assert points.between(start, end).at == [at for at in points.at if start <= at < end]


@settings(max_examples=budget(200), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 1000).map(lambda tenths: tenths / 10)), min_size=1, max_size=20
    )
)
def test_utilization_is_of_the_last_minutes_and_within_its_samples(samples: list[tuple[int, float]]) -> None:
    key = Key("gpu_util", "GPU-1")
    data = None
    for minute, value in samples:
        points = Points()
        points.add(60 * minute, 10, value, value, value)
        data = with_utilization(data, {key: points})
    found = decode(data or b"")[key]
    last = max(minute for minute, _ in samples)
    assert found.at[-1] == 60 * last
    assert found.at[0] > 60 * (last - MINUTES)
    low, high = min(value for _, value in samples), max(value for _, value in samples)
    assert all(0.99 * low <= value <= 1.01 * high for value in found.mean)
