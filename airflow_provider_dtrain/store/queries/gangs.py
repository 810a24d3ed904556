"""Gangs that wait or hold slots."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.follower_text import reason_text, state_text
from airflow_provider_dtrain.resources.gangs import GangPage, GangSummary
from airflow_provider_dtrain.store.queries.config_facts import config_facts
from airflow_provider_dtrain.store.queries.jobs import jobs_of_gangs
from airflow_provider_dtrain.store.queries.names import name_of
from airflow_provider_dtrain.store.queries.tasks import place_of, task_ref

if TYPE_CHECKING:
    from airflow_provider_dtrain.resources.jobs import SchedulerJob
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.pages import QueueEntry, QueueQuery
    from airflow_provider_dtrain.store.store import Store


def gang_page(store: Store, rights: Rights, query: QueueQuery) -> GangPage:
    """Return one page of the gangs that the user may read, and the counts of their pools."""
    entries, total = store.queue_view.page(replace(query, dags=rights.readable(store)))
    editable = rights.may_edit({one.task.key.dag_id for one in entries})
    config_facts(store, {one.config_id for one in entries if one.config_id is not None})
    jobs = jobs_of_gangs(store, {one.task.allocation_id: one.task.backend for one in entries if one.task.is_external})
    rows = [_summary(store, one, editable, jobs.get(one.task.allocation_id)) for one in entries]
    return GangPage(pools=store.cluster_page.pools(query.pool), rows=rows, total=total)


def _summary(store: Store, entry: QueueEntry, editable: Collection[str], job: SchedulerJob | None) -> GangSummary:
    gang = entry.task
    silence = store.queue_view.silence(gang)
    position = place_of(gang, silence)
    name = None
    if gang.trial_id is not None:
        hparams = entry.hparams if entry.is_drawn else None
        name = name_of(store, entry.config_id, gang.trial_number or 0, hparams, entry.trial_task)
    waits = gang.position is not None
    return GangSummary(
        allocation_id=gang.allocation_id,
        kind="held_gang" if entry.is_held_gang else "trial",
        trial_id=gang.trial_id,
        trial_name=name,
        attempt=gang.attempt_number,
        experiment_id=gang.experiment_id,
        experiment=gang.experiment,
        task=task_ref(gang.key),
        pool=gang.pool,
        queue_class=None if gang.is_external else entry.queue_class,
        position=position,
        priority=gang.priority,
        slots=gang.slots,
        placement={host: list(indices) for host, indices in gang.placement.items()},
        state=gang.state,
        state_text=state_text(gang.state, position, paused=gang.paused, never_fits=gang.never_fits, silence=silence),
        reason=reason_text(gang.reason, silence, waits=waits, paused=gang.paused, trial_id=gang.trial_id),
        since=gang.since,
        expected=None if silence.is_loss else gang.expected or None,
        expected_at=None if silence.is_loss else entry.expected_at,
        is_paused=gang.paused,
        never_fits=gang.never_fits,
        unfollowed_since=silence.lost_since,
        job=job,
        may_edit=gang.key.dag_id in editable,
    )
