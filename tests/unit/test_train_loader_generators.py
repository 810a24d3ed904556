"""Random generators that samplers, data sets and loaders draw from."""

from __future__ import annotations

import itertools
import logging
import random
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

from torch.utils import data as td  # noqa: E402

from airflow_provider_dtrain.train.data.held_generators import HeldGenerators  # noqa: E402
from airflow_provider_dtrain.train.data.index_comparison import Sharing  # noqa: E402
from airflow_provider_dtrain.train.data.position import Progress  # noqa: E402
from airflow_provider_dtrain.train.data.shares import Shares  # noqa: E402
from tests.support.loaders import COUNT, Drawn, EveryNth, Numbers, flat, trained  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402
from tests.support.script_loaders import training_loader  # noqa: E402

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


class Order:
    """A part of a sampler that is no sampler itself."""

    def __init__(self, rng):
        self.rng = rng

    def __call__(self):
        order = list(range(COUNT))
        self.rng.shuffle(order)
        return order


def deep_sampler(order):
    return Drawn(lambda: order(), inner={"one of several": [None, (Drawn(None, order=order),)]})


def of_data_set(order):
    data = Numbers()
    data.transform = [order]
    return td.DataLoader(data, batch_size=4, sampler=Drawn(lambda: data.transform[0]()))


DEEP = {
    "in lists and dicts of a sampler": lambda order: td.DataLoader(
        Numbers(), batch_size=4, sampler=deep_sampler(order)
    ),
    "in a sampler of a batch sampler": lambda order: td.DataLoader(
        Numbers(), batch_sampler=td.BatchSampler(EveryNth(deep_sampler(order), 1, 0), 4, drop_last=False)
    ),
    "in the data set": of_data_set,
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("rng", [random.Random, numpy.random.default_rng, numpy.random.RandomState])
def test_a_generator_deep_inside_a_loader_is_seeded_by_trial_and_epoch(name, rng):
    def make(_):
        return DEEP[name](Order(rng()))  # in another state on each rank and in each attempt

    sharing, batches = trained(make)
    assert sharing is Sharing.CUT
    assert sorted(flat(batches[0]) + flat(batches[1])) == list(range(COUNT))
    assert trained(make)[1] == batches != trained(make, epoch=1)[1]


def test_samplers_that_are_seeded_by_rank_in_a_list_draw_a_part_each():
    class Chained(td.Sampler):
        def __init__(self, samplers):
            self.samplers = samplers

        def __iter__(self):
            return itertools.chain(*self.samplers)

        def __len__(self):
            return sum(map(len, self.samplers))

    def make(d):
        one, two = torch.Generator().manual_seed(0), torch.Generator().manual_seed(d.rank)
        return td.DataLoader(
            Numbers(1000), batch_size=50,
            sampler=Chained([td.WeightedRandomSampler(torch.ones(1000), 250, generator=rng) for rng in (one, two)]),
        )  # fmt: skip

    sharing, (one, two) = trained(make)
    assert sharing is Sharing.OWN
    assert (one[:5], one[5:] == two[5:]) == (two[:5], False), "the first sampler is seeded alike on all ranks"
    assert trained(make)[1] == [one, two]


class Augmented(td.Dataset):
    """Draws from generators of its own: ``image`` and ``mask`` alike, ``noise`` apart from them."""

    def __init__(self):
        self.image, self.mask, self.noise = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        drawn = [float(torch.rand((), generator=rng)) for rng in (self.image, self.mask, self.noise)]
        return torch.tensor([index, *drawn])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_with_generators_of_its_own_draws_the_same_numbers_after_a_resume(workers):
    data = Augmented()
    before = data.image.get_state()

    def batches(epoch=0, offset=0):
        return trained(lambda _: td.DataLoader(data, 4, num_workers=workers), 1, epoch, offset)[1][0]

    whole = batches()
    assert batches(offset=12) == whole[3:]
    assert batches() == whole
    assert torch.equal(data.image.get_state(), before)
    image, mask, noise = ([sample[kind] for batch in whole for sample in batch] for kind in (1, 2, 3))
    assert image == mask, "generators that were seeded alike stay alike"
    assert len({*image, *noise, *(sample[1] for batch in batches(epoch=1) for sample in batch)}) == 3 * COUNT


def test_the_ranks_draw_other_numbers_from_a_data_set_with_a_generator():
    one, two = trained(lambda _: td.DataLoader(Augmented(), 4))[1]
    assert {sample[1] for batch in one for sample in batch}.isdisjoint(sample[1] for batch in two for sample in batch)


def test_a_script_resumes_with_the_numbers_of_its_data_sets_own_generator():
    def batches(start):
        progress = Progress(restored=[{"samples": start, "finished": False}], in_epochs=True)
        return [batch.tolist() for batch in training_loader(Augmented(), progress, seed=5)]

    assert batches(12) == batches(0)[3:]


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_a_search_for_generators_ends_and_leaves_out_modules_and_the_global_generators():
    chain = deepest = Holder()
    for _ in range(50):
        deepest.next = deepest = Holder()
    deepest.rng = random.Random(1)
    root = Holder(
        samples=[(i, Holder()) for i in range(100_000)], again=None, chain=chain, module=random, numpy=numpy.random,
        default=torch.default_generator, legacy=numpy.random.mtrand._rand, kind=random.Random,
        parts=(Holder(rng=random.Random(2)),),
    )  # fmt: skip
    root.again = [root, ModuleType("helpers")]
    root.again[1].rng = random.Random(3)
    assert list(HeldGenerators(root).digests()) == ["0.parts[0].rng"]


def test_a_large_data_set_hides_no_generator_of_a_sampler():
    data = Numbers()
    data.samples = [[[Holder() for _ in range(50)] for _ in range(30)] for _ in range(30)]
    sampler = Drawn(None, order=Holder(a=Holder(b=Holder(c=Holder(rng=random.Random(1))))))
    assert len(HeldGenerators.of_loader(td.DataLoader(data, sampler=sampler)).digests()) == 1


class Shuffled(td.IterableDataset):
    """Shuffles with a generator of its own and adds noise from it, as a stream."""

    def __init__(self, seed=None, rank=0, size=1):
        self.parts = [Order(random.Random(seed))]
        self.rank, self.size = rank, size

    def __iter__(self):
        noisy = (index + self.parts[0].rng.random() for index in self.parts[0]())
        return itertools.islice(noisy, self.rank, None, self.size)

    def __len__(self):
        return COUNT


def test_a_stream_that_draws_from_its_own_generator_continues_after_a_resume():
    def batches(epoch=0, offset=0, size=1, seed=None):
        def make(d):
            return td.DataLoader(Shuffled(seed if seed is None else seed * d.rank, d.rank, d.size), batch_size=4)

        return trained(make, size, epoch, offset)[1]

    (whole,) = batches()
    assert batches(offset=3) == [whole[3:]]
    assert batches(epoch=1) != [whole]
    alike, other = ([set(flat(rank)) for rank in batches(size=2, seed=seed)] for seed in (0, 1))
    assert alike[0] | alike[1] == set(range(COUNT)), "a stream that shuffles alike on all ranks keeps its part"
    assert other[0] | other[1] != set(range(COUNT))


def test_generators_of_a_loader_that_is_left_alone_are_left_alone():
    def batches():
        return trained(lambda _: td.DataLoader(Shuffled(seed=3), batch_size=4), 1, left_alone=True)[1]

    assert flat(batches()[0]) == Order(random.Random(3))()
    assert batches() == batches()
