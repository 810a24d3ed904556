"""Lengths of training, and the number of batches to a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

UNITS = ("batches", "records", "epochs")
#: Fields that give the length of training, where 0 would train nothing. Elsewhere, 0 disables a period.
_GOALS = ("max_length", "searcher.max_length")


@dataclass
class Position:
    """Position of training, part of a trial class's checkpoints."""

    #: Batches trained, each of all ranks together.
    batches: int = 0
    records: int = 0
    #: Number of complete epochs, and so the index of the current one.
    epoch: int = 0
    #: Batches trained in the current epoch.
    epoch_batches: int = 0
    #: Position of the next batch in the data of this epoch, in units of the data loader.
    offset: int = 0


@dataclass(frozen=True)
class Geometry:
    """Numbers that convert records and epochs to batches."""

    #: Records per batch, all ranks together; None when the trial has no ``global_batch_size``.
    global_batch: int | None
    #: Batches per epoch; None for a stream without a length that has not ended yet.
    epoch_batches: int | None
    #: ``records_per_epoch`` of the configuration: the size of an epoch in lengths and periods.
    records_per_epoch: int | None = None

    def batch_records(self, what: str) -> int:
        """Return the number of records in one batch.

        :param what: the field that needs it, for the error message
        :raises SetupError: the trial has no ``global_batch_size``
        """
        if self.global_batch is None:
            raise SetupError(
                f"{what} is given in records, but there is no hyperparameter global_batch_size. Add it, or give "
                f"{what} in batches."
            )
        return self.global_batch


@dataclass(frozen=True)
class Length:
    """A distance in training, as ``searcher.max_length`` or a period gives it."""

    unit: str
    count: int
    #: The field that it comes from, for error messages.
    name: str = "max_length"

    @classmethod
    def parse(cls, value: Any, name: str = "max_length") -> Length | None:
        """Return the length that a value gives, or None for None and for a period of 0.

        :param value: ``{"epochs": 3}``, ``"epochs=3"``, a number of batches, a Length, or None
        :param name: field that it comes from
        :raises SetupError: the value is of another form, or is a length of training of 0
        """
        if value is None or isinstance(value, Length):
            return value
        typed = value
        if isinstance(value, str):
            unit, _, number = value.partition("=")
            value = {unit.strip(): int(number)} if number.strip().isdecimal() else {}
        if type(value) is int:
            value = {"batches": value}
        given = {unit: n for unit, n in value.items() if n is not None} if isinstance(value, Mapping) else {}
        if len(given) != 1 or not set(given) <= set(UNITS) or not _counts(*given.values()):
            raise SetupError(
                f"{name} must be one of batches, records and epochs with a whole number, e.g. "
                "{'batches': 100} or batches=100, "
                f"got {typed!r}."
            )
        ((unit, count),) = given.items()
        if count == 0 and name in _GOALS:
            raise SetupError(f"{name} must be 1 or more, e.g. {unit}=10, got {typed!r}, which trains nothing.")
        return cls(unit, count, name) if count else None

    def distance(self, position: Position, geometry: Geometry) -> int:
        """Return the number of batches from a position until this length is reached, 0 or less when it is.

        :raises SetupError: the length is in epochs, and the number of batches per epoch is unknown
        """
        if self.unit == "batches":
            return self.count - position.batches
        if self.unit == "records":
            return _ceil(self.count - position.records, geometry.batch_records(self.name))
        if geometry.records_per_epoch is not None:
            goal = self.count * geometry.records_per_epoch
            return _ceil(goal - position.records, geometry.batch_records(self.name))
        ahead = self.count - position.epoch
        distance = ahead * self._epoch(geometry) - position.epoch_batches
        # A resumed position may be past the end of its epoch. The epoch still has to be ended.
        return max(1, distance) if ahead > 0 else distance

    def next(self, position: Position, geometry: Geometry) -> int:
        """Return the number of batches from a position to the next multiple of this length, at least 1."""
        if self.unit == "batches":
            return self.count - position.batches % self.count
        if self.unit == "records" or geometry.records_per_epoch is not None:
            period = self.count * (1 if self.unit == "records" else geometry.records_per_epoch or 1)
            return _ceil(period - position.records % period, geometry.batch_records(self.name))
        ahead = self.count - position.epoch % self.count
        return max(1, ahead * self._epoch(geometry) - position.epoch_batches)

    def at_end_of(self, epoch: int, geometry: Geometry) -> bool:
        """Return whether a multiple of this length is reached when the epoch of this index ends."""
        return self.unit == "epochs" and geometry.records_per_epoch is None and (epoch + 1) % self.count == 0

    def _epoch(self, geometry: Geometry) -> int:
        if geometry.epoch_batches is None:
            raise SetupError(
                f"{self.name} is given in epochs, but the training data has no length. Set records_per_epoch, or give "
                f"{self.name} in batches or records."
            )
        return geometry.epoch_batches


def _counts(*numbers: Any) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
