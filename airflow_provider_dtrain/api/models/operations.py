"""Work on hosts that users request."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from airflow_provider_dtrain.api.bounds import HOSTS_MOST, NUMBER_MOST, PATH_CHARS, Id, Name, Number, Offset
from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.store.records.operations import OperationKind, OperationState, Through

#: Most ranks of a request, and batches that each of them records.
RANKS_MOST, PROFILED_MOST = 4096, 100
#: Longest time limit of a command in seconds, as ``airflow dtrain trials exec`` accepts it.
_MOST_S = 3600


class _OfTrial(Model):
    """Request that concerns a trial."""

    trial_id: Id
    #: Skip the follower, which did not take an earlier request.
    through: Through | None = None


class LogRequest(_OfTrial):
    """Bytes of a rank's log."""

    rank: Number = 0
    #: None: the latest one.
    attempt: Annotated[int, Field(ge=1, le=NUMBER_MOST)] | None = None
    start: Offset = 0
    #: First byte that is not wanted; None: all that the host has.
    end: Offset | None = None
    #: Copy what the store does not have yet of the whole log into the store, for pages and searches. The operation has
    #: no content then.
    keep: bool = False


class StacksRequest(_OfTrial):
    """Python stacks of running ranks."""

    #: None: all ranks.
    rank: Number | None = None


class ProfileRequest(_OfTrial):
    """A trace of the next batches of running ranks."""

    #: None: all ranks.
    ranks: Annotated[list[Number], Field(min_length=1, max_length=RANKS_MOST)] | None = [0]
    batches: Annotated[int, Field(ge=1, le=PROFILED_MOST)] = 3
    #: Record the lines of the program as well.
    with_stack: bool = False


class ExecRequest(Model):
    """A command in the environment of a running rank."""

    trial_id: Id
    rank: Number = 0
    argv: Annotated[list[Annotated[str, Field(max_length=32 << 10)]], Field(min_length=1, max_length=1024)]
    timeout_s: Annotated[int, Field(ge=1, le=_MOST_S)] = 60


class OutputsRequest(Model):
    """Files that a plain script wrote."""

    trial_id: Id
    #: Files and folders; empty: all.
    paths: Annotated[list[Annotated[str, Field(max_length=PATH_CHARS)]], Field(max_length=1000)] = []
    #: Only their names and sizes, no content.
    list_only: bool = False


class CheckpointRequest(Model):
    """A checkpoint as a tar archive."""

    trial_id: Id
    checkpoint_id: Id


class ProbeRequest(Model):
    """A new probe of hosts."""

    #: Empty: all.
    hosts: Annotated[list[Name], Field(max_length=HOSTS_MOST)] = []


class CheckRequest(Model):
    """Measurements of hosts on all of their slots, which must be free."""

    #: Empty: all of the pool.
    hosts: Annotated[list[Name], Field(max_length=HOSTS_MOST)] = []
    #: None: all pools.
    pool: Name | None = None
    #: Seconds to wait for slots that are in use.
    wait_s: float = Field(default=0.0, ge=0, le=3600, allow_inf_nan=False)
    #: Share below the reference from which a rate is named.
    tolerance: float = Field(default=0.15, ge=0, le=1, allow_inf_nan=False)
    #: Drain the hosts that are named.
    evacuate: bool = False


class DoctorRequest(Model):
    """The checks of ``doctor`` for all hosts."""


class Operation(Model):
    """Work on hosts, with its state."""

    operation_id: int
    kind: OperationKind
    trial_id: int | None
    state: OperationState
    requested_at: datetime
    #: Process that executes it: the follower of the trial, or a run of a DAG.
    through: Through
    dag_id: str | None
    dag_run: str | None
    #: Bytes of content so far.
    size_bytes: int
    #: By its kind: nothing but ``end`` for a log, ``ranks`` and ``problems`` for stacks and traces, the result of a
    #: command, ``files`` and ``words`` for outputs, ``name`` of a checkpoint, ``rows`` of a probe. None until its end.
    result: dict[str, Any] | None
    #: None unless it failed.
    error: str | None
