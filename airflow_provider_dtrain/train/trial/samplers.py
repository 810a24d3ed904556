"""Samplers with the names, arguments and orders of ``determined.pytorch.samplers``.

The library divides, shuffles and repeats the loader that a trial class returns. These samplers serve trials that do
it by hand, and need ``context.experimental.disable_dataset_reproducibility_checks()`` where they repeat without an end.

Source: determined 0.38.1, ``determined/pytorch/samplers.py``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, Sampler

from airflow_provider_dtrain.train.errors import SetupError


class _Around:
    """A sampler around another one.

    :param sampler: sampler, or batch sampler
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)


class RepeatSampler(_Around, Sampler[Any]):
    """Yields the items of another sampler again and again. Its length is that of one pass."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


class RepeatBatchSampler(RepeatSampler, BatchSampler):
    """Yields the batches of another batch sampler again and again. Its length is that of one pass."""

    def __init__(self, batch_sampler: Any) -> None:
        super().__init__(batch_sampler)
        self.batch_sampler = batch_sampler


class DistributedSampler(_Around, Sampler[Any]):
    """Yields each ``num_workers``-th item of another sampler, beginning with item ``rank``.

    :param num_workers: number of ranks
    :param rank: this rank, 0 .. num_workers-1
    :raises SetupError: ``rank`` or ``num_workers`` is not valid
    """

    def __init__(self, sampler: Any, num_workers: int, rank: int) -> None:
        if num_workers < 1 or not 0 <= rank < num_workers:
            raise SetupError(
                f"num_workers must be at least 1 and rank from 0 to num_workers-1, got {num_workers} and {rank}. Pass "
                "context.distributed.size and context.distributed.rank."
            )
        super().__init__(sampler)
        self.num_workers = num_workers
        self.rank = rank

    def __len__(self) -> int:
        return len(range(self.rank, len(self._sampler), self.num_workers))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self.rank, None, self.num_workers)


class DistributedBatchSampler(DistributedSampler, BatchSampler):
    """Yields each ``num_workers``-th batch of a batch sampler. The ranks may have different numbers of batches."""

    def __init__(self, batch_sampler: Any, num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, num_workers, rank)
        self.batch_sampler = batch_sampler


class SkipSampler(_Around, Sampler[Any]):
    """Yields the items of another sampler without the first ``skip``. Its length is that of the other one."""

    def __init__(self, sampler: Any, skip: int) -> None:
        super().__init__(sampler)
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._skip, None)


class SkipBatchSampler(SkipSampler, BatchSampler):
    """Yields the batches of a batch sampler without the first ``skip``. Its length is that of the other one."""

    def __init__(self, batch_sampler: Any, skip: int) -> None:
        super().__init__(batch_sampler, skip)
        self.batch_sampler = batch_sampler


class ReproducibleShuffleSampler(_Around, Sampler[Any]):
    """Shuffles the items of another sampler, in the same orders for the same seed.

    :param seed: seed, e.g. ``context.get_trial_seed()``
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        try:
            import numpy as np  # optional for PyTorch
        except ImportError as error:
            raise SetupError(
                "ReproducibleShuffleSampler shuffles with NumPy, as that of Determined does, and it is not installed. "
                f"Install it where the ranks run: {sys.executable} -m pip install numpy. Or shuffle by the library: "
                "DataLoader(data, batch_size=..., shuffle=True)."
            ) from error

        super().__init__(sampler)
        # The orders are those of Determined.
        self._rng = np.random.RandomState(seed)

    def __iter__(self) -> Iterator[Any]:
        items = list(self._sampler)
        self._rng.shuffle(items)
        return iter(items)


class ReproducibleShuffleBatchSampler(ReproducibleShuffleSampler, BatchSampler):
    """Shuffles the batches of a batch sampler, in the same orders for the same seed."""

    def __init__(self, batch_sampler: Any, seed: int) -> None:
        super().__init__(batch_sampler, seed)
        self.batch_sampler = batch_sampler


def adapt_batch_sampler(
    batch_sampler: Any, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Any:
    """Return a batch sampler that repeats, then takes each ``num_replicas``-th batch, then skips.

    :param skip: batches to skip, of those of this rank
    :param num_replicas: number of ranks
    """
    if repeat:
        batch_sampler = RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = DistributedBatchSampler(batch_sampler, num_replicas, rank)
    if skip > 0:
        batch_sampler = SkipBatchSampler(batch_sampler, skip)
    return batch_sampler
