"""Batch size of an inference: configured, or found by doubling until memory or throughput says stop."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

log = logging.getLogger(__name__)

DEFAULT = 64
#: Largest batch that is tried.
MOST = 16_384
#: A larger batch must raise the rows per second by this factor.
WORTH = 1.05
#: Repetitions of a batch whose time is taken. The fastest counts.
REPEATS = 3


def configured(value: Any) -> int | None:
    """Return the configured batch size, or None for ``auto``.

    :raises SetupError: it is neither
    """
    if value is None:
        return DEFAULT
    if value == "auto":
        return None
    if type(value) is int and value > 0:
        return value
    raise SetupError(f"inference.batch_size must be auto or a number of rows of at least 1, got {value!r}.")


def grown(
    batches: Callable[[int], Iterator[Any]],
    compute: Callable[[Any], Any],
    *,
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return the batch size with the most rows per second, by doubling from 1.

    It stops when memory does not suffice, or when a larger batch is not 5 % faster twice in a row.

    :param batches: batch size -> batches of the input, each with ``rows``
    :param compute: computes one batch, to the end
    :param most: rows of the largest shard, because batches never cross shards
    """
    best = 1
    best_rate = 0.0
    without_gain = 0
    for size in sizes(most):
        batch = next(batches(size), None)
        if batch is None or batch.rows < size:
            break
        try:
            rate = batch.rows / _fastest_s(compute, batch, clock)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.info("Batches of %d rows do not fit into memory", size)
            _free()
            break
        log.info("Batches of %d rows: %.0f rows/s", size, rate)
        if rate > best_rate * WORTH:
            best = size
            best_rate = rate
            without_gain = 0
        elif (without_gain := without_gain + 1) == 2:
            break
    return best


def sizes(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 ... up to the largest batch."""
    return itertools.takewhile(lambda size: size <= min(MOST, most), (1 << power for power in itertools.count()))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory, of the host or of the GPU, does not suffice."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _fastest_s(compute: Callable[[Any], Any], batch: Any, clock: Callable[[], float]) -> float:
    found = []
    for _ in range(REPEATS + 1):
        before = clock()
        compute(batch)
        found.append(clock() - before)
    # The first call builds caches and compiles.
    return max(min(found[1:]), 1e-9)


def _free() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
