"""The data loaders of a trial class, cut into the ranks' shares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from airflow_provider_dtrain.train.data import permutation, rank_batches, refuse_empty, torch_loader
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import EmptyLoaderError, SetupError
from airflow_provider_dtrain.train.seeding import derive

log = logging.getLogger(__name__)

#: What a torch DataLoader was built with and a rank's share of it is built with again.
KEPT_OPTIONS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "prefetch_factor", "persistent_workers",
)  # fmt: skip


class DataLoader:
    """Data of a trial class: takes what ``torch.utils.data.DataLoader`` takes; sharding and position are seen to.

    :param dataset: map-style, with a length
    :param batch_size: samples per rank and batch: ``context.get_per_slot_batch_size()``
    :param shuffle: by the trial's seed, anew each epoch
    :param options: of ``torch.utils.data.DataLoader``
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, sampler: Any = None,
        batch_sampler: Any = None, num_workers: int = 0, collate_fn: Any = None, pin_memory: bool = False,
        drop_last: bool = False, timeout: float = 0, worker_init_fn: Any = None, multiprocessing_context: Any = None,
        generator: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise SetupError(
                f"{type(dataset).__name__} has no indices to shard by. Return a torch.utils.data.DataLoader of it, and "
                "let the data set give each rank its own part (context.distributed.rank)."
            )
        refuse_empty(dataset, "training or validation")
        if batch_size is None and batch_sampler is None:
            raise SetupError("DataLoader needs batch_size or batch_sampler; None for both would not make batches.")
        self.torch_loader = torch_data.DataLoader(
            dataset, batch_size=1 if batch_sampler is not None else batch_size,
            shuffle=None if sampler is not None or batch_sampler is not None else shuffle, sampler=sampler,
            batch_sampler=batch_sampler, num_workers=num_workers, collate_fn=collate_fn, pin_memory=pin_memory,
            drop_last=drop_last, timeout=timeout, worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context, generator=generator, **options,
        )  # fmt: skip
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.torch_loader)

    def __len__(self) -> int:
        return len(self.torch_loader)


class Shares:
    """One rank's share of a data loader, epoch by epoch.

    :param loader: a :class:`DataLoader`, torch's, or anything that can be iterated again and again
    :param what: ``training`` or ``validation``, for messages
    """

    def __init__(self, loader: Any, distributed: Distributed, seed: int, what: str) -> None:
        self.loader: Any = loader.torch_loader if isinstance(loader, DataLoader) else loader
        self._distributed, self._seed, self._what = distributed, seed, what
        self._rank, self._size = distributed.get_rank(), distributed.get_size()
        self._indexed = isinstance(self.loader, torch_data.DataLoader) and not isinstance(
            self.loader.dataset, IterableDataset
        )
        if not self._indexed:
            if not hasattr(self.loader, "__iter__"):
                raise SetupError(f"The {what} data loader is {type(loader).__name__}, which cannot be iterated.")
            self._warn_of_copies()
        #: True: indices are cut; False: whole batches of the user's own batch sampler are dealt out.
        self._by_sample = self._indexed and _has_plain_batches(self.loader)
        #: How far one batch moves the position.
        self.stride = (self.loader.batch_size or 1) * self._size if self._by_sample else 1

    def length(self) -> int | None:
        """Return the batches of an epoch per rank, the same on all ranks; None when nobody knows.

        Called by all ranks.

        :raises EmptyLoaderError: there is nothing
        """
        if self._by_sample:
            count = len(self.loader.sampler) if _sampler_counts(self.loader) else len(self.loader.dataset)
            whole = count // self.stride if self.loader.drop_last else -(-count // self.stride)
        elif self._indexed:
            whole = -(-len(self.loader.batch_sampler) // self._size)
        else:
            known = [length for length in self._distributed.allgather(_length(self.loader)) if length is not None]
            if len(known) < self._size:
                return None
            whole = min(known)
        if not whole:
            raise self.nothing()
        return whole

    def nothing(self) -> EmptyLoaderError:
        """Return the error that says that the loader yields nothing."""
        of = f" ({len(self.loader.dataset)} samples)" if self._indexed else ""
        less = (
            f" A batch of all {self._size} slots takes {self.stride} samples and drop_last leaves smaller ones out."
            if self._by_sample and self.loader.drop_last else ""
        )  # fmt: skip
        return EmptyLoaderError(f"The {self._what} data loader yields no batch{of}.{less} Look at its data set.")

    def training(self, epoch: int, offset: int, length: int | None) -> Iterator[Any]:
        """Return this rank's batches of an epoch from a position on.

        :param offset: where the first batch begins, in units of :attr:`stride`
        :param length: batches of the epoch; a stream that ends earlier begins again
        """
        if not self._indexed:
            return self._stream(offset, length)
        seed = derive(self._seed, "loader", epoch, self._rank)
        if self._by_sample:
            batches = list(rank_batches(
                self._order(epoch), start=offset, per_slot=self.loader.batch_size, rank=self._rank, size=self._size,
                drop_last=self.loader.drop_last,
            ))  # fmt: skip
        else:
            batches = self._dealt(epoch)[offset:]
        return iter(torch_loader(self.loader.dataset, batches, seed, offset // self.stride, self._options()))

    def validation(self) -> Iterator[Any]:
        """Return this rank's batches: each sample on exactly one rank, in order."""
        if not self._indexed:
            return iter(self.loader)
        if self._by_sample:
            order, per_slot = list(self._order(0, shuffle=False))[self._rank :: self._size], self.loader.batch_size
            batches = [order[begin : begin + per_slot] for begin in range(0, len(order), per_slot)]
        else:
            batches = self._seeded(lambda: list(self.loader.batch_sampler), 0)[self._rank :: self._size]
        return iter(torch_loader(self.loader.dataset, batches, derive(self._seed, "validation"), 0, self._options()))

    def _order(self, epoch: int, *, shuffle: bool = True) -> Any:
        """Return the order of the samples in an epoch, the same on all ranks."""
        sampler, length = self.loader.sampler, len(self.loader.dataset)
        if isinstance(sampler, SequentialSampler):
            return range(length)
        if isinstance(sampler, DistributedSampler) or _shuffles(sampler):
            shuffled = shuffle and getattr(sampler, "shuffle", True)
            return permutation(length, self._seed, epoch) if shuffled else range(length)
        return self._seeded(lambda: list(sampler), epoch, sampler)

    def _dealt(self, epoch: int) -> list[list[Any]]:
        batches = self._seeded(lambda: list(self.loader.batch_sampler), epoch, self.loader.batch_sampler)
        missing = -len(batches) % self._size
        return [*batches, *(batches[i % len(batches)] for i in range(missing))][self._rank :: self._size]

    def _seeded(self, draw: Callable[[], list[Any]], epoch: int, sampler: Any = None) -> list[Any]:
        """Return what a sampler of the user's draws, the same on all ranks and in a resumed run."""
        seed = derive(self._seed, "sampler", epoch)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return draw()

    def _stream(self, skip: int, length: int | None) -> Iterator[Any]:
        """Yield the batches of an iterable; with a length it begins again when it ends too early."""
        left = None if length is None else length - skip
        while left is None or left > 0:
            yielded = False
            for batch in iter(self.loader):
                yielded = True
                if skip:
                    skip -= 1
                    continue
                yield batch
                if left is not None:
                    left -= 1
                    if not left:
                        return
            if not yielded:
                raise self.nothing()
            if left is None:
                return

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self.loader, name) for name in KEPT_OPTIONS}

    def _warn_of_copies(self) -> None:
        if self._size > 1 and self._rank == 0:
            log.warning(
                "The %s data cannot be sharded by index (%s): each of the %d ranks iterates its own copy. Let the data "
                "set give each rank its part (context.distributed.rank and .size).",
                self._what, type(getattr(self.loader, "dataset", self.loader)).__name__, self._size,
            )  # fmt: skip


def _has_plain_batches(loader: Any) -> bool:
    return loader.batch_size is not None and type(loader.batch_sampler) is BatchSampler


def _shuffles(sampler: Any) -> bool:
    """Return whether a sampler is torch's plain shuffling of the whole data set."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None


def _sampler_counts(loader: Any) -> bool:
    return not isinstance(loader.sampler, DistributedSampler)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def batch_length(batch: Any) -> int:
    """Return the records of a batch: the length of the first tensor or array in it.

    :raises SetupError: there is none
    """
    if hasattr(batch, "shape") and len(batch.shape):
        return int(batch.shape[0])
    items = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(items, (list, tuple)) and items:
        nested = hasattr(items[0], "shape") or isinstance(items[0], (list, tuple, Mapping))
        return batch_length(items[0]) if nested else len(items)
    raise SetupError(
        f"How many records a batch of type {type(batch).__name__} has cannot be seen. Say it: override "
        "get_batch_length(batch) in the trial class."
    )


def on_cpu(batch: Any) -> bool:
    """Return whether every leaf of a batch is a tensor on the CPU, or nothing that moves."""
    if isinstance(batch, torch.Tensor):
        return batch.device.type == "cpu"
    if isinstance(batch, dict):
        return all(map(on_cpu, batch.values()))
    if isinstance(batch, (list, tuple)):
        return all(map(on_cpu, batch))
    return isinstance(batch, (int, float, str, bytes, type(None)))
