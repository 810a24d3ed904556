"""Operations: work on hosts that users request through the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

#: Operations that have not ended, of one user and of all users. Each may hold a window of content in the store.
USER_MOST, STORE_MOST = 4, 32


class OperationKind(StrEnum):
    """Work of an operation."""

    #: Bytes of a rank's log.
    LOG = "log"
    #: Files that a plain script wrote: their list, or an archive of them.
    OUTPUTS = "outputs"
    #: An archive of a checkpoint.
    CHECKPOINT = "checkpoint"
    #: Python stacks of running ranks.
    STACKS = "stacks"
    #: A request to running ranks to record their next batches.
    PROFILE = "profile"
    #: A command in the environment of a running rank.
    EXEC = "exec"
    #: A new probe of hosts.
    PROBE = "probe"
    #: The checks of ``doctor`` for hosts.
    DOCTOR = "doctor"
    #: Measurements of hosts on free slots, compared with those of peers and of the past.
    CHECK = "check"
    #: Stored control requests to trials whose followers are gone, and removal of deleted experiments. Its result is not
    #: read.
    CONTROL = "control"


class OperationState(StrEnum):
    """State of an operation."""

    #: No process has taken it yet.
    WAITING = "waiting"
    #: A process executes it.
    RUNNING = "running"
    #: It has its result, and all of its content is in the store.
    DONE = "done"
    #: It has an error instead of a result.
    FAILED = "failed"


#: States after the end of an operation.
OPERATION_ENDED = frozenset({OperationState.DONE, OperationState.FAILED})
#: Operations that the follower of a running trial executes. It has a channel to the hosts already. A command of a user
#: runs in a process of its own, whose end is the end of the command.
FOLLOWER_KINDS = frozenset({OperationKind.LOG, OperationKind.STACKS, OperationKind.PROFILE})


class Through(StrEnum):
    """Process that executes an operation."""

    FOLLOWER = "follower"
    DAG = "dag"


@dataclass(frozen=True, kw_only=True)
class StoredOperation:
    """An operation with its state. The content is read by offsets."""

    operation_id: int
    kind: OperationKind
    #: None: it concerns no single trial.
    trial_id: int | None
    #: What the kind needs, e.g. ``rank``.
    arguments: Mapping[str, Any]
    #: The user who requested it, and who alone reads it.
    by: str
    through: Through
    #: The run of the DAG for operations; None: a follower executes it.
    dag_run: str | None
    state: OperationState
    requested_at: datetime
    #: Time when its process was last heard of; None: no process has taken it.
    alive_at: datetime | None
    #: Bytes of content that its process has written so far.
    size_bytes: int
    #: Bytes of content that the reader has received. They are no longer in the store.
    read_bytes: int
    #: Time when the reader last asked for it.
    read_at: datetime
    #: None until it has ended. That of a failed one has only a ``code``.
    result: Mapping[str, Any] | None
    #: None unless it failed.
    error: str | None
