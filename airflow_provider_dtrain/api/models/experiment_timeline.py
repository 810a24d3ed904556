"""Timeline of an experiment."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import TypedDict

from airflow_provider_dtrain.api.models.common import unchecked
from airflow_provider_dtrain.core.lifecycle.states import AttemptState, TrialState
from airflow_provider_dtrain.resources.metrics import Number


@unchecked
class SlotSpan(TypedDict):
    """Time in which an attempt of a trial held slots."""

    trial_id: int
    #: From 0 in its experiment.
    number: int
    state: TrialState
    #: Best metric of the trial.
    metric: Number | None
    attempt: int
    attempt_state: AttemptState
    granted_at: datetime
    #: When its ranks ran; None: they never did.
    started_at: datetime | None
    #: None: it has not ended.
    ended_at: datetime | None
    #: Host -> slots.
    placement: dict[str, list[int]]


@unchecked
class SlotTimeline(TypedDict):
    """Slots that the trials of an experiment held, by attempt."""

    #: Attempts that got slots. Of more than fit, the latest are sent.
    total: int
    spans: list[SlotSpan]
