"""States of a Slurm job, as ``squeue``, ``scontrol`` and ``sacct`` print them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """State of a job, with the meaning that users read."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> JobState:
        """Return a member with its sentence."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member

    PENDING = "PENDING", "Slurm has not started the job yet."
    CONFIGURING = "CONFIGURING", "Slurm prepares the nodes of the job, which may have to boot."
    RUNNING = "RUNNING", "The job runs."
    SUSPENDED = "SUSPENDED", "Slurm suspended the job, and other jobs may use its CPUs."
    STOPPED = "STOPPED", "The job is stopped and keeps its nodes."
    RESIZING = "RESIZING", "The size of the job changes."
    SIGNALING = "SIGNALING", "The job gets a signal."
    STAGE_OUT = "STAGE_OUT", "Slurm copies files of the job."
    COMPLETING = "COMPLETING", "The job ends, and processes of it may still be on some nodes."
    REQUEUED = "REQUEUED", "The job was put back into the queue."
    REQUEUE_HOLD = "REQUEUE_HOLD", "The job was put back into the queue and is held."
    REQUEUE_FED = "REQUEUE_FED", "The federation puts the job back into the queue."
    SPECIAL_EXIT = "SPECIAL_EXIT", "The job was put back into the queue in a special state and is held."
    RESV_DEL_HOLD = "RESV_DEL_HOLD", "The job is held because its reservation was deleted."
    BOOT_FAIL = "BOOT_FAIL", "A node of the job could not be started."
    CANCELLED = "CANCELLED", "The job was cancelled."
    COMPLETED = "COMPLETED", "The job ended with exit code 0."
    DEADLINE = "DEADLINE", "The job was ended at its deadline."
    FAILED = "FAILED", "The job ended with an error."
    LAUNCH_FAILED = "LAUNCH_FAILED", "Slurm could not start the job on its nodes."
    NODE_FAIL = "NODE_FAIL", "A node of the job failed."
    OUT_OF_MEMORY = "OUT_OF_MEMORY", "A process of the job used more memory than the job has."
    PREEMPTED = "PREEMPTED", "Slurm ended the job for a more urgent one."
    RECONFIG_FAIL = "RECONFIG_FAIL", "A node of the job could not be configured."
    REVOKED = "REVOKED", "Another cluster of the federation started the job."
    TIMEOUT = "TIMEOUT", "The job reached its time limit."
    UNKNOWN = "UNKNOWN", "Slurm reports a state that is not known here."


#: States in which a job waits for nodes.
WAITING: Final = frozenset(
    [JobState.PENDING, JobState.REQUEUED, JobState.REQUEUE_HOLD, JobState.REQUEUE_FED, JobState.SPECIAL_EXIT]
    + [JobState.RESV_DEL_HOLD]
)
#: States in which a job has nodes.
RUNNING: Final = frozenset(
    [JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPED, JobState.RESIZING]
    + [JobState.SIGNALING, JobState.STAGE_OUT]
)
#: States after which a job has no process, once no node of it is COMPLETING. They never change.
FINAL: Final = frozenset(
    [JobState.BOOT_FAIL, JobState.CANCELLED, JobState.COMPLETED, JobState.DEADLINE, JobState.FAILED]
    + [JobState.LAUNCH_FAILED, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.PREEMPTED, JobState.RECONFIG_FAIL]
    + [JobState.REVOKED, JobState.TIMEOUT]
)
#: Compact codes of states, as some formats print them.
_CODES: Final = {
    "BF": JobState.BOOT_FAIL, "CA": JobState.CANCELLED, "CD": JobState.COMPLETED, "CF": JobState.CONFIGURING,
    "CG": JobState.COMPLETING, "DL": JobState.DEADLINE, "F": JobState.FAILED, "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY, "PD": JobState.PENDING, "PR": JobState.PREEMPTED, "R": JobState.RUNNING,
    "RD": JobState.RESV_DEL_HOLD, "RF": JobState.REQUEUE_FED, "RH": JobState.REQUEUE_HOLD, "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING, "RV": JobState.REVOKED, "SI": JobState.SIGNALING, "SE": JobState.SPECIAL_EXIT,
    "SO": JobState.STAGE_OUT, "ST": JobState.STOPPED, "S": JobState.SUSPENDED, "TO": JobState.TIMEOUT,
    "LF": JobState.LAUNCH_FAILED,
}  # fmt: skip


def job_state(text: str) -> JobState:
    """Return the state in a text such as ``RUNNING``, ``CG``, ``CANCELLED by 1000`` or ``COMPLETED,COMPLETING``."""
    flags = text.strip().partition(" ")[0].replace("+", ",").split(",")
    states = [_one(flag) for flag in flags if flag]
    if JobState.COMPLETING in states:
        return JobState.COMPLETING
    return states[0] if states else JobState.UNKNOWN


def _one(text: str) -> JobState:
    if text in _CODES:
        return _CODES[text]
    return JobState.__members__.get(text, JobState.UNKNOWN)
