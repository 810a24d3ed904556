"""All errors that this package raises, with the kind that decides how a failure is handled.

::

    DtrainError                        kind = platform
    ├── UserError                      kind = user
    │   ├── ConfigError                all problems of a document at once
    │   │   └── UnsupportedFieldError  the field is known, its feature is not implemented yet
    │   ├── ExpressionError            a filter expression cannot be read; carries the place
    │   ├── SubmissionRefusedError     an external scheduler refuses a job for good
    │   ├── JobFailedError             the external job of a gang ended by a fault of the user's code or setup
    │   ├── UnplaceableError           no set of the pool's hosts can ever serve the request
    │   ├── PayloadError               the user code cannot be packed
    │   ├── NotFoundError              a template, pool, host, trial ... that does not exist
    │   ├── ConflictError              the named object exists already, or is in use
    │   ├── RankFailedError            the training code failed; carries rank, host, traceback
    │   │   └── TrainingRefusedError   the training library rejected its use or configuration: a restart fails again
    │   ├── InvalidHPError             the training code rejected its hyperparameters
    │   ├── ShardFailedError           a rank ended or hung while it processed a shard of a batch inference
    │   ├── BadShardError              a shard of a batch inference failed too often: a restart fails again
    │   ├── CollectError               results cannot be put into their folder on the Airflow machine
    │   ├── LogPolicyError             a line of a log matched a policy that cancels retries
    │   ├── MetricMissingError         a trial ended without the metric that the searcher needs
    │   ├── SearchFailedError          no trial of a search completed or was stopped
    │   ├── GangEndedError             the held gang was released, has expired, or the token is of an older grant
    │   ├── GangMismatchError          the configuration requests other slots than the held gang has
    │   ├── FunctionError              a decorated function cannot be sent, or its arguments or result are not JSON
    │   ├── EnvironmentMissingError    the host lacks python, a module or a folder
    │   │   └── ImageError             the image cannot be downloaded, or no container can run its Python
    │   ├── EnvironmentBuildError      the packages of the lock file cannot be installed on a host
    │   │   └── EnvironmentTimeoutError  they were not installed within environment.build_timeout
    │   ├── ExecutionTimeoutError      the task's execution_timeout has passed
    │   ├── MaxRuntimeError            the configuration's max_runtime has passed
    │   ├── RankHangsError             a live rank blocked its gang for hang_timeout
    │   ├── TrialKilledError           a user stopped the trial
    │   └── LoginError                 a client has no token, or the server refuses it
    ├── SchedulerAwayError             kind = platform; an external scheduler does not answer, or not clearly
    ├── RunEndedError                  kind = platform; a run ended, but neither its code nor its host failed
    ├── TaskEndedError                 kind = platform; Airflow ended the task that followed the trial
    ├── ServerError                    kind = platform; the server of a client does not answer, or not as expected
    ├── StoreError                     kind = platform
    │   ├── StoreUnavailableError      the database does not answer, or is locked: retry
    │   ├── StoreNotMigratedError      the schema is not the one of this code
    │   ├── StaleWatchError            another follower took over this attempt: stop silently
    │   │   └── StoreSetBackError      the store lost commits of the attempt's follower: read its state again
    │   └── IllegalTransitionError     a state change that core.lifecycle does not know
    └── HostError                      kind = infra
        ├── HostUnreachableError       no connection
        ├── HostKeyError               the host key is unknown or has changed
        ├── HostAuthError              the host refused the credentials
        ├── HostProtocolError          the host broke the protocol
        ├── HostRefusedError           the supervisor refused a command, with its reason
        ├── HostLostError              a host rebooted, or its run vanished
        │   └── HostSilentError        a host did not answer for so long that its run must have ended itself
        ├── SlotsTakenError            an external scheduler took the slots back: time limit, preemption
        ├── ResultsLostError           results of a batch inference did not arrive from the host
        ├── HostSlowError              a check found the host slow, and its pool leaves such hosts out
        ├── ProcessStuckError          a rank's process could not run for hang_timeout
        ├── SlotBusyError              another run holds the lock of a slot
        ├── SlurmUnavailableError      Slurm's controller does not answer, or is too busy: nothing is known of jobs
        └── NetworkPathError           no network path from one host of the gang to another

    UsageError                         the arguments of a command cannot be used, or not together
    NotNowError                        a request cannot be served now, but may be later

``user`` failures count against ``max_restarts``, except those that are attributed to a shard. ``infra`` failures
exclude the host for that trial and are not counted. ``platform`` failures are retried with back-off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

Kind = Literal["user", "platform", "infra"]
#: Number of problems that the text of a ConfigError lists; ``problems`` has all of them.
SHOWN_PROBLEMS = 100
#: Maximum length of the path of a problem, in characters.
PATH_LIMIT = 200
#: Characters of a filter expression that its error shows, before and from the place of the error.
_SHOWN_BEFORE, _SHOWN_AFTER = 40, 30


def _shown_path(path: str) -> str:
    name, equals, _ = path.partition("=")
    return (name if len(name) <= PATH_LIMIT else f"{name[:PATH_LIMIT]}...") + ("=..." if equals else "")


class DtrainError(Exception):
    """Base class of the provider's errors."""

    kind: ClassVar[Kind] = "platform"
    #: Kind of the cause of a trial's end, e.g. ``out_of_memory``; None: not known. docs/failures.md lists them.
    cause_kind: str | None = None


class UsageError(Exception):
    """Arguments that cannot be used, or not together. The exit code of a command is 2."""


class NotNowError(Exception):
    """A request that cannot be served now, but may be later. The exit code of a command is 3."""


class UserError(DtrainError):
    """The configuration or the user's code is at fault."""

    kind: ClassVar[Kind] = "user"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem of a document."""

    #: Dotted path of the field, e.g. ``resources.slots_per_trial``; empty for the document itself.
    path: str
    #: The problem, with the value found and the values accepted.
    message: str

    def __post_init__(self) -> None:
        """Shorten a long path, and cut it after an equals sign: a key may be ``DB_PASSWORD=...``."""
        if len(self.path) > PATH_LIMIT or "=" in self.path:
            object.__setattr__(self, "path", _shown_path(self.path))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(UserError):
    """A configuration or template is not valid. Carries every problem found."""

    cause_kind = "configuration"

    def __init__(self, problems: Sequence[Problem], *, source: str = "configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = len(self.problems)
        # The reason of a trial in a list is the first line of its failure.
        if count == 1:
            super().__init__(f"{source}: {self.problems[0]}")
            return
        lines = [f"{source}: {count} problems", *(f"  {problem}" for problem in self.problems[:SHOWN_PROBLEMS])]
        if count > SHOWN_PROBLEMS:
            lines.append(f"  and {count - SHOWN_PROBLEMS} more")
        super().__init__("\n".join(lines))


class UnsupportedFieldError(ConfigError):
    """The document uses a field whose feature this version does not implement."""


class ExpressionError(UserError):
    """A filter expression cannot be read.

    :param message: the reason, in words
    :param source: the expression
    :param at: index of the character at which it cannot be read
    """

    def __init__(self, message: str, source: str, at: int) -> None:
        self.at = at
        start = max(0, at - _SHOWN_BEFORE)
        shown = "".join(c if c.isprintable() else " " for c in source[start : at + _SHOWN_AFTER])
        super().__init__(
            f"The expression is wrong at character {at + 1}: {message}\n  {shown}\n  {' ' * (at - start)}^"
        )


class UnplaceableError(UserError):
    """No set of the pool's hosts can ever serve this request."""

    cause_kind = "unplaceable"


class SubmissionRefusedError(UserError):
    """An external scheduler refuses a job, and would refuse it again."""


class JobFailedError(UserError):
    """The external job that held the slots of a gang ended by a fault of the user's code or of the pool's setup."""


class SchedulerAwayError(DtrainError):
    """An external scheduler does not answer, or its answer leaves open whether it has done what it was asked for.

    :param is_rate_limited: it answered that it gets too many requests
    :param is_ambiguous: it may have done what it was asked for
    """

    def __init__(self, message: str, *, is_rate_limited: bool = False, is_ambiguous: bool = False) -> None:
        super().__init__(message)
        self.is_rate_limited = is_rate_limited
        self.is_ambiguous = is_ambiguous


class PayloadError(UserError):
    """The user code cannot be packed for the hosts."""


class NotFoundError(UserError):
    """The named object does not exist."""


class ConflictError(UserError):
    """The named object exists already or is in use."""


class LoginError(UserError):
    """The client has no token for its server, or the server refuses it."""


class ServerError(DtrainError):
    """The server of a client does not answer, or not as this client expects."""


class ExecutionTimeoutError(UserError):
    """The trial did not end within the task's execution_timeout."""

    cause_kind = "time_limit"


class MaxRuntimeError(UserError):
    """The run used up the ``max_runtime`` of its configuration."""

    cause_kind = "time_limit"


class RankHangsError(UserError):
    """A rank that was able to run made no progress for ``hang_timeout`` while other ranks waited for it.

    Or the ranks wait for each other in exchanges that never meet. The program hangs. It would hang again on another
    host, so the failure counts against ``max_restarts``.

    :param rank: the rank; None: not known
    :param host: its host; None: not known
    :param cause_kind: ``hang``, ``mismatch`` or ``missing``
    """

    def __init__(
        self, message: str, *, rank: int | None = None, host: str | None = None, cause_kind: str = "hang"
    ) -> None:
        self.cause_kind = cause_kind
        self.rank = rank
        self.host = host
        super().__init__(message)


class TrialKilledError(UserError):
    """A user stopped the trial."""

    cause_kind = "killed_by_user"


class TaskEndedError(DtrainError):
    """Airflow ended the task that followed the trial.

    A user marked or cleared the task, or Airflow lost it. In the latter case Airflow runs the same task again, and the
    trial resumes.
    """

    cause_kind = "task_ended"


class EnvironmentMissingError(UserError):
    """A host lacks the interpreter, a module or a folder that this configuration needs."""

    cause_kind = "environment"


class ImageError(EnvironmentMissingError):
    """The image of a configuration cannot be downloaded, or no container can be started with its Python."""

    cause_kind = "image"


class EnvironmentBuildError(UserError):
    """The packages of a lock file cannot be installed on a host.

    :param host: name of the host
    :param message: fact, limit, next step
    :param package: name and version of the package at fault; None: not known
    :param lines: last lines of the program that builds
    """

    cause_kind = "environment"

    def __init__(self, host: str, message: str, *, package: str | None = None, lines: Sequence[str] = ()) -> None:
        self.host = host
        self.package = package
        super().__init__("\n".join([f"Host '{host}' cannot build the environment: {message}", *lines]))


class EnvironmentTimeoutError(EnvironmentBuildError):
    """The packages of a lock file were not installed on a host within ``environment.build_timeout``.

    :param message: the part of the build that was not finished
    :param limit_s: the limit
    """

    def __init__(self, host: str, message: str, *, limit_s: float, lines: Sequence[str] = ()) -> None:
        fix = "Set environment.build_timeout to more, or use wheels that are nearer to the host."
        super().__init__(host, f"it was not ready after {limit_s:g} s. {message} {fix}", lines=lines)


class InvalidHPError(UserError):
    """The training code rejected its hyperparameters: another attempt would reject them as well."""

    cause_kind = "hyperparameters"


class FailedShard(TypedDict):
    """Shard of a batch inference to which a failure is attributed."""

    #: Number of the shard.
    index: int
    #: Source and rows of the shard in words.
    label: str
    #: Shards that the attempt finished.
    finished: int


class ShardFailedError(UserError):
    """A rank ended or hung while it processed a shard of a batch inference.

    The failure is attributed to the shard and does not count against ``max_restarts``.

    :param error: the failure of the rank
    :param shard: number of the shard
    :param label: source and rows of the shard in words
    :param finished: shards that the attempt finished
    """

    def __init__(self, error: DtrainError, *, shard: int, label: str, finished: int) -> None:
        self.rank: int | None = getattr(error, "rank", None)
        self.host: str | None = getattr(error, "host", None)
        self.shard: FailedShard = {"index": shard, "label": label, "finished": finished}
        head, newline, rest = str(error).partition("\n")
        stop = "" if head.endswith((".", "!", "?")) else "."
        super().__init__(f"{head}{stop} It was processing shard {shard} ({label}).{newline}{rest}")


class BadShardError(UserError):
    """A shard of a batch inference failed too often. Another attempt would fail in the same way."""


class CollectError(UserError):
    """The fetched results of a batch inference cannot be put into their folder on the Airflow machine."""


class LogPolicyError(UserError):
    """A line of a rank's log matched a policy with the action cancel_retries.

    :param rank: the rank
    :param host: its host
    :param cause_kind: that of the failure to which the policy was applied
    """

    def __init__(
        self, message: str, *, rank: int | None = None, host: str | None = None, cause_kind: str | None = None
    ) -> None:
        self.rank = rank
        self.host = host
        self.cause_kind = cause_kind
        super().__init__(message)


class MetricMissingError(UserError):
    """No validation of a trial reported the metric that the searcher needs."""


class SearchFailedError(UserError):
    """No trial of a search has a result."""


class GangEndedError(UserError):
    """A held gang was released or has expired, or the token belongs to an older grant."""


class GangMismatchError(UserError):
    """A configuration requests other slots than the held gang has that it should use."""


class FunctionError(UserError):
    """A decorated function cannot run on a host, or its arguments or result are not JSON."""


class RankFailedError(UserError):
    """The training code failed. The first failing rank is the cause.

    :param rank: global rank that failed first
    :param host: name of its host
    :param exit_code: exit code, negative for a signal
    :param traceback: the rank's Python traceback, or its last log lines
    :param message: the rank's own message about the failure; its first line is part of this error's message
    :param when: time of the failure in words; empty: not known
    :param advice: the next step as a sentence
    :param cause_kind: value of :class:`airflow_provider_dtrain.core.lifecycle.failure_cause.CauseKind`
    """

    def __init__(
        self,
        *,
        rank: int,
        host: str,
        exit_code: int | None,
        traceback: str,
        message: str = "",
        when: str = "",
        advice: str = "",
        cause_kind: str | None = None,
    ) -> None:
        self.cause_kind = cause_kind
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.traceback = traceback
        how = f"exit code {exit_code}" if (exit_code or 0) >= 0 else f"signal {-(exit_code or 0)}"
        text = traceback.rstrip()
        first = (message.strip().splitlines() or [""])[0]
        how += f" at {when}" if when else ""
        stop = "" if first.endswith((".", "!", "?")) else "."
        head = f"Rank {rank} on host '{host}' failed first ({how}){f': {first}' if first else ''}"
        super().__init__(f"{head}{f'{stop} {advice}' if advice else '' if first else '.'}\n{text}")


class TrainingRefusedError(RankFailedError):
    """The training library rejected its use or configuration. Another attempt would fail in the same way."""


class StoreError(DtrainError):
    """The store could not execute an operation."""


class StoreUnavailableError(StoreError):
    """The database does not answer, or another process keeps it locked."""


class StoreNotMigratedError(StoreError):
    """The schema of the store does not fit this version of the provider."""


class StaleWatchError(StoreError):
    """Another follower has taken over this attempt."""


class StoreSetBackError(StaleWatchError):
    """The store has lost commits of this follower, as after a failover to a replica that lagged behind."""


class IllegalTransitionError(StoreError):
    """A state change that the table of transitions does not allow."""


class RunEndedError(DtrainError):
    """A run ended although neither its code nor its host failed.

    Its lease was not renewed, or it never received the command to start.
    """

    cause_kind = "run_ended"


class HostError(DtrainError):
    """A host is at fault.

    :param host: name of the host
    :param message: the event, the limit, and the next step
    :param rank: the rank whose failure shows it; None: no rank does
    :param cause_kind: kind of the cause; None: that of the class
    """

    kind: ClassVar[Kind] = "infra"

    def __init__(self, host: str, message: str, *, rank: int | None = None, cause_kind: str | None = None) -> None:
        self.host = host
        self.rank = rank
        if cause_kind is not None:
            self.cause_kind = cause_kind
        super().__init__(message)


class HostUnreachableError(HostError):
    """No connection to the host."""

    cause_kind = "host_silent"


class SlotsTakenError(HostError):
    """The external scheduler that owns the slots took them back: their time was over, or a more urgent job got them.

    The trial resumes on other slots. No host is at fault.
    """

    cause_kind = "slots_taken"


class HostSlowError(HostError):
    """A check found the host slower than its peers or than before, and its pool leaves such hosts out."""


class HostKeyError(HostError):
    """The host key is unknown or has changed."""


class HostAuthError(HostError):
    """The host refused the credentials."""


class HostProtocolError(HostError):
    """The host sent something that the protocol does not define."""


class HostRefusedError(HostError):
    """The supervisor refused a command.

    :param code: the supervisor's error code
    :param reason: the supervisor's sentence alone, for errors that name what was asked for themselves
    :param details: the rest of its answer
    """

    def __init__(
        self, host: str, message: str, *, code: str, reason: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(host, message)
        self.code = code
        self.reason = reason or message
        self.details = details or {}


class HostLostError(HostError):
    """The host rebooted, or the run vanished from it."""

    cause_kind = "host_lost"


class HostSilentError(HostLostError):
    """The host did not answer for so long that its supervisor has ended its runs."""

    cause_kind = "host_silent"


class ResultsLostError(HostError):
    """Results of a batch inference did not arrive from a host whose ranks have succeeded. They are computed again."""


class ProcessStuckError(HostError):
    """A rank's process was stopped, or stuck in the kernel, for ``hang_timeout``. Its program is not at fault."""

    cause_kind = "stopped"


class SlotBusyError(HostError):
    """Another run holds the lock of one of the slots.

    :param details: the supervisor's answer: the ``slot``, and the ``run`` that holds it
    """

    def __init__(self, host: str, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(host, message)
        self.details = details or {}


class SlurmUnavailableError(HostError):
    """The controller of a Slurm cluster does not answer, or is too busy. Nothing follows for its jobs.

    :param is_rate_limited: the controller answered that it gets too many requests
    """

    def __init__(self, host: str, message: str, *, is_rate_limited: bool = False) -> None:
        super().__init__(host, message)
        self.is_rate_limited = is_rate_limited


class NetworkPathError(HostError):
    """One host of the gang cannot be reached from another."""
