"""Trials as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.checkpoint_location import shown_path
from airflow_provider_dtrain.core.gaps import Gap, gap_of, limits_hit
from airflow_provider_dtrain.core.lifecycle.follower_text import Silence, reason_text, state_text
from airflow_provider_dtrain.core.lifecycle.inference_progress import (
    InferenceProgress,
    inference_progress,
    inference_text,
)
from airflow_provider_dtrain.core.lifecycle.trial_text import end_text, progress_text, rung_text, units_of
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.core.search.names import trial_name
from airflow_provider_dtrain.resources.checkpoints import CheckpointLine, RefusedCheckpoint
from airflow_provider_dtrain.resources.ranks import RankLine
from airflow_provider_dtrain.resources.trials import TrialDescription, TrialLine
from airflow_provider_dtrain.terminal.output import placement_text, task_name

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import CheckpointView, RankView, TaskView, TrialView
    from airflow_provider_dtrain.store.store import Store


def progress_of(store: Store, trials: Sequence[TrialView]) -> dict[int, InferenceProgress]:
    """Return the progress of each trial that is a batch inference and has counted its shards."""
    counts = store.shards.counts([trial.trial_id for trial in trials])
    now_s = store.db.now().timestamp()
    return {
        trial.trial_id: inference_progress(found, now_s=now_s, is_live=trial.state == "running")
        for trial in trials
        if (found := counts.get(trial.trial_id)) is not None
    }


def trial_lines(store: Store, trials: Sequence[TrialView]) -> list[TrialLine]:
    """Return trials with the places of their gangs in the queue, in their order."""
    gangs = {task.trial_id: task for task in store.queue_view.tasks() if task.trial_id is not None}
    progress = progress_of(store, trials)
    spaces: dict[int, Mapping[str, Any] | None] = {}
    for trial in trials:
        if trial.config_id not in spaces:
            spaces[trial.config_id] = store.configs.get(trial.config_id).document.get("hyperparameters")
    return [
        _line(store, one, gangs.get(one.trial_id), progress.get(one.trial_id), spaces[one.config_id]) for one in trials
    ]


def _line(
    store: Store,
    trial: TrialView,
    task: TaskView | None,
    progress: InferenceProgress | None,
    space: Mapping[str, Any] | None,
) -> TrialLine:
    silence = Silence() if task is None else store.queue_view.silence(task)
    waits = task is not None and task.position is not None
    paused = task is not None and task.paused
    position = task.position if task is not None and not silence.is_loss else None
    reason = None
    if task is not None:
        reason = reason_text(task.reason, silence, waits=waits, paused=paused, trial_id=trial.trial_id)
    summary = reason or replaced(trial) or _end_words(store, trial)
    result = trial.result or {}
    return TrialLine(
        **_facts(trial),
        position=position,
        expected=(task.expected or None) if task is not None and waits and not silence.is_loss else None,
        unfollowed_since=silence.lost_since,
        reason=reason,
        shards=progress,
        state_words=state_text(trial.state, position, paused=paused, silence=silence),
        summary=inference_text(progress) if progress is not None and not summary else summary,
        name=trial_name(None, trial.hparams, space),
        best_metric=plain_data(trial.best_metric),
        steps=plain_data(result.get("steps")),
    )


def _facts(trial: TrialView) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "experiment_id": trial.experiment_id,
        "experiment": trial.experiment,
        "number": trial.number,
        "task": task_name(trial.key),
        "dag_run": trial.key.run_id,
        "hyperparameters": plain_data(trial.hparams),
        "state": trial.state,
        "replaced": replaced(trial),
        "metric": plain_data((trial.result or {}).get("metric")),
        "rung": trial.rung,
        "attempts": trial.attempts,
        "created": trial.created_at,
        "ended": trial.ended_at,
    }


def replaced(trial: TrialView) -> str | None:
    """Return why a trial of a search no longer counts."""
    if trial.is_of_older_plan:
        return "its experiment was planned anew"
    return "its task was cleared" if trial.is_cleared else None


def _end_words(store: Store, trial: TrialView) -> str | None:
    at_rung = ""
    if trial.state == "stopped" and trial.search_id is not None and trial.rung is not None:
        lengths = store.searches.get(trial.search_id).rungs.get(trial.bracket, ())
        searcher = store.configs.get(trial.config_id).document.get("searcher")
        at_rung = rung_text(trial.rung, lengths, units_of(searcher))
    return end_text(trial.state, trial.stop_requested_by, trial.failure, at_rung)


def trial_description(store: Store, trial: TrialView, *, with_errors: bool) -> TrialDescription:
    """Return a trial with its latest attempt, ranks and checkpoints.

    :param with_errors: with the errors of ranks, which come from their logs
    """
    view = store.attempts.get(trial.attempt_id)
    silence = store.queue_view.silence(view)
    gaps = gaps_of(store, trial.attempt_id)
    labels = store.labels.get("trial", trial.trial_id)
    entry = next(iter(store.trial_table.some([trial.trial_id])), None)
    progress = None if entry is None else entry.progress
    shards = progress_of(store, [trial]).get(trial.trial_id)
    words = None if progress is None else progress_text(progress)
    return TrialDescription(
        **_facts(trial),
        progress=words if shards is None else inference_text(shards),
        expected_end=None if progress is None else progress.expected_end,
        seed=trial.seed,
        config=trial.config_id,
        run=view.run,
        pool=view.pool,
        slots=view.slots,
        priority=view.priority,
        hosts=placement_text(view.placement) or None,
        position=None if silence.is_loss else view.position,
        expected=None if silence.is_loss else view.expected or None,
        paused=view.paused or trial.state == "paused",
        preempted_for=view.preempted_for,
        reason=reason_text(
            view.reason, silence, waits=view.state == "waiting", paused=view.paused, trial_id=trial.trial_id
        ),
        restarts=f"{trial.restarts} of {trial.max_restarts}",
        watcher=view.watcher,
        unfollowed_since=silence.lost_since,
        limits=limits_hit(gaps) or None,
        result=plain_data(trial.result) if trial.result else None,
        failure=plain_data(trial.failure) if trial.failure else None,
        display_name=labels.display_name,
        description=labels.description or None,
        tags=list(labels.tags),
        shards=shards,
        ranks=[_rank(one, with_error=with_errors) for one in store.events.ranks(trial.attempt_id)],
        checkpoints=[checkpoint_line(one) for one in store.checkpoints.of_trial(trial.trial_id)],
        refused_checkpoints=[_refused(one) for one in store.checkpoints.refused(trial.trial_id)],
        gaps=gaps,
    )


def gaps_of(store: Store, attempt_id: int) -> list[Gap]:
    """Return every gap in the events of an attempt's current run, oldest first."""
    found = store.events.of_attempt(attempt_id, kinds=("gap",))
    return [gap_of(event.host, event.stream, event.body, event.at) for event in found]


def _rank(rank: RankView, *, with_error: bool) -> RankLine:
    error = (rank.error or {}).get("message") if with_error else None
    return RankLine(
        rank=rank.rank,
        host=rank.host,
        slot=rank.slot if rank.slot >= 0 else None,
        pid=rank.pid,
        exit_code=rank.exit_code,
        exited=rank.exited_at,
        error=str(error).splitlines()[0][:200] if error else None,
    )


def checkpoint_line(checkpoint: CheckpointView) -> CheckpointLine:
    """Return a checkpoint as a line of a list."""
    return CheckpointLine(
        checkpoint=checkpoint.checkpoint_id,
        step=checkpoint.step,
        host=checkpoint.host,
        path=checkpoint.path,
        size=byte_size(checkpoint.size_bytes),
        metrics=plain_data(checkpoint.metrics),
        copy=checkpoint.copy_url,
        removed=checkpoint.removed_at,
    )


def _refused(checkpoint: CheckpointView) -> RefusedCheckpoint:
    return RefusedCheckpoint(
        step=checkpoint.step,
        host=checkpoint.host,
        reported=shown_path(checkpoint.path),
        refused=checkpoint.refused,
    )
