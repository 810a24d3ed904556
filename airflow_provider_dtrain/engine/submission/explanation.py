"""Explanations of requests for slots: of a configuration, a trial, or a gang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.follower_text import reason_text
from airflow_provider_dtrain.engine.submission.fit import ASKED, placed, request_of
from airflow_provider_dtrain.engine.submission.job_outlook import before_submission, of_job, waiting_reason
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.explanations import Explanation
from airflow_provider_dtrain.store.queries.rights import readable_trial
from airflow_provider_dtrain.store.queries.tasks import place_of, task_ref

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import AttemptView, TaskView
    from airflow_provider_dtrain.store.store import Store


def explain_config(store: Store, pool: str, config: ExperimentConfig, source: str) -> Explanation:
    """Explain what a scheduling pass would decide for a configuration, behind all waiting gangs.

    :param source: name of the configuration
    """
    of_pool = store.pools.get(pool)
    if of_pool.is_external:
        wanted = config.resources
        found = before_submission(of_pool, wanted.slots_per_trial, is_single_host=wanted.is_single_host)
        return Explanation(request=source, pool=pool, slots=wanted.slots_per_trial, **found)
    request = request_of(config)
    decision = store.queue_view.outlook(pool, request)
    found = {"request": source, "pool": pool, "slots": request.slots}
    granted = dict(decision.grants).get(ASKED)
    if granted is not None:
        return Explanation(
            **found, outlook="now", hosts=_by_host(granted.slots), waiting_ahead=0, reason="free slots suffice"
        )
    if (never := decision.unplaceable.get(ASKED)) is not None:
        return Explanation(**found, outlook="never", reason=never.reason)
    expected = decision.expected.get(ASKED)
    return Explanation(
        **found,
        outlook="later",
        waiting_ahead=decision.positions[ASKED] - 1,
        expected=(expected.text or None) if expected else None,
        reason=decision.reasons[ASKED],
    )


def explain_trial(store: Store, rights: Rights, trial_id: int) -> Explanation:
    """Explain why a trial waits, or where it runs.

    :raises NotFoundError: there is no such trial, or the user may not read its DAG
    """
    trial = readable_trial(store, rights, trial_id)
    view = store.attempts.get(trial.attempt_id)
    silence = store.queue_view.silence(view)
    is_followed = not silence.is_loss
    facts = _facts(store, view, is_followed)
    if view.allocation_state == "released":
        facts["queue_class"] = None
    return Explanation(
        request=f"trial {trial_id}",
        pool=view.pool,
        slots=view.slots,
        priority=view.priority,
        state=trial.state,
        gang=view.allocation_state,
        outlook="never" if view.unplaceable else "later" if view.allocation_state == "waiting" else "now",
        unfollowed_since=silence.lost_since,
        position=place_of(view, silence),
        expected=(view.expected or None) if is_followed else None,
        expected_at=view.expected_at if is_followed else None,
        **facts,
        paused=(view.paused or trial.state == "paused") if view.ended_at is None else None,
        preempted_for=view.preempted_for,
        hosts=_by_host(view.placement) or None,
        reason=reason_text(
            _reason(store, view), silence, waits=view.state == "waiting", paused=view.paused, trial_id=trial_id
        ),
    )


def explain_gang(store: Store, rights: Rights, allocation_id: int) -> Explanation:
    """Explain a gang by its own id, because a gang of a sensor has no trial yet.

    :raises NotFoundError: no such gang waits or holds slots, or the user may not read its DAG
    """
    task = next((one for one in store.queue_view.tasks() if one.allocation_id == allocation_id), None)
    if task is None or not rights.may_read(task.key.dag_id):
        raise NotFoundError(f"No gang {allocation_id} waits or holds slots. See: airflow dtrain queue list")
    silence = store.queue_view.silence(task)
    is_followed = not silence.is_loss
    waits = task.position is not None
    reason = task.reason or (_unpassed(store, task) if waits else None)
    return Explanation(
        request=f"gang:{allocation_id}",
        of=task.experiment,
        task=task_ref(task.key),
        trial=task.trial_id,
        pool=task.pool,
        slots=task.slots,
        priority=task.priority,
        gang=task.state,
        outlook="later" if waits else "now",
        unfollowed_since=silence.lost_since,
        position=place_of(task, silence),
        expected=(task.expected or None) if is_followed else None,
        **_facts(store, task, is_followed),
        hosts=_by_host(task.placement) or None,
        reason=reason_text(reason, silence, waits=waits, paused=task.paused, trial_id=task.trial_id),
    )


def _facts(store: Store, gang: TaskView | AttemptView, is_followed: bool) -> dict[str, Any]:
    facts = store.queue_view.facts(gang.allocation_id)
    if gang.is_external:
        # The classes and shares of the queue mean nothing there.
        job = store.external_jobs.of_allocation(gang.allocation_id)
        own = {"waited_s": round(facts.waited_s), "held_s": round(facts.held_s), "max_slots": facts.max_slots}
        return {**own, **(of_job(job) if job is not None else {})}
    return {
        "queue_class": facts.queue_class,
        "waited_s": round(facts.waited_s),
        "held_s": round(facts.held_s),
        "weight": facts.weight,
        "max_slots": facts.max_slots,
        "claimed": (_by_host(facts.claim) or None) if is_followed else None,
        "reserved_hosts": (list(facts.reserved_hosts) or None) if is_followed else None,
    }


def _reason(store: Store, view: AttemptView) -> str | None:
    if view.allocation_state != "waiting" or view.reason:
        return view.reason or (view.failure or {}).get("message")
    return _unpassed(store, view)


def _unpassed(store: Store, gang: TaskView | AttemptView) -> str:
    """Return the pending reason of a request that no scheduling pass has seen yet, or that has no job yet."""
    from airflow_provider_dtrain.core.scheduling.model import GangRequest, Placement

    if gang.is_external:
        return waiting_reason(store.external_jobs.of_allocation(gang.allocation_id), gang.pool)
    found = placed(store, gang.pool, GangRequest("request", slots=gang.slots, priority=gang.priority))
    return "free slots suffice; the next scheduling pass decides" if isinstance(found, Placement) else found.reason


def _by_host(slots: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {host: list(indices) for host, indices in slots.items()}
