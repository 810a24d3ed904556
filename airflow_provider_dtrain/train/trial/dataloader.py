"""Data loaders of a trial class, divided into the ranks' shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils import data as torch_data
from torch.utils.data import IterableDataset

from airflow_provider_dtrain.train.data.loader import refuse_empty
from airflow_provider_dtrain.train.errors import BatchLengthError, SetupError
from airflow_provider_dtrain.train.trial.samplers import adapt_batch_sampler


class DataLoader:
    """Data loader of a trial class, with the arguments of ``torch.utils.data.DataLoader``.

    The library shards it over the ranks and restores its position.

    :param dataset: map-style, with a length
    :param batch_size: samples per rank and batch: ``context.get_per_slot_batch_size()``
    :param shuffle: shuffle by the trial's seed, in a new order each epoch
    :param options: further options of ``torch.utils.data.DataLoader``
    :raises SetupError: the data set is iterable or has no length, or no batch size is given
    :raises EmptyLoaderError: the data set is empty
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise SetupError(
                f"{type(dataset).__name__} has no indices to shard by. Return a torch.utils.data.DataLoader of it, and "
                "let the data set give each rank its own part (context.distributed.rank)."
            )
        refuse_empty(dataset, "training or validation")
        if batch_size is None and batch_sampler is None:
            raise SetupError("DataLoader needs batch_size or batch_sampler, got None for both.")
        self._options = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            **options,
        }
        self.torch_loader = torch_data.DataLoader(
            dataset,
            batch_size=1 if batch_sampler is not None else batch_size,
            shuffle=None if sampler is not None or batch_sampler is not None else shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            **self._options,
        )
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.torch_loader)

    def __len__(self) -> int:
        return len(self.torch_loader)

    def get_data_loader(self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0) -> Any:
        """Return a torch DataLoader.

        Without arguments, it is the one that the library divides and repeats if a trial class returns it. With
        arguments, it yields what they say, for a program that divides its data itself.

        :param repeat: yield the batches again and again
        :param skip: batches to skip, of those of this rank
        :param num_replicas: number of ranks
        """
        if not (repeat or skip or num_replicas > 1):
            return self.torch_loader
        batches = adapt_batch_sampler(self.torch_loader.batch_sampler, repeat, skip, num_replicas, rank)
        return torch_data.DataLoader(self.dataset, batch_sampler=batches, **self._options)


def batch_length(batch: Any) -> int:
    """Return the number of records in a batch: the length of the first tensor or array in it.

    :raises BatchLengthError: the number cannot be determined
    """
    if hasattr(batch, "shape") and len(batch.shape):
        return int(batch.shape[0])
    items = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(items, (list, tuple)) and items:
        nested = hasattr(items[0], "shape") or isinstance(items[0], (list, tuple, Mapping))
        return batch_length(items[0]) if nested else len(items)
    raise BatchLengthError(
        f"The number of records in a batch of type {type(batch).__name__} cannot be determined. Override "
        "get_batch_length(batch) in the trial class."
    )
