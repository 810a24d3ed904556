"""Texts for a gang whose follower, a process of the triggerer or a worker, is gone."""

from __future__ import annotations

from datetime import UTC, datetime


def state_words(state: str, position: int | None, *, paused: bool, silent_since: datetime | None) -> str:
    """Return a state for a table, with the place in the queue, or with the fact that the follower is gone.

    :param position: place among the waiting gangs; None: it does not wait
    :param silent_since: time of the follower's last sign of life; None while the follower is there
    """
    if paused and state != "paused":
        state = f"{state}, paused"
    if silent_since is not None:
        return f"{state}, not followed"
    return state if position is None or paused else f"{state} ({position}.)"


def reason_words(
    reason: str | None, silent_since: datetime | None, *, waits: bool, paused: bool, trial_id: int | None
) -> str | None:
    """Return the reason for the state of a gang. Without a follower: this fact and its consequence.

    :param reason: as the store has it
    :param waits: True: the gang holds no slots
    :param paused: True: a user has paused it, and the reason names the user
    """
    if silent_since is None:
        return reason or None
    at = silent_since.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    fact = f"Not followed since {at}: the process of its task is gone or stuck."
    if waits and paused:
        return f"{reason}. {fact}"
    if waits:
        return f"{fact} It keeps its place, but is skipped until its task asks again."
    end = "" if trial_id is None else f" To end it now: airflow dtrain trials kill {trial_id}"
    return f"{fact} Its ranks continue until the hosts end them.{end}"
