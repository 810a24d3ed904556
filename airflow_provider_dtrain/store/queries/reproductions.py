"""Reproductions of trials, with the comparison of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.core.lifecycle.weight_comparison import (
    WeightComparison,
    WeightRecord,
    compare,
    comparison_text,
    differing_tensor,
    names_record,
)
from airflow_provider_dtrain.resources.reproductions import Reproduction, TrialReproductions, Verdict
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import TrialView
    from airflow_provider_dtrain.store.store import Store

#: Latest reproductions of a trial that are compared.
_MOST: Final = 5
_NO_DATA: Final = "Data were not compared, because a training has no manifest of its data."


@dataclass(frozen=True, kw_only=True)
class LinkedTrials:
    """A trial, and those that it is compared with, as far as a user may read them."""

    trial: TrialView
    original: TrialView | None
    reproductions: Sequence[TrialView]


def linked_trials(store: Store, rights: Rights, trial_id: int) -> LinkedTrials:
    """Return a trial with those that it is compared with.

    :raises NotFoundError: there is no trial with this id that the user may read
    """
    trial = readable_trial(store, rights, trial_id)
    original_id = store.submissions.reproduced(trial.key)
    original = None if original_id is None else store.trials.get(original_id)
    found = [store.trials.get(one) for one in store.submissions.reproductions(trial_id)[-_MOST:]]
    return LinkedTrials(
        trial=trial,
        original=original if original is not None and rights.may_read(original.key.dag_id) else None,
        reproductions=[one for one in found if rights.may_read(one.key.dag_id)],
    )


def version_of(store: Store, linked: LinkedTrials) -> object:
    """Return a value that changes with the comparisons of a trial."""
    every = [linked.trial, *linked.reproductions, *([linked.original] if linked.original is not None else [])]
    states = [(one.trial_id, one.state) for one in every]
    return linked.original is not None, states, store.weights.latest([one.trial_id for one in every])


def compared(store: Store, linked: LinkedTrials) -> TrialReproductions:
    """Return the comparisons of a trial."""
    return TrialReproductions(
        of=_compared(store, linked.original, linked.trial) if linked.original is not None else None,
        by=[_compared(store, linked.trial, one) for one in linked.reproductions],
    )


def _compared(store: Store, original: TrialView, again: TrialView) -> Reproduction:
    mine, theirs = store.weights.of_trial(original.trial_id), store.weights.of_trial(again.trial_id)
    found = compare(mine, theirs)
    tensor, differing = _tensor(store, found, mine, theirs)
    pool = store.attempts.get(again.attempt_id).pool
    is_gpu = any(one.name == pool and one.slot_type != "cpu" for one in store.pools.list())
    text = comparison_text(found, tensor, differing, original=original.trial_id, again=again.trial_id, is_gpu=is_gpu)
    verdict = _verdict(found, has_ended=again.state in TRIAL_ENDED)
    if verdict is Verdict.PENDING:
        text = f"Trial {again.trial_id} is {again.state}. So far: {text}"
    elif again.state not in ("completed", "stopped"):
        text = f"Trial {again.trial_id} is {again.state}. {text}"
    return Reproduction(
        original_id=original.trial_id,
        trial_id=again.trial_id,
        state=again.state,
        verdict=verdict,
        checkpoints=found.checkpoints,
        steps=found.steps,
        step=found.first.original.step if found.first is not None else None,
        tensor=tensor,
        text=f"{text} {_NO_DATA}",
    )


def _verdict(found: WeightComparison, *, has_ended: bool) -> Verdict:
    if found.first is not None:
        return Verdict.DIFFERS
    if not has_ended:
        return Verdict.PENDING
    return Verdict.NOTHING if found.is_empty else Verdict.EQUAL


def _tensor(
    store: Store, found: WeightComparison, mine: Sequence[WeightRecord], theirs: Sequence[WeightRecord]
) -> tuple[str | None, int]:
    """Return the first tensor that differs, and the number of those that do."""
    if found.first is None:
        return None, 0
    records = (found.first.original, found.first.again)
    named = (names_record(mine, records[0]), names_record(theirs, records[1]))
    bodies = store.weights.bodies([one.event_id for one in (*records, *named)])
    digests = (str(bodies[one.event_id]["tensors"]) for one in records)
    names = (bodies[one.event_id].get("names") or [] for one in named)
    return differing_tensor(*digests, *names)
