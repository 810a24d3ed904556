"""Texts for a gang whose follower, a process of the triggerer or a worker, is silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_dtrain.core.lifecycle.timing import HAND_OVER_MOST, SILENT_AFTER

#: A request that no set of its pool's hosts can serve.
CANNOT_RUN = "cannot run"


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Silence of the process that follows a gang."""

    #: Last sign of life; None: the process is alive, or none is needed.
    since: datetime | None = None
    #: True: a worker has handed the task over, and no triggerer runs it yet.
    is_handed_over: bool = False
    #: True: it lasts longer than a task takes from a worker to the triggerer.
    is_loss: bool = False

    @property
    def lost_since(self) -> datetime | None:
        """Last sign of life of a follower that is gone, None while it is there or on its way."""
        return self.since if self.is_loss else None


def silence(seen_at: datetime | None, now: datetime, *, is_handed_over: bool) -> Silence:
    """Return how long a follower has been silent.

    :param seen_at: last sign of life; None: no follower is needed
    :param is_handed_over: it was the hand-over from a worker to the triggerer
    """
    lasted = timedelta() if seen_at is None else now - seen_at
    if seen_at is None or lasted < SILENT_AFTER:
        return Silence()
    is_loss = lasted >= (HAND_OVER_MOST if is_handed_over else SILENT_AFTER)
    return Silence(since=seen_at, is_handed_over=is_handed_over, is_loss=is_loss)


def state_text(state: str, position: int | None, *, paused: bool, never_fits: bool, silence: Silence) -> str:
    """Return a state for a table, with the place in the queue, or with the fact that the follower is gone.

    :param position: place among the waiting gangs; None: it does not wait
    :param never_fits: True: it waits, and no set of hosts can serve it
    """
    if paused and state != "paused":
        state = f"{state}, paused"
    if never_fits:
        state = f"{state}, {CANNOT_RUN}"
    if silence.is_loss:
        return f"{state}, not followed"
    return state if position is None or paused or never_fits else f"{state} ({position}.)"


def reason_text(reason: str | None, silence: Silence, *, waits: bool, paused: bool, trial_id: int | None) -> str | None:
    """Return the reason for the state of a gang. Without a follower: this fact and its consequence.

    :param reason: as the store has it
    :param waits: True: the gang holds no slots
    :param paused: True: a user has paused it, and the reason names the user
    """
    if silence.since is None:
        return reason or None
    at = silence.since.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if not silence.is_loss:
        fact = f"Since {at} its task passes from a worker to the triggerer."
        return f"{reason}. {fact}" if reason and waits else fact
    cause = "no triggerer runs its task" if silence.is_handed_over else "the process of its task is gone or stuck"
    fact = f"Not followed since {at}: {cause}."
    if waits and paused:
        return f"{reason}. {fact}"
    if waits:
        return f"{fact} It keeps its place, but is skipped until its task asks again."
    end = "" if trial_id is None else f" To end it now: airflow dtrain trials kill {trial_id}"
    return f"{fact} Its ranks continue until the hosts end them.{end}"
