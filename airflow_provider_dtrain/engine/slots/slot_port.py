"""The port through which the engine gets slots for attempts and held gangs, wherever they come from.

``tests/contract/test_slot_port.py`` is the contract of all implementations. Code that runs after the grant knows the
attempt's placement, and not who granted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_provider_dtrain.errors import DtrainError
    from airflow_provider_dtrain.store.records.trials import Proof


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The request holds its slots, and its follower may launch or hold the gang."""

    #: host -> slot indices
    slots: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The request waits."""

    #: Reason as sentences.
    reason: str
    #: True: a user has paused the trial. The request asks for no slots until the user activates it.
    is_paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Never:
    """No slots can serve the request, now or later."""

    #: Reason as sentences.
    reason: str


class FollowedGang(Protocol):
    """Gang whose ranks run."""

    def end_because(self, error: DtrainError) -> None:
        """End the gang, whatever its ranks report."""


class SlotRequest(Protocol):
    """Request for slots, as one follower makes it."""

    async def request(self) -> Granted | Waiting | Never:
        """Request the slots, or renew the request, and return the answer.

        Repeatable: a request that was granted returns the same slots again. A follower repeats a request that waits, to
        show that the task is still there.

        :raises StaleWatchError: another process follows the request
        :raises GangEndedError: the held gang of the request has ended
        """

    async def changed(self) -> None:
        """Wait until a request that waits may have another answer, or until it has to be renewed.

        Control requests to an attempt end the wait with the exceptions of :meth:`Runtime.check`.
        """


class SlotPort(SlotRequest, Protocol):
    """Slots of one attempt, as its follower requests, watches and releases them."""

    #: True: the files of a run can be read after the release of its slots.
    keeps_files: bool

    def watching(self, gang: FollowedGang) -> AbstractAsyncContextManager[None]:
        """Watch the slots while the block runs, in which ``gang`` is followed.

        When the source wants the slots back, it is a control request to the attempt. When it took them, the gang ends.
        """

    async def explained(self, error: DtrainError | None) -> DtrainError | None:
        """Return the error with which an attempt ended, or its cause if the source took the slots."""

    async def clear_hosts(self) -> frozenset[str]:
        """Return hosts of the attempt on which nothing can run any longer, as the source knows for certain."""

    async def release(self, hosts: Sequence[str], *, proof: Proof) -> None:
        """Release the slots on hosts where no process of the attempt can run. Repeatable.

        :param proof: evidence that none can run there
        :raises StaleWatchError: another process follows the attempt
        """

    async def leave(self) -> None:
        """End what the source still has of an attempt that has ended, also without a grant. Repeatable."""

    async def uncleared(self) -> frozenset[str]:
        """Return the hosts whose slots the attempt still holds. Without such a host, the attempt is clear."""
