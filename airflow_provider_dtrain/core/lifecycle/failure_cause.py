"""Cause of a gang's failure in one sentence: rank, host, fact, time, place, and the next step. Pure functions.

:func:`cause_of` reads the exits of all ranks. :mod:`airflow_provider_dtrain.core.lifecycle.rank_exits` chooses the one
that caused the failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.lifecycle.rank_exits import (
    RankExit,
    Remoteness,
    device_fault,
    exceptions_of,
    first_failure,
    has_joined,
    has_timed_out,
    is_aftermath,
    is_without_record,
    remoteness,
)
from airflow_provider_dtrain.core.lifecycle.rank_text import clock, ranks_text
from airflow_provider_dtrain.core.lifecycle.stack_text import (
    MOST_PLACES,
    frames_of_crash,
    frames_of_traceback,
    place_text,
    waiting_frame,
)

#: A busy host notices the end of a rank so many seconds late. Ranks that lost it may seem to have ended before it.
SEEN_LATE_S = 2.0
#: Activity and time limit of a rank that has waited, in its error.
_WAITED_IN = re.compile(r"waited for the other ranks in ([^,(]{1,60})")
_LIMIT = re.compile(r"Timed out waiting (\d{1,9})ms")
# Data of another collective arrived: in gloo, which ends the process, and with TORCH_DISTRIBUTED_DEBUG=DETAIL.
_MISMATCHED = re.compile(
    r"(?P<got>\d{1,19}) vs (?P<expected>\d{1,19})\. Received data size doesn't match expected size"
    r"|Detected mismatch between collectives on ranks"
)


class CauseKind(StrEnum):
    """Kind of a failure of a rank, with the next step for the user."""

    _value_: str
    #: The next step as one sentence; empty if the fact has it.
    advice: str

    def __new__(cls, value: str, advice: str = "") -> Self:
        """Return the member with this string and its next step."""
        member = str.__new__(cls, value)
        member._value_, member.advice = value, advice
        return member

    EXCEPTION = "exception", "Repair this line of the program."
    EXIT_CODE = "exit_code", "The program ended itself: its log has the reason."
    EARLY_END = "early_end", "Let all ranks do the same steps, e.g. with ctx.loader."
    KILLED = "killed", "Find out on that host which process or user sent the signal."
    CRASHED = "crashed", "Native code crashed: its log has the stack, with the library or PYTHONFAULTHANDLER=1."
    OUT_OF_MEMORY = "out_of_memory", "Use fewer loader workers or smaller batches, or request a host with more memory."
    HOST_MEMORY = "host_memory", "Use smaller batches or fewer copies of the data, or raise the memory limit."
    DEVICE_MEMORY = "device_memory", "Use a smaller batch per slot, or aggregation_frequency for the same global batch."
    DEVICE_ERROR = "device_error", "Run with the variable CUDA_LAUNCH_BLOCKING=1 to see the line that fails."
    DEVICE_BROKEN = "device_broken", "Take the host out with airflow dtrain hosts disable, and test the device."
    DISK_FULL = "disk_full", "Free space on that host, or write to another folder."
    SHARED_MEMORY = "shared_memory", "Enlarge /dev/shm on that host (--shm-size of a container), or use fewer workers."
    OPEN_FILES = "open_files", "Close files, or raise the limit with ulimit -n before the supervisor starts."
    PROCESSES = "processes", "Use fewer threads or loader workers, or raise ulimit -u or the memory limit."
    NOT_FINITE = "not_finite"
    LOADER_WORKER = "loader_worker", "Run with num_workers=0 to see the error of the worker."
    MISSING_MODULE = "missing_module", "Install it on that host, or add it to the lock file of the environment."
    NOT_STARTED = "not_started", "Check the entrypoint and the limits of processes on that host."
    RENDEZVOUS = "rendezvous", "Check the network between the hosts: airflow dtrain hosts probe."
    CONNECTION = "connection", "Check the network between the hosts, and the kernel logs of both sides."
    MISMATCH = "mismatch", "Let all ranks do the same steps, and call the same collectives in the same order."
    MISSING = "missing", "Show its stacks during such a wait: airflow dtrain trials stack."


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Cause of a gang's failure."""

    kind: CauseKind
    #: The rank that caused it.
    leaving: RankExit
    #: The fact in words, one line.
    fact: str

    @property
    def advice(self) -> str:
        """The next step as one sentence, empty if the fact has it."""
        has_own = "airflow_provider_dtrain.train.errors." in self.leaving.text
        is_known = self.kind != CauseKind.EXCEPTION or bool(exceptions_of(self.leaving))
        return self.kind.advice if is_known and not has_own else ""

    @property
    def is_signalled(self) -> bool:
        """True when nothing is known but that the supervisor ended the rank."""
        return self.leaving.sent_signal and self.kind != CauseKind.MISSING

    @property
    def is_consequence(self) -> bool:
        """True when a host that was lost explains the failure as well."""
        return self.kind in (CauseKind.CONNECTION, CauseKind.MISSING) or is_aftermath(self.leaving)


_PATTERNS: Sequence[tuple[CauseKind, re.Pattern[str]]] = [
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (CauseKind.NOT_STARTED, r"^cannot (?:execute|start a process)"),
        (CauseKind.NOT_FINITE, r"NonFinite(?:Loss|Weights)Error"),
        (
            CauseKind.SHARED_MEMORY,
            r"out of shared memory|unable to (?:open|mmap|allocate|resize|write to) (?:file|shared memory)"
            r"|Unexpected bus error",
        ),
        (
            CauseKind.DISK_FULL,
            r"No space left on device|\bENOSPC\b|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]|\bEDQUOT\b"
            r"|File too large|PytorchStreamWriter failed|inline_container.*unexpected pos|file write failed"
            r"|database or disk is full",
        ),
        (
            CauseKind.OPEN_FILES,
            r"Too many open files|\[Errno 2[34]\]|\bE[MN]FILE\b|received 0 items of ancdata",
        ),
        (
            CauseKind.PROCESSES,
            r"can't start new thread|Thread creation failed|pthread_create|\[Errno 11\] Resource temporarily",
        ),
        (
            CauseKind.DEVICE_MEMORY,
            r"(?:CUDA|HIP|XPU|MPS)(?: backend)? out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        ),
        (
            CauseKind.DEVICE_BROKEN,
            r"uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus|hardware error"
            r"|device\(s\) is/are busy or unavailable|unspecified launch failure",
        ),
        (
            CauseKind.DEVICE_ERROR,
            r"CUDA error|device-side assert|illegal memory access|CUBLAS_STATUS|CUDNN_STATUS|cudaError|HIP error",
        ),
        (
            CauseKind.HOST_MEMORY,
            r"\bMemoryError\b|DefaultCPUAllocator|Cannot allocate memory|\[Errno 12\]|std::bad_alloc"
            r"|Unable to allocate .* for an array",
        ),
        (CauseKind.MISSING_MODULE, r"ModuleNotFoundError|ImportError|cannot open shared object file"),
        (CauseKind.LOADER_WORKER, r"LoaderWorkerError|DataLoader worker .*(?:killed|exited)"),
    )
]


def cause_of(exits: Iterable[RankExit]) -> Cause | None:
    """Return the cause of a gang's failure by the exits of its ranks, or None when every rank succeeded."""
    known = list(exits)
    found = first_failure(known)
    if found is None:
        return None
    if remoteness(found) == Remoteness.AFTERMATH:
        return _of_consequences(found, known)
    kind = kind_of(found)
    fact = _mismatch_fact(found, known) if kind == CauseKind.MISMATCH else _fact(found, known)
    return Cause(kind=kind, leaving=found, fact=fact)


def kind_of(leaving: RankExit) -> CauseKind:
    """Return the kind of failure of a rank that failed by itself."""
    if _MISMATCHED.search(leaving.text):
        return CauseKind.MISMATCH
    if _was_out_of_memory(leaving):
        return CauseKind.OUT_OF_MEMORY
    if (fault := device_fault(leaving)) is not None:
        return CauseKind.DEVICE_BROKEN if fault.is_of_hardware else CauseKind.DEVICE_ERROR
    # The last exception first: the one before it may be an attempt that failed on purpose.
    for text in (leaving.message, *reversed(exceptions_of(leaving)[:-1])):
        if (kind := kind_of_error(text)) is not None:
            return kind
    code = leaving.exit_code or 0
    if leaving.error and not is_without_record(leaving):
        return CauseKind.EXCEPTION if has_joined(leaving) else CauseKind.RENDEZVOUS
    if code < 0:
        return CauseKind.KILLED if -code in (1, 2, 3, 9, 15, 24, 25) else CauseKind.CRASHED
    if not has_joined(leaving):
        return CauseKind.RENDEZVOUS
    return CauseKind.EXCEPTION if exceptions_of(leaving) else CauseKind.EXIT_CODE


def kind_of_error(text: str) -> CauseKind | None:
    """Return the kind of failure that the text of an error names, None if it names none."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(text)), None)


def _was_out_of_memory(leaving: RankExit) -> bool:
    """Return whether the kernel killed the rank, or a process of it, for lack of memory."""
    if not leaving.facts.oom_kills:
        return False
    return (
        leaving.exit_code == -9 or "LoaderWorkerError" in leaving.message or "killed by signal: Killed" in leaving.text
    )


def _fact(leaving: RankExit, exits: Sequence[RankExit]) -> str:
    """Return the message of a rank, with facts of its host, the place, and the ranks with the same error."""
    chain = exceptions_of(leaving)
    parts = [_first_line(leaving.message).rstrip(" .:")]
    if len(chain) > 1 and chain[0].partition(":")[0] != chain[-1].partition(":")[0]:
        parts.append(f"after {chain[0][:300].rstrip(' .')}")
    kind = kind_of(leaving)
    if kind == CauseKind.OUT_OF_MEMORY and leaving.exit_code != -9:
        parts.append("because the kernel was out of memory and killed a process of this rank")
    if kind == CauseKind.OUT_OF_MEMORY and (memory := _memory_text(leaving)):
        parts.append(memory)
    if (fault := device_fault(leaving)) is not None:
        parts.append(f"{fault.text} at {clock(fault.at - leaving.offset_s)}")
    if kind in (CauseKind.DISK_FULL, CauseKind.SHARED_MEMORY) and leaving.facts.full:
        parts.append(f"full: {', '.join(leaving.facts.full)}")
    if kind == CauseKind.OPEN_FILES and leaving.facts.open_files:
        parts.append(f"the limit is {leaving.facts.open_files} files")
    trace = str((leaving.error or {}).get("traceback") or "")
    frames = (
        frames_of_crash(f"{trace}\n{leaving.log_tail}") if kind == CauseKind.CRASHED else frames_of_traceback(trace)
    )
    if place := place_text(frames):
        parts.append(f"at {place}")
    alike = [one for one in exits if not one.sent_signal and one.error and one.message == leaving.message]
    if len(alike) > 1:
        parts.append(f"as {_ranks_text(alike, but=leaving)}")
    return ", ".join(filter(None, parts))


def _mismatch_fact(leaving: RankExit, exits: Sequence[RankExit]) -> str:
    """Return the cause of a gang whose ranks met in different collectives. None of them is at fault by itself."""
    met = _MISMATCHED.search(leaving.text)
    sizes = f" {met['got']} bytes where it expected {met['expected']}" if met and met["got"] else " data of another one"
    is_raised = "Traceback (most recent call last)" in leaving.text
    at = place_text(frames_of_traceback(leaving.text)) if is_raised else waiting_frame(leaving.text)
    ranks = [f"rank {leaving.rank} on host '{leaving.host}' received{sizes}{f', at {at}' if at else ''}"]
    ranks += [f"rank {one.rank} was in {place}" for one in exits if one is not leaving and (place := _place_of(one))]
    return f"The ranks call collectives in different orders: {'; '.join(ranks[:MOST_PLACES])}"


def _place_of(leaving: RankExit) -> str:
    """Return where a rank was when it lost the other ranks, empty if it is not known."""
    if waited := _WAITED_IN.search(leaving.message):
        return waited[1]
    return leaving.place.what if leaving.place is not None and leaving.place.phase != "ended" else ""


def _memory_text(leaving: RankExit) -> str:
    facts = leaving.facts
    if facts.memory_limit_bytes:
        has = f"the limit is {byte_size(facts.memory_limit_bytes)}"
    else:
        has = f"the host has {byte_size(facts.memory_bytes)}" if facts.memory_bytes else ""
    used = f"the rank had used {byte_size(facts.peak_bytes)}" if facts.peak_bytes else ""
    return ", ".join(filter(None, (used, has)))


def _of_consequences(found: RankExit, exits: Sequence[RankExit]) -> Cause:
    """Return the cause of a failure of which all failed ranks only noticed the consequences."""
    waited = [one for one in exits if one.exit_code != 0 and remoteness(one) == Remoteness.AFTERMATH]
    until = found.corrected_at + SEEN_LATE_S
    left = [one for one in exits if one.exit_code == 0 and not one.sent_signal and one.corrected_at <= until]
    if left:
        first = min(left, key=lambda one: (one.corrected_at, one.rank))
        rest = _ranks_text(waited)
        verb = "was" if len(waited) == 1 else "were"
        more = f", as {_ranks_text(left, but=first)}" if len(left) > 1 else ""
        return Cause(
            kind=CauseKind.EARLY_END,
            leaving=first,
            fact=f"it ended with exit code 0 while {rest} {verb} in training{more}",
        )
    if has_timed_out(found) and (absent := _absent(waited, exits)):
        first = absent[0]
        return Cause(kind=CauseKind.MISSING, leaving=first, fact=_missing_fact(first, absent, waited))
    return Cause(
        kind=CauseKind.CONNECTION,
        leaving=found,
        fact=f"{_first_line(found.message).rstrip(' .')}. No rank failed by itself before that",
    )


def _absent(waited: Sequence[RankExit], exits: Sequence[RankExit]) -> list[RankExit]:
    """Return the ranks that are proved not to have entered the exchange in which the other ranks waited.

    A rank that was ended while it waited like the others is none of them.
    """
    entered = max((one.place.collectives for one in waited if one.place), default=0)
    absent = [
        one
        for one in exits
        if one.sent_signal
        and one.place is not None
        and (one.place.collectives < entered if entered and one.place.collectives else one.place.phase == "compute")
    ]
    return sorted(absent, key=lambda one: (one.place.collectives if one.place else 0, one.rank))


def _missing_fact(first: RankExit, absent: Sequence[RankExit], waited: Sequence[RankExit]) -> str:
    earliest = min(waited, key=lambda one: one.corrected_at)
    what = next((found[1] for one in waited if (found := _WAITED_IN.search(one.message))), "the exchange")
    number = max((one.place.collectives for one in waited if one.place), default=0)
    limit = _LIMIT.search(earliest.text)
    since = f" since {clock(earliest.corrected_at - int(limit[1]) / 1000)}" if limit else ""
    what += f" (collective number {number})" if number else ""
    fact = f"never entered {what}, in which {_ranks_text(waited)} waited{since} until the time-out"
    if stack := waiting_frame(first.stack):
        fact += f"; it was at {stack}"
    if len(absent) > 1:
        fact += f"; nor did {_ranks_text(absent, but=first)}"
    return fact


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:1000]


def _ranks_text(exits: Iterable[RankExit], *, but: RankExit | None = None) -> str:
    return ranks_text(one.rank for one in exits if one is not but)
