"""Answers about the rungs of a search."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_dtrain.api.models.charts import Bracket, Rung, RungEntry, Rungs
from airflow_provider_dtrain.api.rows import number
from airflow_provider_dtrain.store.records.pages import RungStanding, RungState


def rungs_of(
    found: Sequence[RungState], *, metric: str | None, smaller_is_better: bool, divisor: int, units: str
) -> Rungs:
    """Return the rungs of a search by bracket."""
    brackets = [
        Bracket(bracket=bracket, rungs=[_rung(one) for one in found if one.bracket == bracket])
        for bracket in sorted({one.bracket for one in found})
    ]
    return Rungs(metric=metric, smaller_is_better=smaller_is_better, divisor=divisor, units=units, brackets=brackets)


def _rung(state: RungState) -> Rung:
    return Rung(
        rung=state.rung,
        units=state.units,
        reported=state.reported,
        continued=state.continued,
        stopped=state.stopped,
        cut_off=number(state.cut_off),
        entries=[_entry(one) for one in state.entries],
    )


def _entry(one: RungStanding) -> RungEntry:
    return RungEntry(
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
