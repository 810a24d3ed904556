"""Shares of data loaders, lengths, reducers, and the plain script's view of the searcher."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import BatchSampler, RandomSampler, TensorDataset, WeightedRandomSampler  # noqa: E402
from torch.utils.data import DataLoader as TorchLoader  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.data.device import move  # noqa: E402
from airflow_provider_dtrain.train.data.shares import Shares  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.durations import Geometry, Length, Position  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.reports.reducers import Reducer, combine, partial  # noqa: E402
from airflow_provider_dtrain.train.trial.dataloader import DataLoader, batch_length  # noqa: E402


def shares(make, size):
    """Return each rank's share. Every rank creates its own loader, as in a gang."""
    return [Shares(make(), Distributed(RankEnvironment(rank=r, world_size=size)), 5, "training") for r in range(size)]


def numbers(batches):
    return [batch[0].tolist() for batch in batches]


def data(length=10):
    return TensorDataset(torch.arange(length))


def trained(make, size, epoch=0, offset=0):
    return [numbers(share.training(epoch, offset, share.length())) for share in shares(make, size)]


@pytest.mark.parametrize("loader", [DataLoader, TorchLoader])
def test_torchs_loader_is_sharded_like_ours_and_shuffled_by_the_seed(loader):
    def make(per_slot):
        return lambda: loader(data(12), batch_size=per_slot, shuffle=True)

    one, two = trained(make(4), 1), trained(make(2), 2)
    assert [a + b for a, b in zip(*two, strict=True)] == one[0]
    assert sorted(sum(one[0], [])) == list(range(12))
    assert trained(make(4), 1) == one != trained(make(4), 1, epoch=1)
    assert trained(make(2), 2, offset=4) == [rank[1:] for rank in two]


SAMPLERS = {
    "weighted": lambda: TorchLoader(
        data(), batch_size=2, sampler=WeightedRandomSampler([1.0] * 5 + [9.0] * 5, 12, generator=torch.Generator())
    ),
    "drawn from the global generator": lambda: TorchLoader(
        data(), batch_size=2, sampler=RandomSampler(data(), replacement=True, num_samples=12)
    ),
    "batches": lambda: TorchLoader(data(12), batch_sampler=BatchSampler(RandomSampler(data(12)), 3, drop_last=False)),
    "ours": lambda: DataLoader(data(12), sampler=RandomSampler(data(12), replacement=True), batch_size=2),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_of_the_users_is_drawn_alike_on_all_ranks_and_after_a_resume(name):
    make = SAMPLERS[name]
    torch.manual_seed(1)
    one = trained(make, 1)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = trained(make, 2)
    assert torch.equal(torch.get_rng_state(), before)
    if name == "batches":
        dealt = [batch for pair in zip(*two, strict=True) for batch in pair]
        assert dealt == one[0]
    else:
        assert sorted(sum(one[0], [])) == sorted(sum(two[0] + two[1], []))
    assert trained(make, 1) == one != trained(make, 1, epoch=1)
    share = shares(make, 2)[1]
    assert numbers(share.training(0, share.stride, share.length())) == two[1][1:]


def test_a_distributed_sampler_is_not_sharded_twice():
    def make():
        return TorchLoader(data(8), batch_size=2, sampler=DistributedSampler(data(8), num_replicas=2, rank=0))

    batches = trained(make, 2)
    assert sorted(sum(batches[0] + batches[1], [])) == list(range(8))
    assert shares(make, 2)[0].length() == 2


@given(length=st.integers(1, 40), per_slot=st.integers(1, 5), size=st.integers(1, 5))
def test_validation_sees_each_sample_once_on_one_rank(length, per_slot, size):
    made = shares(lambda: DataLoader(data(length), batch_size=per_slot, shuffle=True), size)
    seen = [value for share in made for batch in numbers(share.validation()) for value in batch]
    assert sorted(seen) == list(range(length))


@pytest.mark.parametrize(
    ("given_length", "position", "left", "following"),
    [
        ({"batches": 10}, Position(batches=4, records=32, epoch=1, epoch_batches=1), 6, 6),
        ({"records": 50}, Position(batches=4, records=32, epoch=1, epoch_batches=1), 3, 3),
        ({"epochs": 2}, Position(batches=4, records=32, epoch=1, epoch_batches=1), 2, 2),
        ({"epochs": 2}, Position(batches=6, records=48, epoch=2), 0, 6),
        ({"batches": 3}, Position(batches=6, records=48, epoch=2), -3, 3),
        ({"records": 16}, Position(batches=6, records=48, epoch=2), -4, 2),
        ({"epochs": 2}, Position(batches=9, records=72, epoch=1, epoch_batches=6), 1, 1),
    ],
)
def test_lengths_are_counted_from_where_training_is(given_length, position, left, following):
    length, geometry = Length.parse(given_length), Geometry(global_batch=8, epoch_batches=3)
    assert (length.distance(position, geometry), length.next(position, geometry)) == (left, following)


def test_a_length_in_units_that_nobody_knows_is_refused():
    with pytest.raises(dtrain.SetupError, match="no hyperparameter global_batch_size"):
        Length.parse({"records": 5}).distance(Position(), Geometry(None, 3))
    with pytest.raises(dtrain.SetupError, match="training data has no length"):
        Length.parse({"epochs": 5}, "min_validation_period").next(Position(), Geometry(8, None))
    assert Length.parse({"batches": 0}, "min_validation_period") is None
    assert Length.parse({"batches": 4, "records": None}) == Length("batches", 4)


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 9)), min_size=1, max_size=20), st.integers(1, 20))
def test_metrics_over_ranks_equal_those_of_one_rank(pairs, cut):
    for reducer in Reducer:
        parts = [partial(reducer, *zip(*part, strict=True)) for part in (pairs[:cut], pairs[cut:]) if part]
        whole = combine(reducer, [partial(reducer, *zip(*pairs, strict=True))])
        found = combine(reducer, parts)
        assert found == pytest.approx(whole, nan_ok=True, abs=1e-9)
    weight = sum(weight for _, weight in pairs)
    mean = sum(value * weight for value, weight in pairs) / weight if weight else math.nan
    average = combine(Reducer.AVG, [partial(Reducer.AVG, *zip(*pairs, strict=True))])
    assert average == pytest.approx(mean, nan_ok=True, abs=1e-9)


def test_the_extremes_of_values_with_nan_are_nan_wherever_it_stands():
    for values in ([1.0, math.nan], [math.nan, 1.0]):
        for reducer in (Reducer.MAX, Reducer.MIN):
            assert math.isnan(partial(reducer, values, [1, 1])[0])


def test_the_records_of_a_batch_are_seen_in_any_shape():
    x = torch.zeros(3, 2)
    shapes = [x, [x, torch.zeros(9)], (x,), {"a": x}, {"a": {"b": [x]}}, x.numpy(), ["a", "b", "c"]]
    assert [batch_length(batch) for batch in shapes] == [3] * 7
    with pytest.raises(dtrain.SetupError, match="Override get_batch_length"):
        batch_length(7)


def test_numpy_arrays_become_tensors_on_the_way_to_the_device():
    numpy = pytest.importorskip("numpy")
    moved = move({"a": [numpy.ones(2)], "b": "text", "c": torch.zeros(1)}, torch.device("cpu"))
    assert torch.equal(moved["a"][0], torch.ones(2, dtype=torch.float64))
    assert moved["b"] == "text"


def test_a_stream_that_is_not_divided_is_named_and_begins_again_when_it_ends_early(caplog, monkeypatch):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(4))

    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    made = shares(lambda: TorchLoader(Stream(), batch_size=2), 2)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "is not divided by the library" in said[0]
    assert "each of the 2 ranks iterates its loader unchanged" in said[0]
    assert "compare their first batches" in said[0]
    batches = [batch.tolist() for batch in made[0].training(0, 1, 5)]
    assert batches == [[2, 3], [0, 1], [2, 3], [0, 1]]


def script(config, epochs=None):
    """Return the steps at which a plain script validated until the decision ``stop``."""
    seen = []
    with dtrain.init(hparams={"global_batch_size": 4}, config=config) as ctx:
        step = 0
        for _ in ctx.epochs(epochs):
            for _ in ctx.loader(data(8)):
                step += 1
            seen.append(step)
            if ctx.report_validation(step, {"accuracy": step / 10}) == "stop":
                break
        length = ctx.max_length
    return seen, length


def test_a_plain_script_is_as_long_as_the_searcher_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert script({"searcher": {"max_length": {"epochs": 3}}}) == ([2, 4, 6], {"epochs": 3})
    assert script({"searcher": {"max_length": {"epochs": 2}}}, epochs=9)[0] == [2, 4]
    assert script({"searcher": {"max_length": {"batches": 3}}}, epochs=9) == ([2, 4], {"batches": 3})
    assert script({"searcher": {"max_length": {"records": 16}}}, epochs=9)[0] == [2, 4]
    assert script({"searcher": {"max_time": 1, "time_metric": "accuracy"}}, epochs=9)[0] == [2, 4, 6, 8, 10]
    assert script({}, epochs=2) == ([2, 4], None)
    with pytest.raises(dtrain.SetupError, match="in batches. Give a count"):
        script({"searcher": {"max_length": {"batches": 3}}})
    with pytest.raises(dtrain.MissingMetricError, match="'auc', but validation reports accuracy"):
        script({"searcher": {"name": "random", "metric": "auc"}}, epochs=1)
