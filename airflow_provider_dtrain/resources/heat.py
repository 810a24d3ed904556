"""Heat map of the slots of hosts: one measured value per slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HeatMetric(StrEnum):
    """Value that the colour of a slot shows."""

    LOAD = "load"
    MEMORY = "memory"
    TEMPERATURE = "temperature"
    POWER = "power"


@dataclass(frozen=True, kw_only=True)
class HostHeat:
    """Values of the slots of one host."""

    name: str
    #: By the index of the slot; None: nothing has measured it in the last minutes.
    slots: list[float | None]


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Latest minute of one metric."""

    metric: HeatMetric
    #: ``%``, ``°C`` or ``W``.
    unit: str
    #: Ends of the scale of colours.
    minimum: float
    maximum: float
    #: Of those that were asked for, the ones with a value.
    hosts: list[HostHeat]
