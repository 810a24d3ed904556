"""The page of one trial: its attempts, ranks, checkpoints, outputs and timeline."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import AttemptNumber, Number, Offset
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.checkpoint_rows import best_of, checkpoint_rows
from airflow_provider_dtrain.api.configs import shown_config
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.found import trial_entry, units_in
from airflow_provider_dtrain.api.metric_names import left_out_text, shown_names
from airflow_provider_dtrain.api.models.checkpoints import Checkpoint, Checkpoints
from airflow_provider_dtrain.api.models.configs import ShownConfig
from airflow_provider_dtrain.api.models.trials import Attempt, RankRow, Ranks, Trial
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.trial_rows import trial_fields
from airflow_provider_dtrain.core.gaps import gap_of, limits_hit
from airflow_provider_dtrain.core.lifecycle.follower_text import Silence, state_text
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.logs import LogPiece
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricReports
from airflow_provider_dtrain.resources.timeline import TrialTimeline
from airflow_provider_dtrain.store.queries.logs import log_piece
from airflow_provider_dtrain.store.queries.metrics import reports_of
from airflow_provider_dtrain.store.queries.timelines import timeline_of
from airflow_provider_dtrain.store.records.pages import TrialEntry
from airflow_provider_dtrain.store.records.trials import AttemptView, CheckpointView

router = APIRouter(route_class=StoreRoute, tags=["trial"], responses=ERRORS)

#: Most attempts on the page of a trial, the latest ones.
ATTEMPTS_MOST = 500
#: Reports in one answer.
REPORTS_MOST = 5000


@router.get("/trials/{trial_id}", **guarded(Rule.READ))
def trial(call: CallDep, trial_id: int) -> Trial:
    """Return a trial with its attempts."""
    store = call.store
    entry = trial_entry(call, trial_id)
    view = entry.view
    config = store.configs.get(view.config_id)
    attempts = store.attempts.of_trial(trial_id)[-ATTEMPTS_MOST:]
    latest = attempts[-1]
    task = entry.task
    silence = Silence() if task is None else store.queue_view.silence(task)
    has_place = latest.state == "waiting" and not silence.is_loss
    paused = task is not None and task.paused
    position = None if task is None or silence.is_loss else task.position
    found = store.events.of_attempt(latest.attempt_id, kinds=("gap",))
    gaps = [gap_of(one.host, one.stream, one.body, one.at) for one in found]
    is_live = latest.allocation_state != "released"
    names = store.curves.names([trial_id])
    return Trial(
        **trial_fields(call, entry, units_in(config)),
        experiment_id=view.experiment_id,
        experiment=view.experiment,
        config_id=view.config_id,
        seed=view.seed,
        max_restarts=view.max_restarts,
        state_words=state_text(view.state, position, paused=paused, silence=silence),
        expected=(latest.expected or None) if has_place else None,
        expected_at=latest.expected_at if has_place else None,
        queue_class=store.queue_view.facts(latest.allocation_id).queue_class if is_live else None,
        priority=latest.priority,
        slots=latest.slots,
        pool=latest.pool,
        placement=_placement(latest) if is_live else {},
        failure=dict(view.failure) if view.failure else None,
        result=dict(view.result) if view.result else None,
        gaps=gaps,
        limits=[*limits_hit(gaps), *left_out_text(names)],
        attempts_list=[_attempt(one) for one in attempts],
        metrics=shown_names(names),
        has_epochs=store.curves.have_epochs([trial_id]),
        best_checkpoint=_best_checkpoint(call, entry),
        search_id=view.search_id,
        is_best=store.experiment_table.best_trial(view.experiment_id) == trial_id,
        is_inference=bool(config.document.get("inference")),
        may_edit=bool(call.access.may_edit({view.key.dag_id})),
    )


def _placement(view: AttemptView) -> dict[str, list[int]]:
    return {host: list(indices) for host, indices in view.placement.items()}


def _attempt(view: AttemptView) -> Attempt:
    names = ("attempt_id", "number", "state", "reason", "created_at", "granted_at", "started_at", "ended_at", "slots")
    return Attempt(
        **{name: getattr(view, name) for name in names},
        placement=_placement(view),
        failure=dict(view.failure) if view.failure else None,
    )


def _best(call: Call, entry: TrialEntry, views: list[CheckpointView]) -> CheckpointView | None:
    searcher = call.store.configs.get(entry.view.config_id).document.get("searcher") or {}
    smaller = bool(searcher.get("smaller_is_better", True))
    return best_of(views, searcher.get("metric"), smaller_is_better=smaller)


def _best_checkpoint(call: Call, entry: TrialEntry) -> Checkpoint | None:
    views = call.store.checkpoints.of_trial(entry.view.trial_id)
    best = _best(call, entry, views)
    if best is None:
        return None
    return checkpoint_rows(call, [best], entry.view.experiment_id, best)[0]


@router.get("/trials/{trial_id}/checkpoints", **guarded(Rule.READ))
def checkpoints(call: CallDep, trial_id: int) -> Checkpoints:
    """Return all checkpoints of a trial, oldest first, with removed and refused ones."""
    entry = trial_entry(call, trial_id)
    saved = call.store.checkpoints.of_trial(trial_id, removed=True)
    views = sorted([*saved, *call.store.checkpoints.refused(trial_id)], key=lambda one: one.checkpoint_id)
    return Checkpoints(rows=checkpoint_rows(call, views, entry.view.experiment_id, _best(call, entry, views)))


@router.get("/trials/{trial_id}/ranks", **guarded(Rule.READ_LOGS))
def ranks(call: CallDep, trial_id: int, attempt: AttemptNumber = None) -> Ranks:
    """Return the processes of an attempt with their exit codes and the ends of their logs."""
    call.access.require_logs(trial_entry(call, trial_id).view.key.dag_id)
    of = attempt_of(call, trial_id, attempt)
    rows = [
        RankRow(
            rank=one.rank,
            host=one.host,
            local_rank=one.local_rank,
            slot=one.slot if one.slot >= 0 else None,
            pid=one.pid,
            exit_code=one.exit_code,
            exited_at=one.exited_at,
            error=_message(one.error),
            sent_signal=one.sent_signal,
            log_tail=one.log_tail,
        )
        for one in call.store.events.ranks(of.attempt_id)
    ]
    return Ranks(attempt=of.number, rows=rows)


def _message(error: object) -> str | None:
    found = error.get("message") if isinstance(error, dict) else None
    return None if found is None else str(found)[:10_000]


def attempt_of(call: Call, trial_id: int, number: int | None) -> AttemptView:
    """Return an attempt of a trial by its number, None for the latest.

    :raises NotFoundError: there is no such attempt
    """
    views = call.store.attempts.of_trial(trial_id)
    for view in views:
        if number is None or view.number == number:
            return views[-1] if number is None else view
    raise NotFoundError(f"Trial {trial_id} has no attempt {number}; it has {len(views)}.")


@router.get("/trials/{trial_id}/timeline", **guarded(Rule.READ))
def timeline(call: CallDep, trial_id: int) -> TrialTimeline:
    """Return everything that happened to a trial, oldest first."""
    return timeline_of(call.store, call.access, trial_id)


@router.get("/trials/{trial_id}/metrics", **guarded(Rule.READ))
def metrics(
    call: CallDep,
    trial_id: int,
    group: MetricGroup | None = None,
    abandoned: Annotated[bool, Query(description="also steps that a later attempt repeated")] = False,
    offset: Offset = 0,
) -> MetricReports:
    """Return a page of the reports of a trial, by step."""
    return reports_of(
        call.store, call.access, trial_id, group=group, abandoned=abandoned, offset=offset, most=REPORTS_MOST
    )


@router.get("/trials/{trial_id}/log", **guarded(Rule.READ_LOGS))
def log(
    call: CallDep,
    trial_id: int,
    rank: Number = 0,
    attempt: AttemptNumber = None,
    offset: Annotated[Offset, Query(description="first byte that the client does not have")] = 0,
) -> LogPiece:
    """Return the bytes of a rank's log behind an offset. The store has at most the last 64 KiB."""
    return log_piece(call.store, call.access, trial_id, attempt=attempt, rank=rank, offset=offset)


@router.get("/trials/{trial_id}/config", **guarded(Rule.READ))
def config(call: CallDep, trial_id: int) -> ShownConfig:
    """Return the effective configuration of a trial with the origin of each value. Secrets are masked."""
    found = call.store.configs.get(trial_entry(call, trial_id).view.config_id)
    return call.answer(found.digest, make=lambda: shown_config(found))
