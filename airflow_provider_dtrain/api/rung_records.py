"""Records of the rungs of a search, with the fields of the models in ``models/charts.py``.

A search has thousands of reports, which models would check one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from airflow_provider_dtrain.api.models.common import Number
from airflow_provider_dtrain.api.rows import number
from airflow_provider_dtrain.core.search.asha import Decision
from airflow_provider_dtrain.store.records.pages import RungStanding, RungState


class RungEntryRecord(TypedDict):
    """A ``RungEntry``."""

    trial_id: int
    number: int
    metric: Number | None
    decision: Decision | None
    rank: int
    of: int
    cut_off: Number | None
    distance: Number | None
    is_error: bool
    has_left: bool
    at: datetime


class RungRecord(TypedDict):
    """A ``Rung``."""

    rung: int
    units: int
    reported: int
    continued: int
    stopped: int
    cut_off: Number | None
    entries: list[RungEntryRecord]


class BracketRecord(TypedDict):
    """A ``Bracket``."""

    bracket: int
    rungs: list[RungRecord]


class RungsRecord(TypedDict):
    """``Rungs``."""

    metric: str | None
    smaller_is_better: bool
    divisor: int
    units: str
    brackets: list[BracketRecord]


def rungs_record(
    found: Sequence[RungState], *, metric: str | None, smaller_is_better: bool, divisor: int, units: str
) -> RungsRecord:
    """Return the rungs of a search by bracket."""
    brackets = [
        BracketRecord(bracket=bracket, rungs=[_rung(one) for one in found if one.bracket == bracket])
        for bracket in sorted({one.bracket for one in found})
    ]
    return RungsRecord(
        metric=metric, smaller_is_better=smaller_is_better, divisor=divisor, units=units, brackets=brackets
    )


def _rung(state: RungState) -> RungRecord:
    return RungRecord(
        rung=state.rung,
        units=state.units,
        reported=state.reported,
        continued=state.continued,
        stopped=state.stopped,
        cut_off=number(state.cut_off),
        entries=[_entry(one) for one in state.entries],
    )


def _entry(one: RungStanding) -> RungEntryRecord:
    return RungEntryRecord(
        trial_id=one.trial_id,
        number=one.trial_number,
        metric=number(one.metric),
        decision=one.decision,
        rank=one.place,
        of=one.of,
        cut_off=number(one.cut_off),
        distance=number(one.distance),
        is_error=one.is_error,
        has_left=one.has_left,
        at=one.at,
    )
