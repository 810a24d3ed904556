"""Data loaders of trial classes, and the batches that ranks take from them."""

from __future__ import annotations

import itertools

import torch
from torch.utils import data as td
from torch.utils.data.distributed import DistributedSampler

from airflow_provider_dtrain.train import pytorch
from airflow_provider_dtrain.train.data.shares import Shares
from tests.support.rank_threads import in_ranks

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
