"""Evacuation of hosts: gangs there save at their next step, give way, and resume on other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.control import Deadline
from airflow_provider_dtrain.core.scheduling.evacuation import Drain, time_text

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_dtrain.store.records.queue import GangOnHost
    from airflow_provider_dtrain.store.store import Store


def evacuate(store: Store, host: str, deadline: Deadline, reason: str, by: str) -> list[str]:
    """Drain a host with a deadline, and return what happens to each gang there, in words.

    The follower of a gang reads the deadline within seconds. A gang without a follower is asked by the next one.

    :param reason: shown to users
    :param by: the user or the check that requests it
    :raises IllegalTransitionError: the state of the host does not allow it
    """
    store.hosts.drain(host, reason, deadline=deadline.by, kills=deadline.kills, by=by)
    return effects(store, host, deadline)


def effects(store: Store, host: str, deadline: Deadline) -> list[str]:
    """Return what an evacuation does with each gang on a host, in words. Nothing is changed."""
    now = store.db.now()
    drain = Drain(host=host, by=deadline.by, kills=deadline.kills)
    return [_effect(gang, drain, now) for gang in store.hosts.gangs_on(host)]


def trials_due(store: Store, host: str, deadline: Deadline) -> list[int]:
    """Return the trials on a host that must give way now."""
    now = store.db.now()
    drain = Drain(host=host, by=deadline.by, kills=deadline.kills)
    return [
        one.trial_id
        for one in store.hosts.gangs_on(host)
        if one.trial_id is not None and not one.is_ending and one.asked_for(drain, now)
    ]


def _effect(gang: GangOnHost, drain: Drain, now: datetime) -> str:
    name = _name(gang)
    if gang.held_for is not None:
        return f"{name} stays until its last task, or its DAG run, has ended."
    if gang.is_ending:
        return f"{name} is ending already."
    if gang.state == "granted" and drain.by <= now:
        return f"{name} returns its grant and waits for another one."
    at = gang.asked_at(drain)
    if at is None:
        kill = "" if drain.kills else ", or with --kill-at-deadline until then"
        return f"{name} cannot resume from a checkpoint: it stays until it ends{kill}."
    verb = "saves at its next step and resumes elsewhere" if gang.gang.can_resume else "is ended and starts again"
    if at <= now:
        return f"{name} {verb}."
    if gang.ends_at is not None and gang.ends_at <= at:
        return f"{name} ends by itself until {time_text(gang.ends_at)} (max_runtime)."
    return f"{name} {verb} if it has not ended by {time_text(at)}."


def _name(gang: GangOnHost) -> str:
    if gang.held_for is not None:
        return f"The {gang.held_for} (allocation {gang.allocation_id})"
    return f"Trial {gang.trial_id} of '{gang.experiment}'"


def lines(head: str, effects: Sequence[str]) -> str:
    """Return an answer with one line per gang."""
    return "\n".join((head, *effects)) if effects else f"{head} No gang holds slots there."
