"""Shards of a trial that is a batch inference, as a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.shards import Shards, ShardTrouble
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.inference_progress import (
    InferenceProgress,
    ShardCounts,
    ShardState,
    inference_progress,
    inference_text,
    shard_states,
)
from airflow_provider_dtrain.core.lifecycle.shard_blame import FAILED, SKIPPED, shard_failures
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.queries.rights import readable_trial
from airflow_provider_dtrain.store.records.trials import TrialView
from airflow_provider_dtrain.store.store import Store

router = APIRouter(route_class=StoreRoute, tags=["trial"], responses=ERRORS)

#: Shards of an answer with their states. Each poll reads two events per shard: 0.25 s of CPU time for this number.
SHARDS_MOST = 20_000
TROUBLES_MOST = 100
#: Reports that are read for them: a shard fails three times before it is set aside.
TROUBLE_REPORTS_MOST = 4 * TROUBLES_MOST


@router.get("/trials/{trial_id}/shards", **guarded(Rule.READ))
def shards(call: CallDep, trial_id: int) -> Shards:
    """Return the shards of a batch inference with their states, and its progress."""
    store = call.store
    trial = readable_trial(store, call.access, trial_id)
    section = store.configs.get(trial.config_id).document.get("inference")
    if not section:
        raise NotFoundError(f"Trial {trial_id} is no batch inference: its configuration has no section inference.")
    counts = store.shards.counts([trial_id]).get(trial_id, ShardCounts(total=0, missing=0, rows=0, rows_done=0))
    is_live = trial.state not in TRIAL_ENDED
    progress = inference_progress(counts, now_s=store.db.now().timestamp(), is_live=trial.state == "running")
    states = _states(store, trial, counts, is_live=is_live) if counts.total <= SHARDS_MOST else ""
    return Shards(
        total=counts.total,
        states=states,
        **_numbers(states, progress),
        rows=counts.rows,
        rows_done=progress.rows_done,
        rows_bad=progress.rows_bad,
        share=progress.share if counts.total else 0.0,
        rows_per_s=progress.rows_per_s,
        eta_s=progress.eta_s,
        words=inference_text(progress) if counts.total else "",
        location=str(section["outputs"]["path"]),
        on_bad_row=section.get("on_bad_row") or "fail",
        troubles=_troubles(store.shards.troubles(trial_id, most=TROUBLE_REPORTS_MOST)),
    )


def _states(store: Store, trial: TrialView, counts: ShardCounts, *, is_live: bool) -> str:
    trial_id = trial.trial_id
    blamed = shard_failures(one.failure for one in store.attempts.of_trial(trial_id))
    reports = store.shards.reports(trial_id, is_live=is_live)
    return shard_states(
        counts.total,
        counts.missing,
        reports,
        blamed=blamed,
        is_published=counts.is_published,
        finished=counts.finished,
    )


def _numbers(states: str, progress: InferenceProgress) -> dict[str, int]:
    if not states:
        left = max(0, progress.total - progress.done - progress.skipped)
        return {"done": progress.done, "running": 0, "waiting": left, "failed": 0, "skipped": progress.skipped}
    found = Counter(states)
    return {state.name.lower(): found[state.value] for state in ShardState}


def _troubles(reports: Sequence[Mapping[str, Any]]) -> list[ShardTrouble]:
    """Return one record per shard.

    :param reports: latest first
    """
    latest: dict[int, Mapping[str, Any]] = {}
    for body in reports:
        latest.setdefault(body["shard"], body)
    failures = Counter(body["shard"] for body in reports if body["kind"] == FAILED)
    return [_trouble(body, failures[shard]) for shard, body in list(latest.items())[:TROUBLES_MOST]]


def _trouble(body: Mapping[str, Any], failures: int) -> ShardTrouble:
    state: Literal["failed", "skipped"] = "skipped" if body["kind"] == SKIPPED else "failed"
    label, error = str(body["label"]), str(body["error"])
    return ShardTrouble(shard=body["shard"], label=label, state=state, error=error, failures=failures)
