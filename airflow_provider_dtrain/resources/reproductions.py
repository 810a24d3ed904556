"""Reproductions: trials that run another trial again from its record, and the comparison of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.resources.bounds import Count, Id


class Verdict(StrEnum):
    """Result of a comparison."""

    #: Everything that was compared is equal bit for bit.
    EQUAL = "equal"
    DIFFERS = "differs"
    #: There was nothing to compare.
    NOTHING = "nothing"
    #: The reproduction has not ended, and everything so far is equal.
    PENDING = "pending"


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A trial that runs another one again."""

    original_id: Id
    trial_id: Id
    #: Of the reproduction.
    state: TrialState
    verdict: Verdict
    #: Checkpoints and steps that were compared.
    checkpoints: Count
    steps: Count
    #: First step and tensor that differ; None: none does, or the tensor is not known.
    step: int | None
    tensor: str | None
    #: The result in sentences.
    text: str


@dataclass(frozen=True, kw_only=True)
class TrialReproductions:
    """Reproductions that a trial is part of."""

    #: The trial runs this one again; None: it runs none again.
    of: Reproduction | None
    #: Trials that run this one again, oldest first.
    by: list[Reproduction]
