"""Data loaders of trial classes: loaders cut into shares, loaders used unchanged, and streams."""

from __future__ import annotations

import itertools
import logging
import random
import sys

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

from torch.utils import data as td  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import pytorch  # noqa: E402
from airflow_provider_dtrain.train.dataloader import Shares  # noqa: E402
from airflow_provider_dtrain.train.index_comparison import Sharing, repetitions  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402

COUNT = 32


class Numbers(td.Dataset):
    def __init__(self, length=COUNT):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Drawn(td.Sampler):
    """A sampler of the user's: what a function returns, with a length."""

    def __init__(self, draw, length=COUNT, **attributes):
        self.draw, self.length = draw, length
        self.__dict__.update(attributes)

    def __iter__(self):
        return iter(self.draw())

    def __len__(self):
        return self.length


class EveryNth(td.Sampler):
    """Takes every n-th item of another sampler, as ``determined.pytorch.samplers.DistributedSampler`` does."""

    def __init__(self, sampler, size, rank):
        self.sampler, self.size, self.rank = sampler, size, rank

    def __iter__(self):
        return itertools.islice(iter(self.sampler), self.rank, None, self.size)

    def __len__(self):
        return len(range(self.rank, len(self.sampler), self.size))


def own_part(d, length=COUNT):
    return Drawn(lambda: range(d.rank, length, d.size), len(range(d.rank, length, d.size)))


def flat(batches):
    return [int(value) for batch in batches for value in batch]


def trained(make, size=2, epoch=0, offset=0, **options):
    """Return how the ranks share a loader, and each rank's batches of an epoch."""

    def body(d):
        shares = Shares(make(d), d, 5, "training", **options)
        length = shares.length()
        return shares.sharing, [batch.tolist() for batch in shares.training(epoch, offset, length)]

    results = in_ranks(size, body)
    for result in results:
        if isinstance(result, Exception):
            raise result
    assert len({sharing for sharing, _ in results}) == 1
    assert len({len(batches) for _, batches in results}) == 1, "a rank with a batch fewer hangs the others"
    return results[0][0], [batches for _, batches in results]


def validated(make, size=2, **options):
    def body(d):
        shares = Shares(make(d), d, 5, "validation", **options)
        return [batch.tolist() for batch in shares.validation()]

    return in_ranks(size, body)


SHARDED = {
    "every n-th sample": lambda d: td.DataLoader(Numbers(), batch_size=4, sampler=own_part(d)),
    "our loader": lambda d: pytorch.DataLoader(Numbers(), batch_size=4, sampler=own_part(d)),
    "one block per rank": lambda d: td.DataLoader(
        Numbers(), batch_size=4, sampler=Drawn(lambda: range(d.rank * 16, d.rank * 16 + 16), 16)
    ),
    "a list of indices": lambda d: td.DataLoader(Numbers(), batch_size=4, sampler=list(range(d.rank, COUNT, d.size))),
    "every n-th of a shuffled order": lambda d: td.DataLoader(
        Numbers(), batch_size=4, sampler=EveryNth(td.RandomSampler(Numbers()), d.size, d.rank)
    ),
    "batches of torch's distributed sampler": lambda d: td.DataLoader(
        Numbers(), batch_sampler=td.BatchSampler(DistributedSampler(Numbers(), d.size, d.rank), 4, drop_last=False)
    ),
    "every n-th batch": lambda d: td.DataLoader(
        Numbers(), batch_sampler=EveryNth(td.BatchSampler(td.RandomSampler(Numbers()), 4, False), d.size, d.rank)
    ),
    "a subset per rank, shuffled": lambda d: td.DataLoader(
        td.Subset(Numbers(), range(d.rank, COUNT, d.size)), batch_size=4, shuffle=True
    ),
    "a subset of a subset per rank": lambda d: td.DataLoader(
        td.Subset(td.Subset(Numbers(64), range(0, 64, 2)), list(range(d.rank, COUNT, d.size))), batch_size=4
    ),
    "batches that the data set makes": lambda d: td.DataLoader(
        Numbers(), batch_size=None, sampler=own_part(d), collate_fn=lambda index: torch.tensor([index] * 4)
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_a_loader_that_is_sharded_already_is_not_sharded_again(name):
    sharing, (one, two) = trained(SHARDED[name])
    assert sharing is Sharing.OWN
    seen = {*flat(one), *flat(two)}
    assert len(seen) == COUNT
    assert len(one) == (16 if name == "batches that the data set makes" else 4)


SHUFFLES = {
    "python": lambda: random.sample(range(COUNT), COUNT),
    "numpy": lambda: numpy.random.permutation(COUNT).tolist(),
    "numpy's own integers": lambda: list(numpy.random.permutation(COUNT)),
    "torch": lambda: torch.randperm(COUNT).tolist(),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_a_sampler_shuffles_alike_on_all_ranks_whatever_it_draws_from(name):
    def make(d):
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(d.rank)
        return td.DataLoader(Numbers(), batch_size=4, sampler=Drawn(SHUFFLES[name]))

    sharing, (one, two) = trained(make)
    assert sharing is Sharing.CUT
    assert sorted(flat(one) + flat(two)) == list(range(COUNT))
    assert trained(make)[1] == [one, two], "a resumed run draws the same"
    assert trained(make, offset=8)[1] == [one[1:], two[1:]]
    assert trained(make, epoch=1)[1] != [one, two]


def test_drawing_an_order_leaves_the_generators_of_the_rank_alone():
    def states():
        return random.getstate(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()

    before = states()
    for draw in SHUFFLES.values():
        trained(lambda _, draw=draw: td.DataLoader(Numbers(), batch_size=4, sampler=Drawn(draw)))
    assert states() == before


GENERATORS = {
    "python": lambda rank: random.Random(rank),
    "numpy": lambda rank: numpy.random.default_rng(rank),
    "numpy, old": lambda rank: numpy.random.RandomState(rank),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_inside_a_sampler_is_seeded_by_trial_and_epoch(name):
    def make(d):
        sampler = Drawn(lambda: (order := list(range(COUNT)), sampler.rng.shuffle(order))[0])
        sampler.rng = GENERATORS[name](d.rank)
        return td.DataLoader(Numbers(), batch_size=4, sampler=sampler)

    sharing, batches = trained(make)
    assert sharing is Sharing.CUT
    assert len({*flat(batches[0]), *flat(batches[1])}) == COUNT
    assert trained(make)[1] == batches != trained(make, epoch=1)[1]


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


class Endless(td.Sampler):
    """Repeats another sampler for ever, as the example of Determined's documentation."""

    drawn = 0

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            for item in self.sampler:
                Endless.drawn += 1
                assert Endless.drawn < 1000, "an endless sampler is drawn without end"
                yield item

    def __len__(self):
        return len(self.sampler)


@pytest.mark.parametrize("size", [1, 2])
def test_an_endless_sampler_is_a_stream_and_starts_at_once(size, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    Endless.drawn = 0

    def by_batch(d):
        part = EveryNth(td.BatchSampler(td.SequentialSampler(Numbers()), 4, False), d.size, d.rank)
        return td.DataLoader(Numbers(), batch_sampler=Endless(part))

    sharing, batches = trained(by_batch, size)
    assert sharing is Sharing.STREAM
    assert {value for rank in batches for value in flat(rank)} == set(range(COUNT))
    assert [len(rank) for rank in batches] == [8 // size] * size
    warned = [message for message in caplog.messages if "(DataLoader with Endless)" in message]
    assert len(warned) == (size > 1)

    def by_sample(_):
        return td.DataLoader(Numbers(), batch_size=4, sampler=Endless(td.RandomSampler(Numbers())))

    assert trained(by_sample, size)[0] is Sharing.STREAM


def test_a_sampler_without_a_length_is_a_stream():
    class Lengthless(td.Sampler):
        def __iter__(self):
            return itertools.count()

    def body(d):
        shares = Shares(td.DataLoader(Numbers(), sampler=Lengthless()), d, 5, "training")
        return shares.sharing, shares.length()

    assert in_ranks(2, body) == [(Sharing.STREAM, None)] * 2


class Thousandfold(td.DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 1000


class Prefetching(td.DataLoader):
    """Changes the iterator inside, as PyTorch Geometric's NodeLoader does."""

    def _get_iterator(self):
        return map(torch.neg, super()._get_iterator())


class MultiEpochs(td.DataLoader):
    """Keeps its workers over epochs, as timm's loader of that name."""

    class Repeat:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            while True:
                yield from iter(self.sampler)

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", self.Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Stateful(td.DataLoader):
    """Counts what it handed out, as torchdata's StatefulDataLoader."""

    def __iter__(self):
        self.given = 0
        for batch in super().__iter__():
            self.given += 1
            yield batch


@pytest.mark.parametrize(
    ("kind", "first"),
    [(Thousandfold, [0, 1000]), (Prefetching, [0, -1]), (MultiEpochs, [0, 1]), (Stateful, [0, 1])],
)
def test_a_subclass_that_iterates_by_itself_is_iterated_and_not_rebuilt(kind, first):
    made = []

    def make(_):
        made.append(kind(Numbers(), batch_size=2))
        return made[-1]

    sharing, batches = trained(make)
    assert sharing is Sharing.STREAM
    assert [rank[0] for rank in batches] == [first, first]
    assert [len(rank) for rank in batches] == [16, 16]
    if kind is Stateful:
        assert [loader.given for loader in made] == [16, 16]
    assert validated(lambda _: kind(Numbers(), batch_size=2))[1][0] == first


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
        shares.say_resumed("own", 4, 8)
        shares.say_resumed("own", d.size, 8)
        shares.say_resumed("own", 4, 0)
        shares.say_resumed("", 0, 8)
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


def test_a_loader_that_is_to_be_left_alone_is_iterated_as_it_is(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    experimental = pytorch.PyTorchExperimentalContext()
    experimental.disable_dataset_reproducibility_checks()
    sharing, batches = trained(lambda _: td.DataLoader(Numbers(), batch_size=4), left_alone=experimental.left_alone)
    assert sharing is Sharing.STREAM
    assert [flat(rank) for rank in batches] == [list(range(COUNT))] * 2
    assert not caplog.messages
    assert trained(lambda _: pytorch.DataLoader(Numbers(), batch_size=4), left_alone=True)[0] is Sharing.CUT
    sampler = DistributedSampler(Numbers(), 1, 0)
    for epoch in (0, 1):
        trained(lambda _: td.DataLoader(Numbers(), sampler=sampler), 1, epoch, left_alone=experimental.left_alone)
        assert sampler.epoch == epoch


def test_a_stream_that_resumes_past_its_end_yields_nothing():
    def make(_):
        return td.DataLoader(Lines(), batch_size=2)

    assert [len(trained(make, size=1, offset=offset)[1][0]) for offset in (3, 4, 9)] == [1, 0, 0]


def test_a_position_counts_batches_when_a_loader_becomes_a_stream_or_ceases_to_be_one(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    def body(d):
        cut = Shares(td.DataLoader(Numbers(), batch_size=4), d, 5, "training")
        stream = Shares(Thousandfold(Numbers(), batch_size=4), d, 5, "training", left_alone=True)
        kept = [cut.converted(16, 4, "own"), cut.converted(16, 4, ""), stream.converted(3, 3, "stream")]
        return kept, [stream.converted(16, 2, "cut"), stream.converted(16, 2, ""), cut.converted(3, 3, "stream")]

    assert in_ranks(2, body) == [([16, 16, 3], [2, 2, 24])] * 2
    warned = [message for message in caplog.messages if "some samples may be repeated or skipped" in message]
    assert len(warned) == 3, "rank 0 warns"
    assert "is 'stream' now and was 'cut' when the checkpoint was written. Training resumes after 2" in warned[0]


def test_samplers_that_are_seeded_by_rank_draw_a_part_each_and_are_not_cut(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    caplog.set_level(logging.INFO)

    def weighted(count, seed, by_batch=False):
        def make(d):
            generator = torch.Generator().manual_seed(seed * d.rank)
            sampler = td.WeightedRandomSampler(torch.ones(1000), count // d.size, generator=generator)
            if by_batch:
                return td.DataLoader(Numbers(1000), batch_sampler=td.BatchSampler(sampler, 10, False))
            return td.DataLoader(Numbers(1000), batch_size=10, sampler=sampler)

        return make

    for count, by_batch in ((1000, False), (1000, True), (8000, False)):
        make = weighted(count, 1, by_batch)
        sharing, (one, two) = trained(make)
        assert sharing is Sharing.OWN
        assert [len(flat(one)), len(flat(two))] == [count // 2] * 2
        assert one != two
        assert trained(make)[1] == [one, two] != trained(make, epoch=1)[1], "a resumed run draws the same"
        assert trained(make, epoch=1)[1][0] != trained(make, epoch=1)[1][1]
    assert "50 batches per rank; its generators are seeded by rank." in caplog.text
    sharing, batches = trained(weighted(1000, 0))
    assert (sharing, [len(flat(rank)) for rank in batches]) == (Sharing.CUT, [250, 250])
    told = "(Numbers) draws the same 500 samples on all ranks (WeightedRandomSampler). Each rank gets 250 of them."
    assert told in caplog.text


@pytest.mark.parametrize("name", GENERATORS)
def test_a_sampler_with_another_generator_by_rank_and_a_part_of_the_data_is_not_cut(name):
    def body(d):
        sampler = Drawn(lambda: [int(sampler.rng.random() * 1000) for _ in range(500)], 500)
        sampler.rng = GENERATORS[name](d.rank)
        return Shares(td.DataLoader(Numbers(1000), batch_size=10, sampler=sampler), d, 5, "training").sharing

    assert in_ranks(2, body) == [Sharing.OWN] * 2


def test_a_generator_by_rank_that_the_sampler_does_not_draw_from_changes_nothing():
    def make(d):
        return td.DataLoader(
            Numbers(), batch_size=4, sampler=Drawn(lambda: range(16), 16, unused=numpy.random.default_rng(d.rank))
        )

    sharing, batches = trained(make)
    assert (sharing, sorted(flat(batches[0]) + flat(batches[1]))) == (Sharing.CUT, list(range(16)))


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


@pytest.mark.parametrize(
    ("of", "length"),
    [("data set", 10**12), *(("sampler", length) for length in (10**12, sys.maxsize, sys.maxsize + 1, -1))],
)
def test_a_length_that_stands_for_endless_makes_a_stream(of, length):
    def body(d):
        if of == "sampler":
            loader = td.DataLoader(Numbers(), sampler=Drawn(itertools.count, length), batch_size=4)
        else:
            loader = td.DataLoader(Numbers(length), batch_size=4)
        shares = Shares(loader, d, 5, "training")
        first = list(itertools.islice(shares.training(0, 0, None), 2))
        return shares.sharing, shares.length(), [batch.tolist() for batch in first]

    whole = -(-length // 4) if 0 < length <= sys.maxsize else None
    assert in_ranks(1, body) == [(Sharing.STREAM, whole, [[0, 1, 2, 3], [4, 5, 6, 7]])]


def test_a_replacing_sampler_of_huge_length_starts_at_once():
    def make(_):
        return td.DataLoader(Numbers(), sampler=td.RandomSampler(Numbers(), replacement=True, num_samples=10**12))

    assert in_ranks(1, lambda d: Shares(make(d), d, 5, "training").sharing) == [Sharing.STREAM]


def test_a_loader_whose_length_raises_has_none():
    class Combined:
        def __iter__(self):
            return iter([1, 2])

        def __len__(self):
            raise RuntimeError("Please call `iter(combined_loader)` first.")

    assert in_ranks(1, lambda d: Shares(Combined(), d, 5, "training").length()) == [None]


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


def test_indices_whose_equality_is_not_known_make_a_stream():
    class Key:
        def __init__(self, number, rank):
            self.number, self.rank = number, rank

    class Keyed(Numbers):
        def __getitem__(self, key):
            return key.number

    globals()["Key"] = Key
    Key.__qualname__ = "Key"

    def make(mark):
        return lambda d: td.DataLoader(Keyed(), batch_size=4, sampler=[Key(i, d.rank * mark) for i in range(COUNT)])

    assert trained(make(0))[0] is Sharing.CUT
    assert trained(make(1))[0] is Sharing.STREAM


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


class Lines(td.IterableDataset):
    """A stream that shuffles in the main process and augments each sample."""

    def __iter__(self):
        order = random.sample(range(8), 8)
        for number in order:
            yield number + float(torch.rand(()))

    def __len__(self):
        return 8


@pytest.mark.parametrize("length", [8, 12])
def test_a_resumed_stream_yields_what_the_unbroken_one_had_left(length):
    def stream():
        shares = in_ranks(1, lambda d: Shares(td.DataLoader(Lines(), batch_size=None), d, 5, "training"))[0]
        return shares

    torch.manual_seed(1)
    random.seed(1)
    unbroken, left = [], []
    state = None
    for number, batch in enumerate(stream().training(3, 0, length), 1):
        unbroken.append(float(batch))
        torch.rand(())  # what training draws
        if number == 5:
            state = torch.get_rng_state()
    random.seed(9)
    torch.set_rng_state(state)
    for batch in stream().training(3, 5, length):
        left.append(float(batch))
        torch.rand(())
    assert left == unbroken[5:]


def test_a_script_is_told_what_to_pass_instead_of_a_ready_loader():
    with dtrain.init(hparams={"global_batch_size": 4}) as ctx:
        for method in (ctx.loader, ctx.validation_loader):
            with pytest.raises(dtrain.SetupError, match=r"got a DataLoader. Pass its data set and its options"):
                method(td.DataLoader(Numbers()))
            with pytest.raises(dtrain.SetupError, match="got the iterable Lines"):
                method(Lines())
            with pytest.raises(dtrain.SetupError, match="chooses the samples of each rank itself, got sampler"):
                method(Numbers(), sampler=range(3))
