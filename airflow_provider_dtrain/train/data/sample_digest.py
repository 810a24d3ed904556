"""Digest of a few samples of a data set, by which the ranks notice that each of them holds other data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from airflow_provider_dtrain.train.data.held_generators import HeldGenerators, SeedPlan
from airflow_provider_dtrain.train.process import seeding

#: Fetches that show whether a sample is the same each time. A coin that decides about it differs in one of them.
REPEATS = 8
#: Bytes of one value that count.
LONGEST = 1 << 16
_DEPTH = 6
_SEED = 17


class SampleProbe:
    """Fetches the first and the last sample of a map-style data set.

    With loader workers, a worker process fetches them: some data sets open a file at the first access, which must not
    happen in the process that starts the workers.

    :param loader: a torch DataLoader whose data set has a length
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def digest(self) -> bytes:
        """Return a digest of the samples, or no bytes if they cannot be compared."""
        return self._fetched(1)[0]

    def is_steady(self) -> bool:
        """Return whether repeated fetches yield the same samples, so that other samples mean other data."""
        return len(set(self._fetched(REPEATS))) == 1

    def _fetched(self, times: int) -> list[bytes]:
        from torch.utils.data import DataLoader

        items: Any = _Digests(self._loader.dataset, times)
        if not self._loader.num_workers:
            return [items[index] for index in range(times)]
        loader: Any = DataLoader(
            items,
            batch_size=None,
            num_workers=1,
            worker_init_fn=self._loader.worker_init_fn,
            multiprocessing_context=self._loader.multiprocessing_context,
            timeout=self._loader.timeout,
        )
        try:
            # The seed of the workers is drawn from torch's generator.
            with seeding.seeded(_SEED):
                return list(loader)
        except RuntimeError:  # A worker has died: training meets the same error, with its cause.
            return [b""] * times


def content_digest(value: Any) -> bytes:
    """Return a digest of the numbers, texts, tensors, arrays and images in a value, or no bytes if it has none.

    An object that cannot be read has none: the comparison of data must not end a training.
    """
    parts: list[bytes] = []
    with contextlib.suppress(Exception):
        parts = list(_leaves(value, _DEPTH))
    return blake2b(b"".join(parts), digest_size=8).digest() if parts else b""


class _Digests:
    """A data set of digests. Each item reads the same samples of another data set again."""

    def __init__(self, dataset: Any, times: int) -> None:
        self._dataset = dataset
        self._times = times

    def __len__(self) -> int:
        return self._times

    def __getitem__(self, _: int) -> bytes:
        # Whatever a data set raises is raised again in training, where it names the index.
        with contextlib.suppress(Exception):
            return self._read()
        return b""

    def _read(self) -> bytes:
        samples = []
        for index in sorted({0, len(self._dataset) - 1}):
            with seeding.seeded(_SEED), HeldGenerators(self._dataset).seeded(_SEED, SeedPlan()):
                samples.append(self._dataset[index])
        return content_digest(samples)


def _leaves(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the bytes of numbers, texts, tensors, arrays and images in a sample, without paths and other objects."""
    if isinstance(value, (bool, int, float, complex, bytes)):
        yield repr(value).encode()[:LONGEST]
    elif isinstance(value, str):
        if os.sep not in value or " " in value:
            yield value.encode(errors="replace")[:LONGEST]
    elif hasattr(value, "detach") and hasattr(value, "reshape"):  # graphs of PyTorch Geometric have detach alone
        yield _of_tensor(value)
    elif callable(getattr(value, "tobytes", None)):
        yield value.tobytes()[:LONGEST]
    elif depth:
        for item in _items(value):
            yield from _leaves(item, depth - 1)


def _items(value: Any) -> Iterable[Any]:
    if callable(getattr(value, "to_dict", None)):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, (list, tuple)) else ()


def _of_tensor(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().reshape(-1)[: LONGEST // 8].cpu().contiguous()
    # Not by numpy, which PyTorch can do without.
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b"empty"
