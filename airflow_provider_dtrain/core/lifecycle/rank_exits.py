"""Exits of the ranks of a gang, and the one that caused the failure: causes and consequences are distinguished."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from airflow_provider_dtrain.errors import Kind

#: Meaning of the most frequent Xid errors. Source: NVIDIA, "Xid Errors", docs.nvidia.com/deploy/xid-errors.
XIDS: Mapping[int, str] = {
    13: "exception of the graphics engine",
    31: "page fault of its memory",
    43: "it stopped the program",
    45: "the driver removed the program",
    48: "double-bit memory error",
    63: "memory rows are remapped",
    64: "memory rows could not be remapped",
    74: "NVLink error",
    79: "it has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its firmware does not answer",
}
PROGRAM_XIDS = frozenset({13, 31, 43, 45})
#: A fault of a GPU explains a failure for at most so many seconds.
FAULT_BEFORE_S = 120.0
_DEVICE = re.compile(r"CUDA|NCCL|CUBLAS|CUDNN|\bGPU\b|device", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class DeviceFault:
    """Fault of a GPU, as its driver reported it."""

    uuid: str
    #: Number of the error in NVIDIA's list of Xid errors; 0: a double-bit error of its memory.
    xid: int
    #: Unix seconds by the clock of the host.
    at: float

    @property
    def is_of_hardware(self) -> bool:
        """False for an error that programs cause, e.g. by an access outside of their memory."""
        return self.xid not in PROGRAM_XIDS

    @property
    def text(self) -> str:
        """The fault in words."""
        if not self.xid:
            return f"{self.uuid} reported a double-bit memory error"
        meaning = XIDS.get(self.xid)
        return f"{self.uuid} reported Xid {self.xid}{f' ({meaning})' if meaning else ''}"


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Facts about the host at the end of a rank, as its supervisor saw them."""

    #: Processes that the kernel has killed for lack of memory since the ranks were started: within the memory limit of
    #: the run, or on the whole host if the run has none.
    oom_kills: int = 0
    #: Memory limit of the run in bytes; None: only that of the host.
    memory_limit_bytes: int | None = None
    #: Memory of the host in bytes; 0: not known.
    memory_bytes: int = 0
    #: Largest resident memory of the rank in bytes; 0: not known.
    peak_bytes: int = 0
    #: Folders on full file systems.
    full: Sequence[str] = ()
    #: Most files that a process may open; 0: not known.
    open_files: int = 0
    #: Faults that the driver reported of the rank's GPU before its end, the first one first.
    faults: Sequence[DeviceFault] = ()


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Activity of a rank that uses the training library, shortly before its end."""

    #: As in :class:`airflow_provider_dtrain.core.lifecycle.watchdog.RankReport`.
    phase: str = ""
    what: str = ""
    steps: int = 0
    #: Collectives of the default process group that the rank has entered; 0: not known.
    collectives: int = 0
    #: Seconds at this place.
    still_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """Exit of one rank."""

    rank: int
    host: str
    #: Negative for a signal; None when it is not known.
    exit_code: int | None
    #: Unix seconds by the clock of the host.
    at: float
    #: Seconds by which that clock was ahead of the control side's.
    offset_s: float = 0.0
    #: ``message`` and ``traceback`` as the rank left them, or None.
    error: Mapping[str, Any] | None = None
    #: The supervisor had sent it a signal before it ended.
    sent_signal: bool = False
    #: Last lines of its log.
    log_tail: str = ""
    #: It had finished its first step (its ``first_step`` event came).
    has_stepped: bool = False
    #: None: it does not use the training library, or left no record.
    place: RankPlace | None = None
    #: Python stacks of its threads, written when the supervisor was about to end it.
    stack: str = ""
    facts: HostFacts = field(default_factory=HostFacts)

    @property
    def corrected_at(self) -> float:
        """Unix seconds by the clock of the control side."""
        return self.at - self.offset_s

    @property
    def message(self) -> str:
        """Failure message of the rank, or the end of its log when it left no record."""
        return str(self.error.get("message") or "") if self.error else self.log_tail

    @property
    def text(self) -> str:
        """Failure message with the traceback, or the end of the log when the rank left no record."""
        return f"{self.message}\n{self.error.get('traceback') or ''}" if self.error else self.log_tail


class Remoteness(IntEnum):
    """Distance of a rank's failure from the cause. The least one is the cause."""

    #: The rank failed by itself.
    OWN = 0
    #: It failed by itself or because of another rank: its record has both.
    UNCERTAIN = 1
    #: It only noticed that another rank was gone, or did not answer.
    AFTERMATH = 2
    #: The supervisor ended it.
    SIGNALLED = 3


# Errors in the other ranks after one has died, as gloo, NCCL and c10d of PyTorch 2.13 raise them.
_AFTERMATH = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection was likely closed|Broken pipe"
    r"|Timed out waiting \d+ms for (?:recv|send)|Application timeout caused pair closure"
    r"|Watchdog caught collective operation timeout|collective operation timeout|Wait timeout"
    r"|NCCL communicator was aborted|ncclRemoteError|ncclSystemError|remote process exited"
    r"|[Ss]ocket [Tt]imeout|recvValue failed|sendBytes failed|failed to recv, got 0 bytes"
    r"|client socket has timed out|Timed out after \d+ seconds waiting for clients"
    # Of the training library: rank 0 has the cause.
    r"|LeaderFailedError: "
)
#: Origin of such an error: a library with which ranks exchange data. The same words come from web services.
_EXCHANGE = re.compile(
    r"gloo|nccl|c10d|TCPStore|ProcessGroup|torch[./]distributed|torch/autograd|LostRankError|LeaderFailedError"
    r"|(?:client|server) socket|clients",
    re.IGNORECASE,
)
#: Those of them that say that a rank was there, and did not answer in time.
_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ms for|operation timeout|Application timeout caused|Wait timeout|[Ss]ocket [Tt]imeout"
)
#: A rank that waited for rank 0, or for the first rank of its host.
_WAITED = re.compile(r"LeaderFailedError: (?P<local>Local )?[Rr]ank 0 ")
#: Messages that a supervisor writes for a rank without a record of its own.
_WITHOUT_RECORD = ("killed by ", "exit code ")
_RENDEZVOUS = re.compile(
    r"TCPStore|c10d|DistNetworkError|DistStoreError|init_process_group|rendezvous|(?:server|client) socket"
    r"|gloo/transport",
    re.IGNORECASE,
)
_NO_RENDEZVOUS = re.compile(
    r"EADDRINUSE|address already in use|ECONNREFUSED|connection refused|client socket has timed out",
    re.IGNORECASE,
)
# ECC errors are left to the log policy of that name, which can be switched off.
_BROKEN_DEVICE = re.compile(
    r"uncorrectable NVLink error|GPU is lost|fallen off the bus"
    r"|CUDA-capable device\(s\) is/are busy or unavailable",
    re.IGNORECASE,
)
_CHAINED = re.compile(
    r"^(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):$",
    re.MULTILINE,
)
#: Signals by which native code ends its own process. The log has the reason, if there is one.
_ABORTED = frozenset({-6, -11})


def first_failure(exits: Iterable[RankExit]) -> RankExit | None:
    """Return the exit that caused the failure, or None when every rank succeeded.

    This is the first failed exit by the control side's clock. Ranks that only noticed a missing peer come after
    all other ranks, and ranks that the supervisor sent a signal come last. A rank that waited for a leader proves that
    the leader failed before the signal, so the leader's own record is the cause.
    """
    failed = [leaving for leaving in exits if leaving.exit_code != 0]
    found = min(failed, key=lambda leaving: (remoteness(leaving), leaving.corrected_at, leaving.rank), default=None)
    leader = _leader_of(found, failed) if found is not None else None
    return replace(leader, sent_signal=False) if leader is not None else found


def _leader_of(waited: RankExit, failed: Iterable[RankExit]) -> RankExit | None:
    """Return the exit of the leader that a rank waited for in vain, if the leader left a record of its error."""
    found = _WAITED.match(waited.message)
    if found is None:
        return None
    is_local = found["local"] is not None
    group = [one for one in failed if one.host == waited.host or not is_local]
    leader = min(group, key=lambda leaving: leaving.rank)
    if leader is waited or (leader.rank != 0 and not is_local):
        return None
    return leader if leader.error and not leader.message.startswith(_WITHOUT_RECORD) else None


def classify(leaving: RankExit) -> Kind:
    """Return the kind of a failure: ``infra`` for a broken device or a failed rendezvous, else ``user``.

    ``platform`` when the rank ended after a signal from the supervisor: its exit says nothing about a fault.
    """
    if _BROKEN_DEVICE.search(leaving.text):
        return "infra"
    if leaving.sent_signal:
        return "platform"
    if not has_joined(leaving):
        return "infra"
    return "user"


def has_joined(leaving: RankExit) -> bool:
    """Return False for a rank that failed because it could not reach the other ranks in order to join them."""
    if leaving.has_stepped or _NO_RENDEZVOUS.search(leaving.message) is None:
        return True
    return _RENDEZVOUS.search(leaving.text) is None


def is_without_record(leaving: RankExit) -> bool:
    """Return whether the message is that of the supervisor, because the rank left no record of an exception."""
    return leaving.message.startswith(_WITHOUT_RECORD)


def is_aftermath(leaving: RankExit) -> bool:
    """Return whether the rank may have failed only because another one was gone."""
    return remoteness(leaving) in (Remoteness.UNCERTAIN, Remoteness.AFTERMATH)


def device_fault(leaving: RankExit) -> DeviceFault | None:
    """Return the latest fault of the rank's GPU shortly before its failure, None if another error explains it."""
    recent = [one for one in leaving.facts.faults if 0 <= leaving.at - one.at <= FAULT_BEFORE_S]
    is_of_device = (leaving.exit_code or 0) < 0 or _DEVICE.search(leaving.text) is not None
    return max(recent, key=lambda one: (one.is_of_hardware, one.at)) if recent and is_of_device else None


def has_timed_out(leaving: RankExit) -> bool:
    """Return whether the rank gave up a wait for a rank that was there."""
    return _TIMED_OUT.search(leaving.text) is not None


def remoteness(leaving: RankExit) -> Remoteness:
    """Return how far from the cause the failure of a rank is, by its own record."""
    if leaving.sent_signal:
        return Remoteness.SIGNALLED
    if (fault := device_fault(leaving)) is not None and fault.is_of_hardware:
        # Libraries of the exchange report a broken device of their own rank in the same words as a lost peer.
        return Remoteness.OWN
    chain = exceptions_of(leaving)
    last = _AFTERMATH.search(leaving.message) is not None
    if len(chain) > 1:
        first = _AFTERMATH.search(chain[0]) is not None
        if first:
            return _of_peer(leaving)
        # A failed rank that waits for other ranks while it cleans up, or one that was in an exchange as a handler.
        return Remoteness.UNCERTAIN if last else Remoteness.OWN
    if last:
        return _of_peer(leaving)
    if leaving.message.startswith(_WITHOUT_RECORD) and _AFTERMATH.search(leaving.text):
        return Remoteness.AFTERMATH if leaving.exit_code in _ABORTED else _of_tail(leaving)
    return Remoteness.OWN


def _of_peer(leaving: RankExit) -> Remoteness:
    return Remoteness.AFTERMATH if _EXCHANGE.search(leaving.text) else Remoteness.UNCERTAIN


def _of_tail(leaving: RankExit) -> Remoteness:
    """Return the remoteness of a program that printed an error of another rank's end, and then ended."""
    return Remoteness.OWN if (leaving.exit_code or 0) < 0 else Remoteness.UNCERTAIN


def exceptions_of(leaving: RankExit) -> list[str]:
    """Return the exceptions of a traceback as their last lines have them, the first one first. [] without one."""
    trace = str((leaving.error or {}).get("traceback") or "")
    if "Traceback (most recent call last)" not in trace:
        return []
    parts = (part.partition("Traceback (most recent call last)")[2] for part in _CHAINED.split(trace))
    return [line for line in map(_exception_of, parts) if line]


def _exception_of(part: str) -> str:
    lines = part.splitlines()[1:]
    return next((line for line in lines if line.strip() and not line[0].isspace()), "")
