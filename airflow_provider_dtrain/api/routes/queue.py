"""The queue page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import Name, Offset
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.queue import Queue, QueuePool, QueueRow
from airflow_provider_dtrain.api.rows import ERRORS, Limit, Order, Search
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.follower_text import reason_text
from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.store.queries.tasks import task_ref
from airflow_provider_dtrain.store.records.pages import QueueEntry, QueueOrder, QueueQuery

router = APIRouter(route_class=StoreRoute, tags=["queue"], responses=ERRORS)


@router.get("/queue", response_model=Queue, **guarded(Rule.READ))
def queue(
    call: CallDep,
    pool: Name | None = None,
    state: AllocationState | None = None,
    q: Search = "",
    sort: Annotated[QueueOrder, Query()] = "position",
    order: Order = "asc",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Any:
    """Return the gangs that wait or hold slots."""
    query = QueueQuery(
        pool=pool,
        state=state,
        text=q,
        dags=call.dags,
        sort=sort,
        descending=order == "desc",
        limit=limit,
        offset=offset,
    )
    return call.page(call.store.queue_view.version(), lambda: _queue(call, query, pool))


def _queue(call: Call, query: QueueQuery, pool: str | None) -> Queue:
    entries, total = call.store.queue_view.page(query)
    editable = call.access.may_edit({one.task.key.dag_id for one in entries})
    pools = [
        QueuePool(name=one.name, slots=one.slots, free=one.free, waiting=one.waiting, running=one.running)
        for one in call.store.cluster_page.pools(pool)
    ]
    return Queue(pools=pools, rows=[_row(call, one, editable) for one in entries], total=total)


def _row(call: Call, entry: QueueEntry, editable: frozenset[str]) -> QueueRow:
    task = entry.task
    silence = call.store.queue_view.silence(task)
    waits = task.position is not None
    kind: Literal["trial", "held_gang"] = "held_gang" if entry.is_held_gang else "trial"
    name = None
    if task.trial_id is not None:
        name = call.names.of_trial(
            call.store,
            entry.config_id,
            task.trial_number or 0,
            entry.hparams,
            entry.trial_task,
            is_drawn=entry.is_drawn,
        )
    return QueueRow(
        allocation_id=task.allocation_id,
        kind=kind,
        trial_id=task.trial_id,
        trial_name=name,
        attempt=task.attempt_number,
        experiment_id=task.experiment_id,
        experiment=task.experiment,
        task=task_ref(task.key),
        pool=task.pool,
        queue_class=entry.queue_class,
        position=None if silence.is_loss else task.position,
        priority=task.priority,
        slots=task.slots,
        placement={host: list(indices) for host, indices in task.placement.items()},
        state=task.state,
        reason=reason_text(task.reason, silence, waits=waits, paused=task.paused, trial_id=task.trial_id),
        since=task.since,
        expected=None if silence.is_loss else task.expected or None,
        expected_at=None if silence.is_loss else entry.expected_at,
        paused=task.paused,
        silent_since=silence.lost_since,
        may_edit=task.key.dag_id in editable,
    )
