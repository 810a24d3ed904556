"""Protocol for external schedulers, which give out the slots of a pool as jobs. ``hosts/slurm`` implements it.

``tests/contract/test_slot_port.py`` and ``tests/contract/test_transport.py`` are the contract of what is built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_dtrain.core.external_jobs import ExternalJob, JobAsk, JobStatus
from airflow_provider_dtrain.core.scheduler_facts import Finding, JobShape, SchedulerFacts
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.hosts.transport.base import Transport


@dataclass(frozen=True, kw_only=True)
class JobPolicy:
    """When a job ends by itself, and when its ranks are asked to stop."""

    #: Seconds after which the job ends when no process of ours has spoken to it.
    orphan_timeout_s: float
    #: Unix time at which the ranks are asked to write a checkpoint and end; None: at the scheduler's warning only.
    warn_at_s: float | None = None
    #: Command that each node executes then, whether or not a process of ours is connected.
    on_warning: tuple[str, ...] = ()


class JobChannel(Protocol):
    """Channel to all nodes of one running job, which connects when it is used, and again after a loss. Thread-safe."""

    #: Called with (node, cause in words) when the scheduler wants the slots back.
    on_warning: Callable[[int, str], None] | None

    def transport(self, host: str, node: int) -> Transport:
        """Return a transport to a node.

        :param host: name under which the node is registered
        :param node: its number in the job, from 0
        """

    def keep(self, policy: JobPolicy) -> None:
        """Send the policy to all nodes. Repeatable.

        :raises HostUnreachableError: the channel is closed
        """

    def end(self) -> bool:
        """Ask the job to end, and return whether its nodes have confirmed it. Never raises."""

    def close(self) -> None:
        """Close the channel. Repeatable, never raises."""


class ExternalScheduler(Protocol):
    """Commands to the scheduler of one pool. They block, and are thread-safe.

    All of them raise :class:`SchedulerAwayError` when the scheduler does not answer, or its answer is not clear.
    """

    #: Jobs that the pool may have at one time, None without a limit.
    max_jobs: int | None
    #: Seconds after the begin of a submission after which it cannot be accepted any longer.
    settles_in_s: float
    #: Interpreter that starts the supervisor on nodes: a program name or a path.
    python: str

    def new_access(self) -> bytes:
        """Return the secret of the channel to the nodes of a new job."""

    def busy(self) -> str | None:
        """Return why this process should submit no job now, in words, None if it may."""

    def submit(self, ask: JobAsk) -> str:
        """Submit a job and return the scheduler's number.

        A :class:`SchedulerAwayError` that is not ambiguous means that the job was not accepted.

        :raises SubmissionRefusedError: no job can serve the request, now or later
        """

    def find(self, names: Sequence[str]) -> Mapping[str, Sequence[JobStatus]]:
        """Return the jobs that the scheduler has under these names, oldest first."""

    def poll(self, jobs: Sequence[ExternalJob]) -> Mapping[int, JobStatus]:
        """Return the states of jobs by their id in the store, by as few requests as possible.

        A job of which nothing is known is left out, unless its end is certain.
        """

    def cancel(self, numbers: Sequence[str]) -> None:
        """End jobs. Repeatable."""

    def describe(self) -> SchedulerFacts:
        """Return partitions, sizes of nodes and limits. Facts of the last minutes are not requested again."""

    def checks(self) -> Sequence[Finding]:
        """Return the checks of ``doctor``: programs, versions, settings that lose work or mislead."""

    def channel(self, job: ExternalJob, access: bytes) -> JobChannel:
        """Return the channel to the nodes of a running job, which connects when it is used.

        :param access: the decrypted secret of the job
        """

    def devices(self, count: int, facts: Mapping[str, Any], node: Transport) -> Sequence[Mapping[str, Any] | None]:
        """Return the devices of a job's slots on a node, None for a CPU slot.

        :param count: slots there
        :param facts: answer of the node to the command ``probe``
        :param node: transport to the node
        :raises HostRefusedError: they are not known
        """


class SchedulerKind(Protocol):
    """A kind of scheduler, which a pool names as its backend."""

    def scheduler(self, pool: str, options: Mapping[str, Any], connection: Any) -> ExternalScheduler:
        """Return the scheduler of a pool.

        :param options: options of the pool, checked
        :param connection: Airflow connection that the options name, None without one
        """

    def tested(self, connection: Any) -> tuple[bool, str]:
        """Return whether jobs can be submitted over an Airflow connection, and the findings in words. Blocks.

        :raises SchedulerAwayError: the scheduler does not answer
        """

    def connection_id(self, options: Mapping[str, Any]) -> str | None:
        """Return the Airflow connection that a pool's options name, None for this machine."""

    def checked(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options of a pool in the form that is stored.

        :raises ConfigError: all problems at once
        """

    def slot_type(self, options: Mapping[str, Any]) -> SlotType:
        """Return the type of a pool's slots."""

    def shape(self, facts: SchedulerFacts, slots: int, *, is_single_host: bool = False) -> JobShape:
        """Return the nodes of the job that a gang would be. Needs no connection.

        :raises SubmissionRefusedError: no job can serve the request; the message has the sizes that work
        """
