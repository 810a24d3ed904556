"""Comparison of the ranks' data sets, which a script's loaders divide between the ranks by index."""

from __future__ import annotations

from array import array
from collections import Counter
from hashlib import blake2b
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import SetupError

_SAMPLES = ", first and last sample "


class DatasetComparison:
    """Data sets of one rank, compared with those of the rank that came first with its n-th loader.

    No rank waits for another, so a loader that only some ranks create blocks none of them.
    """

    def __init__(self, distributed: Distributed) -> None:
        self._distributed = distributed
        self._calls: Counter[str] = Counter()
        #: The data set that was described last, which a script passes in each epoch, and its digest.
        self._known: tuple[Any, bytes] | None = None

    def refuse_part(self, loader: Any, call: str, what: str) -> None:
        """Raise when the data set differs from that of another rank: a part of it would be divided once more.

        :param loader: a torch DataLoader of a map-style data set with a length
        :param call: name of the method that makes the loader, which counts its calls
        :param what: ``training`` or ``validation``, for the message
        :raises SetupError: names both data sets
        """
        if self._distributed.get_size() == 1:
            return
        self._calls[call] += 1
        facts = mine = description(loader.dataset)
        samples = self._samples(loader)
        if samples:
            mine += f"{_SAMPLES}{samples.hex()[:8]}"
        rank = self._distributed.get_rank()
        key = f"{call}/{self._calls[call]}"
        first, _, other = self._distributed.first_value(key, f"{rank} {mine}").partition(" ")
        if other != mine and not _only_random(loader, mine, other):
            their_facts = other.partition(_SAMPLES)[0]
            if facts != their_facts:
                mine, other = facts, their_facts
            raise SetupError(
                f"The {what} data set must be the same on all ranks, got {other} on rank {first} and {mine} on rank "
                f"{rank} (call {self._calls[call]} of {call}). Build the whole data set on each rank: {call} gives "
                f"each rank its part. If each rank's data set is its own part already, iterate a torch DataLoader "
                f"instead of {call}."
            )

    def _samples(self, loader: Any) -> bytes:
        from airflow_provider_dtrain.train.data.sample_digest import SampleProbe

        if self._known is None or self._known[0] is not loader.dataset:
            self._known = loader.dataset, SampleProbe(loader).digest()
        return self._known[1]


def _only_random(loader: Any, mine: str, other: str) -> bool:
    """Return whether two descriptions differ in samples that are not the same at each fetch, or cannot be compared."""
    from airflow_provider_dtrain.train.data.sample_digest import SampleProbe

    facts, _, samples = mine.partition(_SAMPLES)
    their_facts, _, their_samples = other.partition(_SAMPLES)
    if facts != their_facts:
        return False
    return not samples or not their_samples or not SampleProbe(loader).is_steady()


def description(dataset: Any) -> str:
    """Return the length of a data set, and digests of the indices of a subset and of samples held in tensors."""
    from torch.utils.data import DataLoader, Subset

    # Imported here, because the library must be importable without torch.
    from airflow_provider_dtrain.train.data.held_generators import SeedPlan
    from airflow_provider_dtrain.train.data.index_source import IndexSource

    text = f"{len(dataset)} samples"
    digest = blake2b(digest_size=4)
    base = dataset
    while isinstance(base, Subset):
        digest.update(b"%d " % len(base.indices))
        digest.update(_content(base.indices))
        base = base.dataset
    if base is not dataset:
        length = len(base) if hasattr(base, "__len__") else "unknown length"
        text += f" with indices {digest.hexdigest()} of {length}"
    contents = IndexSource(DataLoader(dataset), 0, SeedPlan()).contents()
    return f"{text}, tensors {contents.hex()[:8]}" if contents else text


def _content(indices: Any) -> Any:
    """Return bytes that are equal for equal indices, and none for indices that cannot be compared."""
    if isinstance(indices, range):
        return repr(indices).encode()
    values = indices.tolist() if hasattr(indices, "tolist") else list(indices)
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return repr(values).encode() if all(type(value) is str for value in values) else b""
