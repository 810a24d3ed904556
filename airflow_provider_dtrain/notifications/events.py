"""Events about which Airflow's notifiers can be run, and the notifiers of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from airflow.sdk import BaseNotifier

from airflow_provider_dtrain.core.lifecycle.states import Explained


class NotifyEvent(Explained):
    """Event that a notification is about."""

    FINISHED = "finished", "the experiment has a result; also a trial that no search has planned"
    FAILED = "failed", "the experiment has failed for good; also a trial that no search has planned"
    TRIAL_FAILED = "trial_failed", "a trial of a search has failed for good"
    WAITED = "waited", "a trial has waited for slots longer than notify_waiting_after"
    STRAGGLER = "straggler", "a rank of a trial is slower than the other ranks, for a cause that the text names"
    BEST = "best", "a trial is better than every trial of its search that ended before"


#: Notifiers of one event, as a user gives them.
Given = BaseNotifier | Sequence[BaseNotifier]
Notifiers = Mapping[NotifyEvent, Sequence[BaseNotifier]]


def notifiers_of(given: Mapping[str, Given] | None) -> Notifiers:
    """Return the notifiers of each event.

    :param given: event -> a notifier, or several
    :raises ValueError: there is no such event
    :raises TypeError: an object is no notifier
    """
    known = {str(event): event for event in NotifyEvent}
    found: dict[NotifyEvent, Sequence[BaseNotifier]] = {}
    for name, value in (given or {}).items():
        if name not in known:
            raise ValueError(f"notify expects the events {', '.join(known)}, got {name!r}.")
        several = [value] if isinstance(value, BaseNotifier) else list(value)
        for one in several:
            if not isinstance(one, BaseNotifier):
                raise TypeError(
                    f"notify[{name!r}] expects notifiers, such as SmtpNotifier(to='...'), got {type(one).__name__}."
                )
        found[known[name]] = several
    return found


def seconds_of(value: timedelta | float) -> float:
    """Return the time after which a wait is an event, in seconds.

    :raises ValueError: the time is not above 0
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"notify_waiting_after must be a finite time above 0, got {value!r}.")
    return seconds
