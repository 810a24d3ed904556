"""Trials: lists, and one with its attempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.gaps import Gap, gap_of, limits_hit
from airflow_provider_dtrain.core.lifecycle.follower_text import Silence, reason_text, state_text
from airflow_provider_dtrain.core.lifecycle.inference_progress import InferenceProgress
from airflow_provider_dtrain.core.lifecycle.trial_text import end_text, rung_text
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.core.search.names import trial_name
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.trials import Attempt, TrialDetail, TrialPage, TrialSummary
from airflow_provider_dtrain.store.queries.checkpoints import best_of
from airflow_provider_dtrain.store.queries.config_facts import config_facts
from airflow_provider_dtrain.store.queries.jobs import job_of, use_of
from airflow_provider_dtrain.store.queries.metric_names import left_out_text, shown_names
from airflow_provider_dtrain.store.queries.rights import ID_MOST, readable_plan
from airflow_provider_dtrain.store.queries.shards import inference_progress_of
from airflow_provider_dtrain.store.queries.tasks import place_of, task_ref

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.config_facts import ConfigFacts
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.pages import TrialEntry, TrialHead, TrialQuery
    from airflow_provider_dtrain.store.records.trials import AttemptView, TaskView, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Most attempts of one trial in an answer, the latest ones.
ATTEMPTS_MOST: Final = 500


def trial_page(store: Store, rights: Rights, query: TrialQuery) -> TrialPage:
    """Return one page of the trials of an experiment, or of all trials that the user may read.

    :raises NotFoundError: there is no such experiment that the user may read
    """
    if query.experiment_id is None:
        query = replace(query, dags=rights.readable(store))
    else:
        readable_plan(store, rights, query.experiment_id)
    entries, total = store.trial_table.page(query)
    return TrialPage(rows=_summaries(store, entries), total=total)


def trials_by_id(store: Store, rights: Rights, trial_ids: Sequence[int]) -> list[TrialSummary]:
    """Return trials in the order of their ids here.

    :raises NotFoundError: there is none with one of the ids, or the user may not read its DAG
    """
    return _summaries(store, _entries(store, rights, trial_ids))


def readable_trials(store: Store, rights: Rights, trial_ids: Sequence[int]) -> list[TrialHead]:
    """Return states and names of trials in the order of their ids here.

    :raises NotFoundError: there is none with one of the ids, or the user may not read its DAG
    """
    heads = store.trial_table.heads([one for one in trial_ids if 0 < one <= ID_MOST])
    dags = {dag_id for dag_id in {one.dag_id for one in heads} if rights.may_read(dag_id)}
    _require_all(trial_ids, {one.trial_id for one in heads if one.dag_id in dags})
    return heads


def _entries(store: Store, rights: Rights, trial_ids: Sequence[int]) -> list[TrialEntry]:
    known = [one for one in trial_ids if 0 < one <= ID_MOST]
    found = {entry.view.trial_id: entry for entry in store.trial_table.some(known)}
    dags = {dag_id for dag_id in {one.view.key.dag_id for one in found.values()} if rights.may_read(dag_id)}
    _require_all(trial_ids, {key for key, one in found.items() if one.view.key.dag_id in dags})
    return [found[trial_id] for trial_id in trial_ids]


def _require_all(trial_ids: Sequence[int], readable: Collection[int]) -> None:
    """Check that all trials exist for the user.

    :param readable: those that exist and that the user may read
    :raises NotFoundError: one does not
    """
    for trial_id in trial_ids:
        if trial_id not in readable:
            raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")


def trial_detail(store: Store, rights: Rights, trial_id: int) -> TrialDetail:
    """Return a trial with its attempts.

    :raises NotFoundError: there is no trial with this id that the user may read
    """
    (entry,) = _entries(store, rights, [trial_id])
    view = entry.view
    attempts = store.attempts.of_trial(trial_id)[-ATTEMPTS_MOST:]
    latest = attempts[-1]
    facts = config_facts(store, [view.config_id])[view.config_id]
    # A trial that waits for its turn on a held gang has no gang of its own.
    gang = entry.task or (latest if view.ended_at is None else None)
    shards = inference_progress_of(store, [view] if facts.is_inference else []).get(trial_id)
    summary = _summary(store, entry, gang, facts, shards, store.db.now())
    names = store.curves.names([trial_id])
    gaps = gaps_of(store, latest.attempt_id)
    is_live = latest.allocation_state != "released"
    is_in_queue = is_live and not latest.is_external
    may_read_logs = bool(rights.may_read_logs(view.key.dag_id))
    jobs = store.external_jobs.of_trial(trial_id) if latest.is_external else []
    return TrialDetail(
        **vars(summary),
        seed=view.seed,
        max_restarts=view.max_restarts,
        search_id=view.search_id,
        run=latest.run,
        watcher=latest.watcher,
        pool=latest.pool,
        slots=latest.slots,
        priority=latest.priority,
        queue_class=store.queue_view.facts(latest.allocation_id).queue_class if is_in_queue else None,
        placement=_placement(latest) if is_live else {},
        expected_at=latest.expected_at if summary.expected is not None else None,
        is_paused=latest.paused or view.state == "paused",
        preempted_for=latest.preempted_for,
        failure=_failure(view.failure, may_read_logs=may_read_logs),
        result=_plain(view.result),
        gaps=gaps,
        stragglers=store.stragglers.of_trial(trial_id),
        limits=[*limits_hit(gaps), *left_out_text(names)],
        attempts_list=[_attempt(one, may_read_logs=may_read_logs) for one in attempts],
        jobs=[job_of(one, latest.backend) for one in jobs[-ATTEMPTS_MOST:]],
        job_use=use_of(jobs, store.db.now()),
        metrics=shown_names(names),
        has_epochs=store.curves.have_epochs([trial_id]),
        best_checkpoint=best_of(store, trial_id, facts.metric, smaller_is_better=facts.smaller_is_better),
        is_best=store.experiment_table.best_trial(view.experiment_id) == trial_id,
        is_inference=facts.is_inference,
        may_edit=bool(rights.may_edit({view.key.dag_id})),
    )


def gaps_of(store: Store, attempt_id: int) -> list[Gap]:
    """Return every gap in the events of an attempt's current run, oldest first."""
    found = store.events.of_attempt(attempt_id, kinds=("gap",))
    return [gap_of(event.host, event.stream, event.body, event.at) for event in found]


def _attempt(view: AttemptView, *, may_read_logs: bool) -> Attempt:
    return Attempt(
        attempt_id=view.attempt_id,
        number=view.number,
        state=view.state,
        reason=view.reason,
        created_at=view.created_at,
        granted_at=view.granted_at,
        started_at=view.started_at,
        ended_at=view.ended_at,
        placement=_placement(view),
        slots=view.slots,
        failure=_failure(view.failure, may_read_logs=may_read_logs),
    )


def _failure(values: Mapping[str, Any] | None, *, may_read_logs: bool) -> dict[str, Any] | None:
    """Return a failure. Its message has a traceback, or the end of a log, from its second line on."""
    found = _plain(values)
    if found is None or may_read_logs:
        return found
    return {**found, "message": str(found.get("message") or "").partition("\n")[0]}


def _placement(view: AttemptView) -> dict[str, list[int]]:
    return {host: list(indices) for host, indices in view.placement.items()}


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return plain_data(values) if values else None


def _summaries(store: Store, entries: Sequence[TrialEntry]) -> list[TrialSummary]:
    facts = config_facts(store, {one.view.config_id for one in entries})
    inferences = [one.view for one in entries if facts[one.view.config_id].is_inference]
    shards = inference_progress_of(store, inferences)
    now = store.db.now()
    return [
        _summary(store, one, one.task, facts[one.view.config_id], shards.get(one.view.trial_id), now) for one in entries
    ]


def _summary(
    store: Store,
    entry: TrialEntry,
    gang: TaskView | AttemptView | None,
    facts: ConfigFacts,
    shards: InferenceProgress | None,
    now: datetime,
) -> TrialSummary:
    view = entry.view
    gang = gang if view.ended_at is None else None
    silence = Silence() if gang is None else store.queue_view.silence(gang)
    position = None if gang is None else place_of(gang, silence)
    waits = gang is not None and gang.state == "waiting"
    # A trial that waits for its turn on a held gang has requested no slots.
    never_fits = gang is not None and gang is entry.task and gang.never_fits
    result = view.result or {}
    hparams = view.hparams if view.is_drawn else None
    return TrialSummary(
        trial_id=view.trial_id,
        experiment_id=view.experiment_id,
        experiment=view.experiment,
        config_id=view.config_id,
        number=view.number,
        name=trial_name(view.number, hparams, facts.space, task=(view.key.task_id, view.key.map_index)),
        display_name=entry.labels.display_name,
        description=entry.labels.description,
        tags=list(entry.labels.tags),
        owner=view.owner,
        project=view.project,
        archived=view.archived,
        task=task_ref(view.key),
        state=view.state,
        never_fits=never_fits,
        state_text=state_text(
            view.state,
            position,
            paused=gang is not None and gang.paused,
            never_fits=never_fits,
            silence=silence,
        ),
        reason=_reason(entry, gang, silence, facts.units, waits=waits),
        position=position,
        expected=(gang.expected or None) if gang is not None and waits and not silence.is_loss else None,
        unfollowed_since=silence.lost_since,
        is_current=not (view.is_cleared or view.is_of_older_plan),
        hparams=plain_data(hparams or {}),
        best_metric=plain_data(_metric(result) if view.best_metric is None else view.best_metric),
        best_step=view.best_step,
        steps=result.get("steps"),
        units=entry.units,
        epochs=entry.epochs,
        progress=entry.progress,
        shards=shards,
        bracket=view.bracket,
        rung=view.rung,
        attempts=view.attempts,
        restarts=view.restarts,
        created_at=view.created_at,
        ended_at=view.ended_at,
        duration_s=_duration_s(entry, now),
    )


def _reason(
    entry: TrialEntry, gang: TaskView | AttemptView | None, silence: Silence, units: str, *, waits: bool
) -> str | None:
    """Return why a trial waits, why it has ended early, or why it no longer counts."""
    view = entry.view
    reason = None
    if gang is not None:
        reason = reason_text(gang.reason, silence, waits=waits, paused=gang.paused, trial_id=view.trial_id)
    at_rung = rung_text(view.rung, entry.lengths, units)
    return reason or _replaced(view) or end_text(view.state, view.stop_requested_by, view.failure, at_rung)


def _replaced(view: TrialView) -> str | None:
    if view.is_of_older_plan:
        return "its experiment was planned anew"
    return "its task was cleared" if view.is_cleared else None


def _metric(result: Mapping[str, Any]) -> float | None:
    value = result.get("metric")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _duration_s(entry: TrialEntry, now: datetime) -> float | None:
    if entry.started_at is None:
        return None
    # The clock of the store may have been set back.
    return max(0.0, ((entry.view.ended_at or now) - entry.started_at).total_seconds())
