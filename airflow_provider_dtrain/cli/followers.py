"""Words for a gang whose follower, a process of the triggerer or a worker, is gone."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dtrain.cli.console import cell


def state_words(state: str, position: int | None, *, paused: bool, silent_since: datetime | None) -> str:
    """Return a state as a table shows it: with the place in the queue, and whether somebody follows.

    :param position: among those that wait; None: it does not wait
    :param silent_since: when its follower was last heard of; None while it is there
    """
    if paused and state != "paused":
        state = f"{state}, paused"
    if silent_since is not None:
        return f"{state}, not followed"
    return state if position is None or paused else f"{state} ({position}.)"


def reason_words(
    reason: str | None, silent_since: datetime | None, *, waits: bool, paused: bool, trial_id: int | None
) -> str | None:
    """Return why a gang is where it is; when nobody follows it, that and what follows from it.

    :param reason: as the store has it
    :param waits: True: it holds nothing
    :param paused: True: a person wants it so, and the reason says who
    """
    if silent_since is None:
        return reason or None
    fact = f"Nobody follows it since {cell(silent_since)}: the process of its task is gone or stuck."
    if waits and paused:
        return f"{reason}. {fact}"
    if waits:
        return f"{fact} It is passed over, with its place kept, until its task asks again."
    end = "" if trial_id is None else f" To end it now: airflow dtrain trial kill {trial_id}"
    return f"{fact} What runs goes on until its hosts end it.{end}"
