"""``airflow dtrain explain``: whether and when a request fits, and what it waits for."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.follower_text import reason_text
from airflow_provider_dtrain.engine.submission.fit import ASKED, placed, request_of
from airflow_provider_dtrain.errors import NotFoundError, UsageError
from airflow_provider_dtrain.terminal.arguments import GANG_PREFIX, gang
from airflow_provider_dtrain.terminal.output import FAILURE, NOT_NOW, hint, placement_text, show_one, task_name

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.scheduling.decision import PassDecision
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.queue.explain import QueueFacts
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store


@command
def explain(args: Namespace) -> int:
    """Explain whether a configuration fits now or ever, or why a trial waits.

    The exit code is 0 for now, 3 for later and 1 for never.
    """
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    if args.request.startswith(GANG_PREFIX):
        try:
            row, code = _gang(hook.store, gang(args.request))
        except ArgumentTypeError as error:
            raise UsageError(str(error)) from None
    elif args.request.isascii() and args.request.isdigit():
        row, code = _trial(hook.store, int(args.request))
    else:
        row, code = _config(hook, args.request, args.template)
    show_one(args, row, with_empty=False)
    if code == NOT_NOW:
        hint("airflow dtrain queue list")
    return code


def _config(hook: DtrainHook, path: str, template: str | None) -> tuple[dict[str, Any], int]:
    from airflow_provider_dtrain.cli._inputs import assemble, read
    from airflow_provider_dtrain.core.config import refuse_unsupported

    source = read(path, what="configuration")
    found = assemble(hook, source, template)
    effective, pool = found.effective, found.pool
    refuse_unsupported(effective.config, effective.origins)
    hook.ensure_local()
    request = request_of(effective.config)
    decision = hook.store.queue_view.outlook(pool, request)
    row = {"request": source.name, "pool": pool, "slots": request.slots, **_verdict(decision)}
    if request.request_id in decision.unplaceable:
        return row, FAILURE
    return row, 0 if row["fits_now"] else NOT_NOW


def _verdict(decision: PassDecision) -> dict[str, Any]:
    """Return what a scheduling pass would decide for the configuration, behind all waiting gangs."""
    granted = dict(decision.grants).get(ASKED)
    never = decision.unplaceable.get(ASKED)
    if granted is not None:
        return {
            "fits_now": True,
            "fits_ever": True,
            "hosts": placement_text(granted.slots),
            "waiting_ahead": 0,
            "expected": None,
            "reason": "free slots suffice",
        }
    if never is not None:
        return {
            "fits_now": False,
            "fits_ever": False,
            "hosts": None,
            "waiting_ahead": None,
            "expected": None,
            "reason": never.reason,
        }
    expected = decision.expected.get(ASKED)
    return {
        "fits_now": False,
        "fits_ever": True,
        "hosts": None,
        "waiting_ahead": decision.positions[ASKED] - 1,
        "expected": (expected.text or None) if expected else None,
        "reason": decision.reasons[ASKED],
    }


def _trial(store: Store, trial_id: int) -> tuple[dict[str, Any], int]:
    trial = store.trials.get(trial_id)
    view = store.attempts.get(trial.attempt_id)
    facts = store.queue_view.facts(view.allocation_id)
    silence = store.queue_view.silence(view)
    waits = view.state == "waiting"
    row: dict[str, Any] = {
        "request": f"trial {trial_id}",
        "pool": view.pool,
        "slots": view.slots,
        "priority": view.priority,
        "state": trial.state,
        "gang": view.allocation_state,
        "unfollowed_since": silence.lost_since,
        "position": None if silence.is_loss else view.position,
        "expected": None if silence.is_loss else view.expected or None,
        "expected_at": None if silence.is_loss else view.expected_at,
        **_queue_row(facts, not silence.is_loss),
        "paused": (view.paused or trial.state == "paused") if view.ended_at is None else None,
        "preempted_for": view.preempted_for,
        "hosts": placement_text(view.placement) or None,
        "reason": reason_text(_reason(store, view), silence, waits=waits, paused=view.paused, trial_id=trial_id),
    }
    if view.allocation_state == "released":
        row["class"] = None
    if view.unplaceable:
        return row, FAILURE
    return row, NOT_NOW if view.allocation_state == "waiting" else 0


def _gang(store: Store, allocation_id: int) -> tuple[dict[str, Any], int]:
    """Explain a gang by its own id, because a gang of a sensor has no trial yet."""
    task = next((one for one in store.queue_view.tasks() if one.allocation_id == allocation_id), None)
    if task is None:
        raise NotFoundError(f"No gang {allocation_id} waits or holds slots. See: airflow dtrain queue list")
    facts = store.queue_view.facts(allocation_id)
    silence = store.queue_view.silence(task)
    is_followed = not silence.is_loss
    waits = task.position is not None
    reason = task.reason or (_unpassed(store, task.pool, task.slots, task.priority) if waits else None)
    row = {
        "request": f"{GANG_PREFIX}{allocation_id}",
        "of": task.experiment,
        "task": task_name(task.key),
        "dag_run": task.key.run_id,
        "trial": task.trial_id,
        "pool": task.pool,
        "slots": task.slots,
        "priority": task.priority,
        "gang": task.state,
        "unfollowed_since": silence.lost_since,
        "position": task.position if is_followed else None,
        "expected": (task.expected or None) if is_followed else None,
        **_queue_row(facts, is_followed),
        "hosts": placement_text(task.placement) or None,
        "reason": reason_text(reason, silence, waits=waits, paused=task.paused, trial_id=task.trial_id),
    }
    return row, NOT_NOW if waits else 0


def _queue_row(facts: QueueFacts, is_followed: bool) -> dict[str, Any]:
    return {
        "class": facts.queue_class,
        "waited_s": round(facts.waited_s),
        "held_s": round(facts.held_s),
        "weight": facts.weight,
        "max_slots": facts.max_slots,
        "claimed": (placement_text(facts.claim) or None) if is_followed else None,
        "reserved_hosts": (list(facts.reserved_hosts) or None) if is_followed else None,
    }


def _reason(store: Store, view: AttemptView) -> str | None:
    if view.allocation_state != "waiting" or view.reason:
        return view.reason or (view.failure or {}).get("message")
    return _unpassed(store, view.pool, view.slots, view.priority)


def _unpassed(store: Store, pool: str, slots: int, priority: int) -> str:
    """Return the pending reason of a request that no scheduling pass has seen yet."""
    from airflow_provider_dtrain.core.scheduling.model import GangRequest, Placement

    found = placed(store, pool, GangRequest("request", slots=slots, priority=priority))
    return "free slots suffice; the next scheduling pass decides" if isinstance(found, Placement) else found.reason
