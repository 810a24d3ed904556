"""Data loaders of trial classes: the ranks compare their indices and share the data."""

from __future__ import annotations

import itertools
import logging
import random

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils import data as td  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.data.index_comparison import Sharing, repetitions  # noqa: E402
from airflow_provider_dtrain.train.data.shares import Shares  # noqa: E402
from tests.support.loaders import COUNT, SHARDED, Drawn, Numbers, flat, own_part, trained, validated  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402


@pytest.mark.parametrize("name", SHARDED)
def test_a_loader_that_is_sharded_already_is_not_sharded_again(name):
    sharing, (one, two) = trained(SHARDED[name])
    assert sharing is Sharing.OWN
    seen = {*flat(one), *flat(two)}
    assert len(seen) == COUNT
    assert len(one) == (16 if name == "batches that the data set makes" else 4)


def test_overlapping_parts_end_the_trial_on_all_ranks_with_the_overlap_and_the_remedy():
    def body(d):
        rng = random.SystemRandom()
        order = list(range(d.rank * 8, d.rank * 8 + 24))
        sampler = Drawn(lambda: rng.sample(order, 24), 24)
        return Shares(td.DataLoader(Numbers(), batch_size=4, sampler=sampler), d, 5, "training")

    one, two = in_ranks(2, body)
    for error in (one, two):
        assert isinstance(error, dtrain.SetupError)
        assert "training data loader (Drawn)" in str(error)
        assert "draw 24, 24 indices, and at least 16 of them occur on another rank too, e.g. 8, 9, 10, 11" in str(error)
        assert "disable_dataset_reproducibility_checks()" in str(error)


@pytest.mark.parametrize("length", [31, 33])
def test_padding_and_uneven_parts_give_every_rank_the_same_number_of_batches(length):
    def make(d):
        return td.DataLoader(Numbers(length), batch_size=4, sampler=own_part(d, length))

    sharing, batches = trained(make, size=3)
    assert sharing is Sharing.OWN
    assert {value for rank in batches for value in flat(rank)} == set(range(length))

    def padded(d):
        order = [*range(length), *range(-length % 3)][d.rank :: 3]
        return td.DataLoader(Numbers(length), batch_size=4, sampler=order)

    assert trained(padded, size=3)[0] is Sharing.OWN


def test_a_rank_with_fewer_batches_repeats_them_or_with_drop_last_the_others_drop_theirs():
    def make(drop_last):
        return lambda d: td.DataLoader(
            Numbers(), batch_size=4, drop_last=drop_last, sampler=list(range(20)) if d.rank else list(range(20, 32))
        )

    assert trained(make(False))[1][0] == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29, 30, 31]] + [
        [20, 21, 22, 23], [24, 25, 26, 27],
    ]  # fmt: skip
    assert [len(batches) for batches in trained(make(True))[1]] == [3, 3]


def test_a_rank_without_any_batch_is_named():
    def make(d):
        return td.DataLoader(Numbers(), batch_size=4, sampler=list(range(20)) if d.rank else [])

    with pytest.raises(dtrain.EmptyLoaderError, match=r"yields no batch on a rank \(rank 0: 0, rank 1: 5 batches\)"):
        trained(make)


def test_a_sampler_that_raises_on_one_rank_ends_all_ranks_by_name():
    def body(d):
        def draw():
            if d.rank:
                raise ValueError("no such file")
            return range(COUNT)

        return Shares(td.DataLoader(Numbers(), sampler=Drawn(draw)), d, 5, "training")

    one, two = in_ranks(2, body)
    assert isinstance(one, dtrain.SetupError)
    assert "The sampler of the training data loader failed on rank 1: ValueError: no such file" in str(one)
    assert isinstance(two, ValueError)


def test_a_loader_that_cannot_be_iterated_on_one_rank_ends_all_ranks_by_name():
    one, two = in_ranks(2, lambda d: Shares(None if d.rank else [1], d, 5, "validation"))
    assert "failed on rank 1: SetupError: The validation data loader must be iterable" in str(one)
    assert "The validation data loader must be iterable, got NoneType" in str(two)


@pytest.mark.parametrize("by_batch", [False, True])
def test_orders_that_part_in_a_later_epoch_end_the_trial_on_all_ranks(by_batch):
    def body(d):
        class Later(Drawn):
            def set_epoch(self, epoch):
                self.draw = lambda: range(COUNT) if epoch < 2 or not d.rank else range(COUNT - 1, -1, -1)

        sampler = Later(lambda: range(COUNT))
        options = {"batch_sampler": td.BatchSampler(sampler, 4, False)} if by_batch else {"sampler": sampler}
        shares = Shares(td.DataLoader(Numbers(), **options), d, 5, "training")
        assert len(list(shares.training(1, 0, shares.length()))) == (4 if by_batch else 16)
        shares.training(2, 0, shares.length())

    for error in in_ranks(2, body):
        assert isinstance(error, dtrain.SetupError)
        assert "got different ones in epoch 2" in str(error)


def test_ranks_with_other_data_sets_or_batches_are_told_apart():
    with pytest.raises(dtrain.SetupError, match=r"same length on all ranks, got rank 0: 30, rank 1: 31"):
        trained(lambda d: td.DataLoader(Numbers(30 + d.rank), batch_size=4, shuffle=True))
    with pytest.raises(dtrain.SetupError, match=r"same batch_size and drop_last on all ranks, got rank 0: 4, False"):
        trained(lambda d: td.DataLoader(Numbers(), batch_size=4 + d.rank))
    with pytest.raises(dtrain.SetupError, match="overlapping parts"):
        trained(lambda d: td.DataLoader(td.Subset(Numbers(), range(d.rank, 20)), batch_size=4, shuffle=True))


def test_tensors_that_differ_between_the_ranks_are_not_cut_again():
    x = torch.arange(COUNT * 2).reshape(COUNT, 2)

    def part_of_its_own(d):
        return td.DataLoader(td.TensorDataset(x[d.rank :: d.size]), batch_size=4, shuffle=True)

    with pytest.raises(
        dtrain.SetupError, match="same samples on all ranks, got other tensors on rank 1 than on rank 0"
    ):
        trained(part_of_its_own)
    for empty in (torch.empty(0, 2), torch.empty(0)):
        with pytest.raises(dtrain.EmptyLoaderError):
            trained(lambda _, empty=empty: td.DataLoader(td.TensorDataset(empty), batch_size=4))
    same = td.TensorDataset(x.double() / 0, x.bool())
    same_batches = in_ranks(2, lambda d: Shares(td.DataLoader(same, batch_size=4), d, 5, "training").sharing)
    assert same_batches == [Sharing.CUT] * 2


def test_a_subclass_that_only_sets_options_is_cut():
    class Collating(td.DataLoader):
        """Sets a collate function, as PyTorch Geometric's and MONAI's loaders do."""

        def __init__(self, dataset, batch_size):
            super().__init__(dataset, batch_size, collate_fn=lambda samples: torch.tensor(samples) + 100)

    sharing, batches = trained(lambda _: Collating(Numbers(), 4))
    assert sharing is Sharing.CUT
    assert sorted(flat(batches[0]) + flat(batches[1])) == list(range(100, 100 + COUNT))


def test_on_one_rank_a_sharding_sampler_is_all_the_data():
    sharing, (batches,) = trained(SHARDED["every n-th sample"], size=1)
    assert (sharing, flat(batches)) == (Sharing.CUT, list(range(COUNT)))


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_loader_resumes_where_each_rank_was(name):
    def body(d):
        shares = Shares(SHARDED[name](d), d, 5, "training")
        length = shares.length()
        return [
            [batch.tolist() for batch in shares.training(1, offset * shares.stride, length)] for offset in (0, 2)
        ]  # fmt: skip

    for whole, rest in in_ranks(2, body):
        assert rest == whole[2:]


def test_a_sharded_loader_on_another_number_of_ranks_counts_samples_and_warns(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    def body(d):
        shares = Shares(SHARDED["every n-th sample"](d), d, 5, "training")
        shares.log_resumed("own", 4, 8)
        shares.log_resumed("own", d.size, 8)
        shares.log_resumed("own", 4, 0)
        shares.log_resumed("", 0, 8)
        return [batch.tolist() for batch in shares.training(0, 8, shares.length())]

    one, two = in_ranks(2, body)
    assert sorted(flat(one) + flat(two)) == list(range(8, COUNT)), "samples below 8 were trained by 4 ranks"
    warned = [
        message for message in caplog.messages if "in the middle of an epoch with 2 ranks instead of 4" in message
    ]
    assert len(warned) == 1


def test_batches_of_a_users_sampler_are_dealt_on_after_a_change_of_ranks():
    def make(_):
        return td.DataLoader(Numbers(), batch_sampler=td.BatchSampler(td.RandomSampler(Numbers()), 4, drop_last=False))

    (whole,) = trained(make, size=1)[1]
    one, two = trained(make, offset=4)[1]
    assert [batch for pair in zip(one, two, strict=True) for batch in pair] == whole[4:]


class Varying(td.Sampler):
    """Makes 3 + epoch batches per rank of 2 samples. Its length is that of the epoch that began last."""

    def __init__(self, ranks, rank=None):
        self.ranks, self.rank, self.epoch, self.made = ranks, rank, 0, []
        self.build()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def build(self):
        self.made = [[2 * i, 2 * i + 1] for i in range((3 + self.epoch) * self.ranks)]
        self.made = self.made if self.rank is None else self.made[self.rank :: self.ranks]

    def __iter__(self):
        self.build()
        return iter(self.made)

    def __len__(self):
        return len(self.made)


@pytest.mark.parametrize(("by_rank", "sharing"), [(False, Sharing.CUT), (True, Sharing.OWN)])
def test_epochs_of_different_lengths_are_trained_to_their_end(by_rank, sharing):
    def body(d):
        sampler = Varying(d.size, d.rank if by_rank else None)
        shares = Shares(td.DataLoader(Numbers(), batch_sampler=sampler), d, 5, "training")
        length, found = shares.length(), []
        for epoch in (0, 2, 1):
            found.append(flat(batch.tolist() for batch in shares.training(epoch, 0, length)))
            found.append(shares.drawn or length)
        return shares.sharing, found

    (one_sharing, one), (two_sharing, two) = in_ranks(2, body)
    assert one_sharing is two_sharing is sharing
    assert one[1::2] == two[1::2] == [3, 5, 4]
    assert [sorted(a + b) for a, b in zip(one[::2], two[::2], strict=True)] == [
        list(range(12)), list(range(20)), list(range(16)),
    ]  # fmt: skip


def test_an_epoch_that_is_much_longer_than_its_sampler_says_is_cut_short_with_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    class Growing(Drawn):
        def set_epoch(self, epoch):
            self.draw = itertools.count if epoch else lambda: range(COUNT)

    _, batches = trained(lambda _: td.DataLoader(Numbers(), sampler=Growing(None)), epoch=1)
    assert sorted(flat(batches[0]) + flat(batches[1])) == list(range(2 * COUNT))
    assert "Growing draws more than 64 indices in epoch 1, twice its length." in caplog.text


def test_validation_needs_a_batch_on_one_rank_only():
    def shard(d):
        return td.DataLoader(Numbers(1), batch_size=4, sampler=range(1 - d.rank))

    def stream(d):
        return [torch.tensor([0])] * (1 - d.rank)

    def length(make, what):
        return in_ranks(2, lambda d: Shares(make(d), d, 5, what).length())

    for make in (shard, stream):
        assert length(make, "validation") == [1, 1]
        assert validated(make) == [[[0]], []]
        assert all(isinstance(error, dtrain.EmptyLoaderError) for error in length(make, "training"))
    (error, _) = length(lambda _: td.DataLoader(Numbers(1), sampler=[]), "validation")
    assert isinstance(error, dtrain.EmptyLoaderError)


@pytest.mark.parametrize("name", SHARDED)
def test_validation_of_a_sharded_loader_sees_each_sample_once(name):
    one, two = validated(SHARDED[name])
    repeats = 4 if name == "batches that the data set makes" else 1
    unit = 2 if name == "a subset of a subset per rank" else 1
    assert sorted(flat(one) + flat(two)) == [value * unit for value in range(COUNT) for _ in range(repeats)]


def test_validation_with_an_uneven_end_leaves_nothing_out():
    one, two = validated(lambda d: td.DataLoader(Numbers(33), batch_size=4, drop_last=True, sampler=own_part(d, 33)))
    assert sorted(flat(one) + flat(two)) == list(range(33))
    assert [len(one), len(two)] == [5, 4]


def test_indices_of_other_types_are_compared_by_value():
    class Named(Numbers):
        def __getitem__(self, key):
            return int(key[1:] if isinstance(key, str) else key[0])

    def named(d):
        return td.DataLoader(Named(), batch_size=4, sampler=[f"s{i}" for i in range(d.rank, COUNT, d.size)])

    def augmented(_):
        return td.DataLoader(Named(), batch_size=4, sampler=[(i, "flip") for i in range(COUNT)])

    assert trained(named)[0] is Sharing.OWN
    sharing, (one, two) = trained(augmented)
    assert (sharing, sorted(flat(one) + flat(two))) == (Sharing.CUT, list(range(COUNT)))


@pytest.mark.parametrize("scale", [1, 7, 1 << 40])
def test_repetitions_are_counted_in_rounds_of_bounded_size(scale):
    sizes = []

    def body(d):
        def allgather(value):
            values = d.allgather(value)
            if isinstance(value, torch.Tensor):
                sizes.append(sum(part.numel() for part in values))
            return values

        keys = torch.arange(d.rank, 3000, 3) * scale
        apart = repetitions(keys, allgather, per_round=200)
        padded = repetitions(torch.cat([keys, torch.tensor([0, 0, scale])]), allgather, per_round=200)
        return apart, padded, repetitions(torch.arange(3000) * scale, allgather, per_round=200)

    for apart, (count, examples), (many, some) in in_ranks(3, body):
        assert apart == (0, [])
        assert (count, sorted(examples)) == (4, [0, scale])
        assert many >= 3
        assert len(some) == 5
    assert max(sizes[:45]) < 400, "indices that are multiples of something are spread over the rounds too"
    assert len(sizes) < 3 * (15 + 15 + 2), "the first overlap ends the exchange"
