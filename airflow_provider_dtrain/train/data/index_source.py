"""Indices that a data loader takes from its data set, epoch by epoch."""

from __future__ import annotations

import copy
import itertools
import logging
import operator
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from airflow_provider_dtrain.train.data.held_generators import HeldGenerators, SeedPlan
from airflow_provider_dtrain.train.data.loader import permutation
from airflow_provider_dtrain.train.process import seeding
from airflow_provider_dtrain.train.process.seeding import derive

log = logging.getLogger(__name__)

#: Indices per epoch, 1.6 GB, up to which a sampler is drawn: a longer one is meant to be endless.
LONGEST = 200_000_000
#: The same for a sampler of torch that takes the whole data set, whose first epoch is not drawn at the start.
LONGEST_PLAIN = 10_000_000_000
#: Attributes that a subclass of torch's DataLoader overrides when it makes its batches in another way.
_ITERATION = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation")
#: Depth to which samplers within samplers are searched.
_DEPTH = 4
_PLAIN = (str, bytes, int, float, bool, type(None))


def is_indexed(loader: Any) -> bool:
    """Return whether a loader's batches follow from the indices of its sampler alone."""
    if not isinstance(loader, torch_data.DataLoader) or isinstance(loader.dataset, torch_data.IterableDataset):
        return False
    return all(getattr(type(loader), name) is getattr(torch_data.DataLoader, name) for name in _ITERATION)


@dataclass(frozen=True)
class Keys:
    """Numbers that stand for the indices of an epoch."""

    #: int64, shape (number of indices)
    numbers: torch.Tensor
    #: The numbers are the indices; False: digests of indices of another type.
    are_indices: bool = True
    #: False: equal indices may have different numbers on two ranks.
    comparable: bool = True

    def digest(self) -> Any:
        """Return a hash object of the numbers, in their order."""
        numbers = self.numbers.contiguous()
        try:
            content: Any = numbers.numpy()
        except RuntimeError:  # torch without numpy
            content = array("q", numbers.tolist())
        return blake2b(content, digest_size=16)


class IndexSource:
    """The sampler of a data loader. It draws the same numbers on all ranks and in a resumed run.

    :param loader: a torch DataLoader, see :func:`is_indexed`
    :param seed: seed of the trial
    :param plan: of the generators that the loader holds
    """

    def __init__(self, loader: Any, seed: int, plan: SeedPlan) -> None:
        self._seed = seed
        self._dataset = loader.dataset
        self._loader = loader
        self._plan = plan
        #: True: the sampler yields samples; False: it yields whole batches.
        self.by_sample = loader.batch_size is not None and type(loader.batch_sampler) is BatchSampler
        whole = self.by_sample or loader.batch_sampler is None
        self.sampler: Any = loader.sampler if whole else loader.batch_sampler
        #: Length and shuffling of a sampler of torch that takes the whole data set; None for every other sampler.
        self.plain = _plain_order(self.sampler) if self.by_sample else None
        self._first: Sequence[Any] | None = None
        self._count = 0
        #: The rank, where generators that differ between the ranks are seeded by it.
        self._rank: int | None = None

    def __len__(self) -> int:
        """Return the number of items in the first epoch. :meth:`first` counts them unless the sampler is plain."""
        return self.plain[0] if self.plain is not None else self._count

    def first(self) -> Sequence[Any] | None:
        """Draw the first epoch and return it, or None if its end is not known.

        The next :meth:`draw` of the first epoch returns the same indices. At most one item more than the sampler's
        length is drawn, because a sampler may be endless. No item is drawn if the length is above :data:`LONGEST`.
        """
        length = known_length(self.sampler)
        if length is None or length > LONGEST:
            return None
        drawn, length = self._draw(0, first=True)
        self._first = drawn if len(drawn) <= length else None
        self._count = len(drawn)
        return self._first

    def by_rank(self, rank: int) -> IndexSource:
        """Return a source that seeds by the rank those generators whose states differ between the ranks."""
        other = copy.copy(self)
        other._rank = rank
        other._first = None
        return other

    def has_generators_apart(self) -> bool:
        """Return whether the loader holds generators whose states differ between the ranks."""
        return bool(self._plan.apart)

    def is_divided(self, ranks: int, keys: Keys) -> bool:
        """Return whether drawn indices are too few, or too often repeated, to be the data of all ranks together."""
        drawn = keys.numbers.numel()
        repeats = drawn - torch.unique(keys.numbers).numel() > drawn // 10
        return repeats or drawn * ranks <= (known_length(self._dataset) or 0) + ranks

    def draw(self, epoch: int, *, shuffle: bool = True) -> Sequence[Any]:
        """Return the indices of an epoch, or its batches of indices.

        :param shuffle: False: a sampler of torch that shuffles the whole data set keeps its order
        """
        if self.plain is not None:
            length, shuffles = self.plain
            return permutation(length, self._seed, epoch) if shuffles and shuffle else range(length)
        drawn = self._first
        self._first = None
        if drawn is not None and not epoch:
            return drawn
        items, limit = self._draw(epoch)
        if len(items) > limit:
            log.warning(
                "%s draws more than %d indices in epoch %d, twice its length. The rest of it is left out.",
                type(self.sampler).__name__,
                limit,
                epoch,
            )
            items = items[:limit]
        return items

    def _draw(self, epoch: int, *, first: bool = False) -> tuple[Sequence[Any], int]:
        """Draw an epoch. Return its items and their largest number: one item more shows that the epoch is longer.

        The largest number is the sampler's length in the first epoch. It is twice the length later, when the sampler is
        known to end, because the length of some samplers is an estimate.
        """
        seed = derive(self._seed, "sampler", epoch)
        with seeding.seeded(seed):
            for part in sampler_parts(self.sampler):
                set_epoch(part, epoch)
            with HeldGenerators.of_loader(self._loader).seeded(seed, self._plan, self._rank):
                return self._iterated(first=first)

    def _iterated(self, *, first: bool) -> tuple[Sequence[Any], int]:
        iterator = iter(self.sampler)
        head = list(itertools.islice(iterator, 1))
        # Some samplers build an epoch, and so have its length, only when its iteration begins.
        length = known_length(self.sampler) or 0
        limit = min(length if first else 2 * max(length, self._count), LONGEST)
        return _collected(itertools.chain(head, itertools.islice(iterator, limit))), limit

    def keys(self, items: Sequence[Any]) -> Keys:
        """Return one number per index. The same sample has the same number on all ranks.

        :param items: return value of :meth:`draw`
        """
        flat = items if self.by_sample else list(_flat(items))
        try:
            numbers = flat if isinstance(flat, array) else array("q", flat)
        except (TypeError, OverflowError):
            return Keys(_tensor(array("q", map(_digest, flat))), False, all(map(_has_value, flat)))
        return Keys(_base(self._dataset, _tensor(numbers)))

    def contents(self) -> bytes:
        """Return a digest of a few samples of a data set that is held in tensors, or no bytes for another data set."""
        dataset = self._dataset
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        if type(dataset) is not TensorDataset:
            return b""
        digest = blake2b(digest_size=8)
        for tensor in dataset.tensors:
            try:
                ends = tensor.detach()[[0, -1]].cpu().tolist() if len(tensor) else []
            except RuntimeError:  # a layout that cannot be indexed
                ends = []
            digest.update(repr((tensor.dtype, tuple(tensor.shape), ends)).encode())
        return digest.digest()

    def is_part(self) -> bool:
        """Return whether the data set is a subset of another one, chosen by indices."""
        return isinstance(self._dataset, Subset)


def set_epoch(item: Any, epoch: int) -> None:
    """Pass the epoch to a sampler, data set or loader that has the method ``set_epoch``."""
    if callable(getattr(item, "set_epoch", None)):
        item.set_epoch(epoch)


def known_length(item: Any) -> int | None:
    """Return the length of a data set, sampler or loader, or None if it has none or cannot give it."""
    try:
        return len(item)
    # ValueError and OverflowError: not a length that Python takes. RuntimeError: loaders that combine loaders.
    except (TypeError, NotImplementedError, ValueError, OverflowError, RuntimeError):
        return None


def _plain_order(sampler: Any) -> tuple[int, bool] | None:
    iterates = getattr(type(sampler), "__iter__", None)
    if iterates is SequentialSampler.__iter__:
        dataset = sampler.data_source
        shuffles = False
    elif type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        dataset = sampler.data_source
        shuffles = True
    elif iterates is DistributedSampler.__iter__:
        dataset = sampler.dataset
        shuffles = bool(sampler.shuffle)
    else:
        return None
    length = known_length(dataset)
    return None if length is None or length > LONGEST_PLAIN else (length, shuffles)


def sampler_parts(sampler: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield a sampler and the samplers inside it."""
    yield sampler
    if depth:
        for value in list(getattr(sampler, "__dict__", {}).values()):
            if isinstance(value, Sampler):
                yield from sampler_parts(value, depth - 1)


def _collected(items: Iterable[Any]) -> Sequence[Any]:
    """Return all items: plain integers in an array of 8 bytes each, anything else in a list."""
    iterator = iter(items)
    head = list(itertools.islice(iterator, 1))
    if not head or type(head[0]) is not int:
        return [*head, *iterator]
    numbers = array("q", head)
    for item in iterator:
        if type(item) is not int:
            return [*numbers, item, *iterator]
        numbers.append(item)
    return numbers


def _flat(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from item
        else:
            yield item


def _tensor(numbers: array[int]) -> torch.Tensor:
    return torch.frombuffer(numbers, dtype=torch.int64) if numbers else torch.empty(0, dtype=torch.int64)


def _base(dataset: Any, numbers: torch.Tensor) -> torch.Tensor:
    """Return indices of a subset as indices of the data set that it is taken from."""
    while isinstance(dataset, Subset) and numbers.numel():
        indices = dataset.indices
        if isinstance(indices, range):
            table = torch.arange(indices.start, indices.stop, indices.step)
        else:
            table = _tensor(array("q", map(operator.index, indices)))
        dataset = dataset.dataset
        numbers = table[numbers]
    return numbers


def _has_value(item: Any) -> bool:
    return all(map(_has_value, item)) if type(item) is tuple else type(item) in _PLAIN


def _digest(item: Any) -> int:
    content = repr(item).encode() if _has_value(item) else pickle.dumps(item)
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big", signed=True)
