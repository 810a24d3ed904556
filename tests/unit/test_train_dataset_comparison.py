"""Data sets of a script that differ between the ranks."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import HashStore  # noqa: E402
from torch.utils.data import Subset, TensorDataset  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.data.dataset_comparison import description  # noqa: E402
from airflow_provider_dtrain.train.data.script_loaders import ScriptLoaders  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402

pytestmark = pytest.mark.torch
SIZE = 2


@pytest.fixture
def loaders(tmp_path):
    """Return a function that makes a loader by one method of ``ctx`` on one of two ranks."""
    store, contexts = HashStore(), []
    with dtrain.init(hparams={"global_batch_size": 8}, checkpoint_dir=tmp_path, seed=1) as ctx:
        alone = ctx.distributed
        for rank in range(SIZE):
            distributed = Distributed(RankEnvironment(rank=rank, world_size=SIZE), store=store)
            contexts.append((distributed, ScriptLoaders(distributed, 1)))

        def make(rank, method, dataset):
            ctx.distributed, ctx._loaders = contexts[rank]
            return getattr(ctx, method)(dataset, batch_size=4)

        yield make
        ctx.distributed = alone


PARTS = {
    "subsets of different lengths": lambda rank: Subset(range(33), range(rank, 33, SIZE)),
    "subsets of one length": lambda rank: Subset(range(32), range(rank, 32, SIZE)),
    "subsets by lists": lambda rank: Subset(range(32), list(range(rank, 32, SIZE))),
    "subsets by tensors": lambda rank: Subset(range(32), torch.arange(rank, 32, SIZE)),
    "subsets by names": lambda rank: Subset({"a": 1, "b": 2}, [["a"], ["b"]][rank]),
    "subsets of subsets": lambda rank: Subset(Subset(range(32), range(rank, 32, SIZE)), range(8)),
    "subsets of parts": lambda rank: Subset(range(20 + rank), range(8)),
    "parts": lambda rank: list(range(rank, 33, SIZE)),
    "tensors of one length": lambda rank: TensorDataset(torch.arange(rank, 32, SIZE)),
}


@pytest.mark.parametrize("method", ["loader", "validation_loader"])
@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
def test_a_data_set_that_each_rank_holds_a_part_of_is_refused(loaders, part, method):
    loaders(1, method, part(1))
    with pytest.raises(SetupError, match=f"Build the whole data set on each rank: ctx.{method} gives") as raised:
        loaders(0, method, part(0))
    assert f"got {description(part(1))} on rank 1 and {description(part(0))} on rank 0 (call 1" in str(raised.value)


@pytest.mark.parametrize("method", ["loader", "validation_loader"])
def test_parts_of_one_length_are_known_by_their_first_and_last_sample(loaders, method):
    loaders(1, method, list(range(1, 32, SIZE)))
    with pytest.raises(
        SetupError, match=r"got 16 samples, first and last sample \w{8} on rank 1 and 16 samples, first"
    ):
        loaders(0, method, list(range(0, 32, SIZE)))


def test_samples_that_are_random_at_each_fetch_are_no_part(loaders):
    class Random(list):
        def __getitem__(self, index):
            return random.SystemRandom().random()

    for rank in (1, 0):
        assert len(loaders(rank, "loader", Random(range(32)))) == 4


def test_a_data_set_is_sampled_once_although_each_epoch_makes_a_loader(loaders):
    class Counted(list):
        fetched = 0

        def __getitem__(self, index):
            self.fetched += 1
            return super().__getitem__(index)

    counted = Counted(range(32))
    for _ in range(3):
        loaders(0, "loader", counted)
    assert counted.fetched == 2


WHOLE = {
    "list": lambda: list(range(33)),
    "subset": lambda: Subset(range(33), [4, 7, 1, 0]),
    "subset of objects": lambda: Subset({(1, "a"): 0, (2, "b"): 1}, [(1, "a"), (2, "b")]),
    "tensors": lambda: TensorDataset(torch.arange(33)),
}


@pytest.mark.parametrize("whole", WHOLE.values(), ids=list(WHOLE))
def test_equal_data_sets_on_all_ranks_are_divided(loaders, whole):
    for _ in range(3):
        assert len({len(loaders(rank, "loader", whole())) for rank in range(SIZE)}) == 1
        shares = [loaders(rank, "validation_loader", whole()).dataset for rank in range(SIZE)]
        assert sum(map(len, shares)) == len(whole())


def test_a_loader_on_one_rank_alone_waits_for_no_other_rank(loaders):
    for rank in (0, 0, 1):
        loaders(rank, "loader", range(20))
    loaders(1, "validation_loader", range(4))
