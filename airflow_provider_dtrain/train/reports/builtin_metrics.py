"""Built-in metrics: rates of training and norms of gradients, which the library records by itself.

Everything is counted between two synchronizations of the ranks, where a device is read in any case. A step only keeps
a reference to the norm that its clipping has computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from airflow_provider_dtrain.train.reports.device_peaks import peak_flops

#: Training time between two records, seconds: of the first ones, and later.
EARLY_S, LATER_S, EARLY_RECORDS = 2.0, 10.0, 30
#: Shortest training time that has a rate, seconds.
LEAST_S = 1.0
#: Optimizers with a norm of their own.
NORMS_MOST = 8


class Counts(NamedTuple):
    """Samples and tokens that the program has counted, None: it has counted none."""

    samples: int | None = None
    tokens: int | None = None

    def joined(self, other: Counts) -> Counts:
        """Return both together."""
        return Counts(_sum(self.samples, other.samples), _sum(self.tokens, other.tokens))

    def times(self, factor: int) -> Counts:
        """Return the counts of ranks of which each has counted this much."""
        return Counts(*(None if one is None else one * factor for one in self))


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


class OperationCounter(Protocol):
    """Counter of the floating-point operations of one batch."""

    #: Whether each batch calls :meth:`after_batch`.
    pending: bool
    #: Operations of a batch of this rank; None: not counted.
    of_batch: int | None

    def after_batch(self) -> None:
        """Begin or end to count."""

    def kind(self) -> tuple[str, str]:
        """Return the name of the device, and the type of numbers that it multiplies most."""


class BuiltinMetrics:
    """Meter of one rank's training. Rank 0 records.

    Time outside of training does not count: before the end of the first batch, in validations, in checkpoints.

    :param options: section ``profiling`` of the configuration
    :param ranks: their number
    :param records: this rank writes what it measures
    :param norms: optimizer -> norm of its latest gradients, a number or tensor
    :param flops: counter of one batch
    :param has_devices: each rank has a device of its own
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        ranks: int = 1,
        records: bool = False,
        norms: Mapping[int, Any] | None = None,
        flops: OperationCounter,
        has_devices: bool = True,
    ) -> None:
        self._options = options
        self._ranks = ranks
        self.records = records
        self._norms = norms if norms is not None else {}
        self.flops = flops
        self._has_devices = has_devices
        #: Samples of a batch of all ranks; None: unknown.
        self.batch_samples: int | None = None
        self._samples: int | None = None
        self._tokens: int | None = None
        #: Those of all ranks since the latest record.
        self._counted = Counts()
        #: Training time and batches since the latest record.
        self._seconds = 0.0
        self._batches = 0
        #: Time and number of batches up to which both are counted. Time 0: training pauses.
        self._since = 0.0
        self._from = 0
        self._has_begun = False
        self._written = 0
        self._peak: tuple[object, float | None] | None = None

    def count(self, samples: int | None = None, tokens: int | None = None) -> None:
        """Add numbers of this rank's batch."""
        if samples is not None:
            self._samples = samples + (self._samples or 0)
        if tokens is not None:
            self._tokens = tokens + (self._tokens or 0)

    def know_loader(self, loader: Any) -> None:
        """Take the samples of a batch from the first training loader."""
        size = getattr(loader, "batch_size", None)
        if self.batch_samples is None and type(size) is int:
            self.batch_samples = size * self._ranks

    def take_counts(self) -> Counts:
        """Return what this rank has counted since the last call."""
        counts = Counts(self._samples, self._tokens)
        self._samples = self._tokens = None
        return counts

    def add_counts(self, counts: Counts) -> None:
        """Add what all ranks have counted."""
        self._counted = self._counted.joined(counts)

    def begin(self, batches: int) -> None:
        """Begin to measure, at the end of the first batch.

        :param batches: number of batches so far
        """
        self._has_begun = True
        self.take_counts()
        self.resume(batches)

    def resume(self, batches: int) -> None:
        """Measure from now on."""
        if self._has_begun:
            self._since = perf_counter()
            self._from = batches

    def pause(self, batches: int) -> None:
        """Measure up to now."""
        if self._since:
            self._seconds += perf_counter() - self._since
            self._batches += batches - self._from
            self._since = 0.0

    def is_due(self, batches: int, *, is_last: bool = False) -> bool:
        """Return whether there is enough for a record. Called when the ranks synchronize, and training continues.

        :param batches: number of batches so far
        """
        if not (self.records and self._has_begun):
            return False
        self.pause(batches)
        self.resume(batches)
        interval_s = EARLY_S if self._written < EARLY_RECORDS else LATER_S
        return self._seconds >= (LEAST_S if is_last else interval_s)

    def take(self) -> dict[str, float]:
        """Return the metrics since the latest record, empty if the program trains in a loop that counts nothing."""
        seconds, batches, counted = self._seconds, self._batches, self._counted
        self._seconds, self._batches, self._counted = 0.0, 0, Counts()
        self._written += 1
        samples = counted.samples
        if samples is None and batches and self.batch_samples is not None:
            samples = batches * self.batch_samples
        tokens = counted.tokens
        per_sample = self._options.get("tokens_per_sample")
        if tokens is None and per_sample and samples is not None:
            tokens = samples * int(per_sample)
        flops = self._operations(samples, batches)
        found = {
            "samples_per_second": None if samples is None else samples / seconds,
            "tokens_per_second": None if tokens is None else tokens / seconds,
            "flops_per_second": None if flops is None else flops / seconds,
        }
        if flops is not None and (peak := self._peak_of_device()) is not None:
            found["model_flops_utilization"] = flops / seconds / (peak * self._ranks)
        for number, norm in enumerate(list(self._norms.values())[:NORMS_MOST], 1):
            found["gradient_norm" if number == 1 else f"gradient_norm_{number}"] = float(norm)
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}

    def _operations(self, samples: int | None, batches: int) -> float | None:
        per_sample = self._options.get("flops_per_sample")
        if per_sample:
            return None if samples is None else float(per_sample) * samples
        if self.flops.of_batch is None or not batches:
            return None
        return float(self.flops.of_batch) * self._ranks * batches

    def _peak_of_device(self) -> float | None:
        given = self._options.get("device_peak_flops")
        if given:
            return float(given)
        if not self._has_devices:
            return None
        kind = self.flops.kind()
        if self._peak is None or self._peak[0] != kind:
            self._peak = kind, peak_flops(*kind)
        return self._peak[1]
