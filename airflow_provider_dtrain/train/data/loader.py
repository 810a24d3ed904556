"""Data loading: the samples of each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.data.held_generators import HeldGenerators, SeedPlan
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.data.worker_pool import PoolEpoch, WorkerPool
from airflow_provider_dtrain.train.errors import EmptyLoaderError
from airflow_provider_dtrain.train.process.seeding import derive, seed_everything


class BatchCounter:
    """Decides which optimizer steps begin a new batch, where several optimizers step in each.

    With ``ctx.loader``, a new batch begins when a loader has handed one out. Otherwise it begins when an optimizer
    steps that has already stepped in the current one.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._handed = 0
        self._stepped: set[int] = set()

    def is_new(self, optimizer: Any) -> bool:
        """Return whether this step of an optimizer begins a batch."""
        handed = self._progress.handed
        is_new = handed != self._handed or (not handed and id(optimizer) in self._stepped) or not self._stepped
        if is_new:
            self._handed = handed
            self._stepped.clear()
        self._stepped.add(id(optimizer))
        return is_new


def permutation(length: int, seed: int, epoch: int) -> list[int]:
    """Return the order of all samples in one epoch, the same on every rank and with any number of slots."""
    import torch

    generator = torch.Generator().manual_seed(derive(seed, "shuffle", epoch))
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order


def rank_batches(
    order: Sequence[int], *, start: int, per_slot: int, rank: int, size: int, drop_last: bool
) -> Iterator[list[int]]:
    """Yield this rank's part of each global batch.

    Global batch ``b`` is ``order[b*G : (b+1)*G]`` with ``G = per_slot * size``, cut into one piece per rank, so the
    ranks together see the samples of one process with the same global batch. A smaller last batch is divided evenly.
    At most ``size - 1`` samples from the start of the order fill it up, so that every rank takes the same steps.

    :param order: all samples of the epoch
    :param start: number of samples that were handed out before, all ranks together
    :param drop_last: drop a smaller last batch
    """
    whole = per_slot * size
    for begin in range(start, len(order), whole):
        batch = order[begin : begin + whole]
        if len(batch) < whole:
            if drop_last:
                return
            missing = -len(batch) % size
            batch = [*batch, *(order[i % len(order)] for i in range(missing))]
        share = len(batch) // size
        yield list(batch[rank * share : (rank + 1) * share])


def refuse_empty(dataset: Any, what: str) -> None:
    """Raise when a data set has no samples.

    :param what: ``training`` or ``validation``
    :raises EmptyLoaderError: the data set is empty
    """
    if hasattr(dataset, "__len__") and not len(dataset):
        raise EmptyLoaderError(
            f"The {what} data has no samples: len({type(dataset).__name__}) is 0. Check its path and its filter."
        )


class SeededBatches:
    """Data set that seeds random generators anew for each batch: those that it holds, and in a worker the global ones.

    All other attributes are those of the data set, also when a ``worker_init_fn`` sets them.

    :param dataset: map-style
    :param seed: seed of this rank and epoch
    :param in_worker: False: the batches are made in the process that trains, whose global generators a checkpoint holds
    """

    def __init__(self, dataset: Any, seed: int, *, in_worker: bool = True) -> None:
        # Names that the data set does not have itself.
        self.__dict__.update(_dtrain_dataset=dataset, _dtrain_seed=seed, _dtrain_in_worker=in_worker, _dtrain_held=None)

    def __len__(self) -> int:
        return len(self._dtrain_dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dtrain_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dtrain_dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dtrain_dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._dtrain_dataset, name)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        number, *samples = indices
        with self._dtrain_seeded(number):
            fetch = getattr(self._dtrain_dataset, "__getitems__", None)
            return fetch(samples) if fetch is not None else [self._dtrain_dataset[index] for index in samples]

    def __getitem__(self, numbered: tuple[int, Any]) -> Any:
        number, index = numbered
        with self._dtrain_seeded(number):
            return self._dtrain_dataset[index]

    def _dtrain_seeded(self, number: int | tuple[int, int]) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which the generators are seeded for a batch.

        :param number: number of the batch in its epoch, or its epoch's seed and this number
        """
        if self._dtrain_held is None:
            # Searched in the worker, after a worker_init_fn that may set generators.
            searched = HeldGenerators(self._dtrain_dataset)
            self.__dict__["_dtrain_held"] = searched, SeedPlan.agreed([searched.digests()])
        held: HeldGenerators
        plan: SeedPlan
        held, plan = self._dtrain_held
        seed = derive(*number) if isinstance(number, tuple) else derive(self._dtrain_seed, number)
        if self._dtrain_in_worker:
            seed_everything(seed)
        return held.seeded(seed, plan)


def torch_loader(
    dataset: Any, batches: list[Any], seed: int, first: int, options: Mapping[str, Any], *, collates: bool = True
) -> Any:
    """Return a DataLoader over the given batches that draws no number from the rank's own generators.

    In loader workers, and from generators that the data set holds, each batch has its own random numbers, so that
    augmentation is the same in a run that resumed in the middle of an epoch.

    :param batches: indices of each batch
    :param seed: seed of this rank and epoch
    :param first: number of the first batch in its epoch
    :param options: options of ``torch.utils.data.DataLoader``
    :param collates: False: each entry of ``batches`` is one index, for which the data set returns a whole batch
    """
    if options.get("num_workers") or HeldGenerators(dataset):
        dataset = SeededBatches(dataset, seed, in_worker=bool(options.get("num_workers")))
        numbered = enumerate(batches, first)
        batches = [[number, *batch] for number, batch in numbered] if collates else list(numbered)
    return _loader(dataset, batches, seed, options, collates=collates)


def pooled_epoch(
    pool: WorkerPool,
    dataset: Any,
    batches: list[Any],
    seed: int,
    first: int,
    options: Mapping[str, Any],
    *,
    collates: bool = True,
) -> PoolEpoch:
    """Return the batches of :func:`torch_loader`, with the same random numbers, from workers that outlive the epoch."""
    numbered = [((seed, number), batch) for number, batch in enumerate(batches, first)]
    seeded = [[number, *batch] for number, batch in numbered] if collates else numbered

    def make(source: Any, lasts: bool) -> Any:
        chosen = {**options, "persistent_workers": lasts}
        return _loader(SeededBatches(dataset, seed), source, seed, chosen, collates=collates)

    return PoolEpoch(pool, seeded, make)


def _loader(dataset: Any, batches: Any, seed: int, options: Mapping[str, Any], *, collates: bool) -> Any:
    import torch
    from torch.utils.data import DataLoader

    # Its own generator: the default one would lose a number per iterator, so a resumed run would differ.
    generator = torch.Generator().manual_seed(seed)
    if not collates:
        return DataLoader(dataset, batch_size=None, sampler=batches, generator=generator, **options)
    return DataLoader(dataset, batch_sampler=batches, generator=generator, **options)
