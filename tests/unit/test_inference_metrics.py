"""Small parts of a batch inference: metrics of shards, the batch size, the differences that a message shows."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.train.errors import MetricError, SetupError
from airflow_provider_dtrain.train.inference import batch_size, metrics
from airflow_provider_dtrain.train.inference.ledger import difference
from airflow_provider_dtrain.train.inference.metrics import ShardMetrics
from airflow_provider_dtrain.train.inference.publication import duration
from airflow_provider_dtrain.train.inference.shards import default_shard_rows
from airflow_provider_dtrain.train.reports.reducers import Reducer


def part(*batches, reducer=Reducer.AVG):
    found = ShardMetrics()
    for value, rows in batches:
        found.add({"score": value}, rows, reducer)
    return found.parts()


def test_uneven_shards_weigh_by_their_rows():
    assert metrics.combined([part((1.0, 3), (0.0, 1)), part((0.0, 1))]) == {"score": 0.6}


def test_the_division_into_shards_does_not_change_a_bit():
    draw = random.Random(5)
    batches = [(draw.random(), draw.randint(1, 64)) for _ in range(300)]
    shards = [part(*batches[start : start + 10]) for start in range(0, 300, 10)]

    once = metrics.combined(shards)
    draw.shuffle(shards)

    assert metrics.combined(shards) == once


@pytest.mark.parametrize(("reducer", "expected"), [("SUM", 6.0), ("MAX", 3.0), ("MIN", 1.0)])
def test_other_reducers_ignore_the_rows(reducer, expected):
    shards = [part((1.0, 5), (2.0, 1), reducer=Reducer[reducer]), part((3.0, 9), reducer=Reducer[reducer])]

    assert metrics.combined(shards) == {"score": expected}


def test_a_metric_that_is_not_finite_survives_the_ledger():
    assert math.isnan(metrics.combined([part((math.nan, 1)), part((1.0, 1))])["score"])
    assert metrics.combined([part((math.inf, 1))])["score"] == math.inf


def test_a_metric_with_two_reducers_is_refused():
    found = ShardMetrics()
    found.add({"score": 1.0}, 1, Reducer.AVG)

    with pytest.raises(MetricError, match="one reducer, got AVG and SUM"):
        found.add({"score": 1.0}, 1, Reducer.SUM)


class Machine:
    """A device with a clock of its own: a fixed cost per batch, a cost per row, and a limit of memory."""

    def __init__(self, per_batch, per_row, rows_most=10**9):
        self.now = 0.0
        self.per_batch = per_batch
        self.per_row = per_row
        self.rows_most = rows_most

    def compute(self, batch):
        if batch.rows > self.rows_most:
            raise MemoryError
        self.now += self.per_batch + self.per_row * batch.rows

    def best(self, rows=100_000):
        def batches(size):
            yield SimpleNamespace(rows=min(size, rows))

        return batch_size.grown(batches, self.compute, most=rows, clock=lambda: self.now)


def test_the_batch_grows_while_a_larger_one_is_faster():
    assert Machine(per_batch=1.0, per_row=0.001).best() == batch_size.MOST
    assert 16 <= Machine(per_batch=0.001, per_row=0.001).best() <= 64


def test_the_batch_stops_before_memory_is_full():
    assert Machine(per_batch=1.0, per_row=0.0, rows_most=100).best() == 64


def test_the_batch_is_no_larger_than_a_shard():
    assert Machine(per_batch=1.0, per_row=0.0).best(rows=20) == 16


def test_a_fault_of_the_processor_ends_the_search():
    def broken(batch):
        raise ValueError("no column x")

    with pytest.raises(ValueError, match="no column x"):
        batch_size.grown(lambda size: iter([SimpleNamespace(rows=size)]), broken, most=10)


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True])
def test_a_wrong_batch_size_is_named(value):
    with pytest.raises(SetupError, match=r"batch_size must be auto or a number"):
        batch_size.configured(value)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a: b: was 1, is 2"),
        ({"a": 1}, {}, "a: was 1, is missing"),
        ({}, {"a": 1}, "a: was missing, is 1"),
        ([1, 2], [1, 3], "[1]: was 2, is 3"),
        ([1], [1, 2], "was 1 items, is 2 items"),
        (None, {"step": 1}, 'was missing, is {"step": 1}'),
    ],
)
def test_a_difference_names_its_place(before, now, words):
    assert difference(before, now) == words


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("total", "size", "rows"),
    [(100, 64, 64), (100_000, 256, 512), (100_000, 400, 400), (100_000, None, 512), (10**7, 100, 16_400), (1, 1, 64)],
)
def test_shards_are_whole_batches(total, size, rows):
    assert default_shard_rows(total, size, least=64, most=16_384) == rows
