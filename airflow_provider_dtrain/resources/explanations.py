"""Explanations of requests for slots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_provider_dtrain.resources.tasks import TaskRef

#: When a request gets slots: it has them or gets them now, later, or never.
Outlook = Literal["now", "later", "never"]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Outlook of a request for slots, and what it waits for. A field that does not apply is None."""

    #: Path of a configuration, a trial, or ``gang:ID``.
    request: str
    #: Experiment and task of a gang.
    of: str | None = None
    task: TaskRef | None = None
    trial: int | None = None
    pool: str
    slots: int
    priority: int | None = None
    #: Of a trial.
    state: str | None = None
    #: State of the gang.
    gang: str | None = None
    outlook: Outlook
    unfollowed_since: datetime | None = None
    #: Place in the queue, and number of requests before that of a configuration.
    position: int | None = None
    waiting_ahead: int | None = None
    #: Expected start.
    expected: str | None = None
    expected_at: datetime | None = None
    queue_class: str | None = None
    waited_s: int | None = None
    held_s: int | None = None
    #: Of its experiment.
    weight: float | None = None
    max_slots: int | None = None
    #: Slots that become free for it, and hosts that are reserved for it.
    claimed: dict[str, list[int]] | None = None
    reserved_hosts: list[str] | None = None
    paused: bool | None = None
    preempted_for: str | None = None
    #: The job of an external scheduler that holds its slots or waits for them: its number, and its state in words.
    job: str | None = None
    job_state: str | None = None
    submitted: datetime | None = None
    #: Time at which the scheduler ends the job at the latest.
    job_ends: datetime | None = None
    #: Nodes that the job has, or would have.
    nodes: str | None = None
    #: Of an external scheduler: the partition of the pool's jobs, slots of its nodes, and the longest job.
    partition: str | None = None
    node_slots: str | None = None
    longest_job: str | None = None
    #: Host -> its slots.
    hosts: dict[str, list[int]] | None = None
    reason: str | None
