"""Answers of Slurm's commands that are not the result: the kind of each failure, from its text.

Source: the error messages of Slurm 22.05, and the lines that ``sbatch`` prints before them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.safe_repr import printable_line


class FailureKind(StrEnum):
    """Kind of a failure of one of Slurm's commands."""

    #: Slurm refused it, and would refuse it again.
    NEVER = "never"
    #: A limit of submitted jobs is reached. The job was not accepted, and may be later.
    LIMIT = "limit"
    #: The partition, its nodes or its reservation take no jobs now. The job was not accepted, and may be later.
    NOT_NOW = "not_now"
    #: The controller limits the rate of requests. The request was not carried out.
    RATE_LIMITED = "rate_limited"
    #: The controller may have carried out the request: the answer was lost.
    AMBIGUOUS = "ambiguous"
    #: The controller does not answer, or takes no requests for now. The request was not carried out.
    AWAY = "away"
    #: The account cannot use Slurm from this login: its credentials have expired or are refused.
    LOGIN = "login"
    #: The program is not on the machine.
    MISSING = "missing"
    #: The job is not known to the controller.
    NO_JOB = "no_job"
    #: The text is not known.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class CommandFailure:
    """Failure of one of Slurm's commands."""

    kind: FailureKind
    #: Slurm's own lines without the names of programs, one line.
    message: str


def _any(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(texts), re.IGNORECASE)


#: In this order: the first that occurs in the text decides. The kinds that forbid a second submission come first.
_TEXTS: Final[tuple[tuple[FailureKind, re.Pattern[str]], ...]] = (
    (
        FailureKind.AMBIGUOUS,
        _any(
            r"Unexpected message received",
            r"Socket timed out on send/recv operation",
            r"Zero Bytes were transmitted or received",
            r"\bMessage (?:receive|send) failure",
            r"controller \((?:receive|send|shutdown) failure\)",
            r"Communication shutdown failure",
            r"Connection reset by peer",
            r"Received zero length message",
            r"Failed to send entire message",
            r"Insane message length",
            r"Header lengths are longer than data received",
            r"Transport endpoint is not connected",
            r"Resource temporarily unavailable",
            r"Slurm temporarily unable to accept job",
            r"Job update not available right now",
        ),
    ),
    (
        FailureKind.RATE_LIMITED,
        _any(r"rate limit", r"RPC limit exceeded", r"too many (?:requests|RPCs)", r"SLURM_BACKOFF"),
    ),
    (
        FailureKind.LOGIN,
        _any(
            r"credentials? (?:have |has |is )?expired",
            r"(?:password|account|ticket|token|key) (?:has |have |is )?expired",
            r"\bAccess denied\b.{0,40}(?:login|account)",
            r"Permission denied \((?:publickey|keyboard|gssapi|password)",
            r"munge.{0,60}(?:denied|expired|rewound|unauthorized)",
            r"Authentication credential expired",
            r"Failed to authenticate",
        ),
    ),
    (
        FailureKind.AWAY,
        _any(
            r"controller \(connect failure\)",
            r"Communication connection failure",
            r"Connection refused",
            r"No route to host",
            r"controller in standby mode",
            r"Controller is in standby mode",
            r"Could not establish a configuration source",
            r"failed to fetch config",
            r"System submissions disabled",
            r"Slurm controller not responding",
            r"Unable to create job record, try again",
            r"Protocol authentication error",
            r"Failed to connect to authentication agent",
            r"(?:munge|auth).{0,80}(?:No such file or directory|Connection refused|socket)",
            r"Unable to connect to database",
            r"Problem talking to (?:the )?database",
            r"Incompatible versions of client and server code",
            r"Slurm internal error",
            r"(?:Invalid authentication credential|Authentication credential invalid|Cannot unpack credential)",
            r"Failed to open authentication public key",
            r"Error generating job credential",
            r"I/O error writing script/environment to file",
            r"Plugin initialization failed",
            r"Requested operation is presently disabled",
        ),
    ),
    (
        FailureKind.LIMIT,
        _any(
            r"(?:Assoc|QOS)(?:Grp|Max)SubmitJobs?\w*Limit",
            r"MaxSubmitJobsPerAccount",
            r"Job violates accounting/QOS policy",
        ),
    ),
    (
        FailureKind.NOT_NOW,
        _any(
            r"Requested partition configuration not available now",
            r"Requested nodes are busy",
            r"Requested reservation (?:is in use|not usable now)",
            r"Required (?:node|partition) not available",
            r"Partition in DOWN state",
            r"breached requested QOS usage threshold",
            r"Required ports are in use",
            r"due to maintenance reservation",
        ),
    ),
    (FailureKind.NO_JOB, _any(r"Invalid job id", r"Job/step already completing or completed")),
    (
        FailureKind.MISSING,
        _any(r"(?:command )?not found\s*$", r"No such file or directory\s*$"),
    ),
    (
        FailureKind.NEVER,
        _any(
            r"Batch job submission failed",
            r"unrecognized option",
            r"invalid option",
            r"option .{0,80} (?:is ambiguous|requires an argument|doesn't allow an argument)",
            r"Invalid .{0,80}(?:specification|argument|value|name)",
            r"mutually exclusive",
            r"Unable to open file",
            r"does not support",
            r"\bsbatch: (?:error|fatal):",
        ),
    ),
)
#: A limit per job that the same line names makes the policy's refusal final.
_PER_JOB: Final = _any(r"(?:Assoc|QOS)(?:Max\w+Per(?:Job|Node)\w*|Min\w+)")
_PREFIX: Final = re.compile(
    r"^(?:sbatch|squeue|scancel|scontrol|sinfo|sacct|srun): (?:error: |fatal: |warning: )?", re.I
)
_HEAD: Final = "Batch job submission failed: "


def command_failure(exit_code: int, stderr: str) -> CommandFailure:
    """Return the kind of a failure of one of Slurm's commands.

    :param exit_code: exit status of the command; 124: it was ended at its deadline
    :param stderr: its standard error
    """
    lines = [_PREFIX.sub("", line).removeprefix(_HEAD).strip() for line in escaped(stderr).splitlines()]
    message = printable_line(" ".join(line if line.endswith(".") else f"{line}." for line in lines if line), 1000)
    if exit_code in (126, 127):
        return CommandFailure(kind=FailureKind.MISSING, message=message or "The program was not found.")
    if exit_code in (124, 137, 143) or exit_code < 0:
        text = "The command did not end within its deadline."
        return CommandFailure(kind=FailureKind.AMBIGUOUS, message=f"{text} {message}".strip())
    kind = next((kind for kind, pattern in _TEXTS if pattern.search(stderr)), FailureKind.UNKNOWN)
    if kind == FailureKind.LIMIT and _PER_JOB.search(stderr):
        kind = FailureKind.NEVER
    return CommandFailure(kind=kind, message=message or f"The command ended with exit code {exit_code} and no message.")
