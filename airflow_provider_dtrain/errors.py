"""Every error this package raises, with the kind that decides what happens next.

::

    DtrainError                        kind = platform
    ├── UserError                      kind = user
    │   ├── ConfigError                all problems of a document at once
    │   │   └── UnsupportedFieldError  the field is known, its feature is not built yet
    │   ├── UnplaceableError           no set of the pool's hosts can ever serve the request
    │   ├── PayloadError               the user code cannot be packed
    │   ├── NotFoundError              a template, pool, host, trial ... that does not exist
    │   ├── ConflictError              the thing exists already, or is in use
    │   ├── RankFailedError            the training code failed; carries rank, host, traceback
    │   │   └── TrainingRefusedError   the training library refused its use or configuration: a restart would, too
    │   ├── InvalidHPError             the training code refused its hyperparameters
    │   ├── LogPolicyError             a line of a log matched a policy that cancels retries
    │   ├── MetricMissingError         a trial ended without the metric that the searcher needs
    │   ├── SearchFailedError          no trial of a search completed or was stopped
    │   ├── GangEndedError             the held gang was released, has expired, or the token is of an older grant
    │   ├── GangMismatchError          the configuration asks for other slots than the held gang has
    │   ├── FunctionError              a decorated function cannot travel, or its arguments or result are no JSON
    │   ├── EnvironmentMissingError    the host lacks python, torch or another module
    │   ├── ExecutionTimeoutError      the task's execution_timeout has passed
    │   ├── MaxRuntimeError            the configuration's max_runtime has passed
    │   ├── RankHangsError             a rank that lives held up its gang for hang_timeout
    │   └── TrialKilledError           a person stopped the trial
    ├── RunEndedError                  kind = platform; a run ended without a fault of its code or its host
    ├── TaskEndedError                 kind = platform; Airflow ended the task that followed the trial
    ├── StoreError                     kind = platform
    │   ├── StoreUnavailableError      the database does not answer, or is locked: try again
    │   ├── StoreNotMigratedError      the schema is older or newer than this code
    │   ├── StaleWatchError            somebody else follows this attempt now: stop silently
    │   │   └── StoreSetBackError      the store lost commits, of the attempt's follower too: look at it anew
    │   └── IllegalTransitionError     a state change that core.lifecycle does not know
    └── HostError                      kind = infra
        ├── HostUnreachableError       no connection
        ├── HostKeyError               the host key is unknown or has changed
        ├── HostAuthError              the host refused the credentials
        ├── HostProtocolError          the host answered nonsense
        ├── HostRefusedError           the supervisor refused a command, with its reason
        ├── HostLostError              a host rebooted, or its run vanished
        │   └── HostSilentError        a host did not answer until its run must have ended itself
        ├── ProcessStuckError          a rank's process could not run for hang_timeout
        ├── SlotBusyError              another run holds the lock of a slot
        └── NetworkPathError           no way from one host of the gang to another

``user`` failures count against ``max_restarts``; ``infra`` failures exclude the host for that
trial and are not counted; ``platform`` failures are retried with back-off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Kind = Literal["user", "platform", "infra"]
#: Problems that the text of a ConfigError lists; ``problems`` has all of them.
SHOWN_PROBLEMS = 100
#: Longest path of a problem.
PATH_LIMIT = 200


def _shown_path(path: str) -> str:
    name, equals, _ = path.partition("=")
    return (name if len(name) <= PATH_LIMIT else f"{name[:PATH_LIMIT]}...") + ("=..." if equals else "")


class DtrainError(Exception):
    """Something went wrong inside the provider."""

    kind: ClassVar[Kind] = "platform"


class UserError(DtrainError):
    """The configuration or the user's code is at fault."""

    kind: ClassVar[Kind] = "user"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a document."""

    #: Dotted path of the field, e.g. ``resources.slots_per_trial``; empty for the document itself.
    path: str
    #: What is wrong, with the value and what is accepted instead.
    message: str

    def __post_init__(self) -> None:
        """Shorten a long path, and cut it behind an equals sign: a key may be ``DB_PASSWORD=...``."""
        if len(self.path) > PATH_LIMIT or "=" in self.path:
            object.__setattr__(self, "path", _shown_path(self.path))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(UserError):
    """A configuration or template is not valid; carries every problem found."""

    def __init__(self, problems: Sequence[Problem], *, source: str = "configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = len(self.problems)
        head = f"{source}: {count} problem{'s' if count != 1 else ''}"
        lines = [head, *(f"  {problem}" for problem in self.problems[:SHOWN_PROBLEMS])]
        if count > SHOWN_PROBLEMS:
            lines.append(f"  and {count - SHOWN_PROBLEMS} more")
        super().__init__("\n".join(lines))


class UnsupportedFieldError(ConfigError):
    """The document uses a field whose feature this version does not have."""


class UnplaceableError(UserError):
    """No set of the pool's hosts can ever serve this request."""


class PayloadError(UserError):
    """The user code cannot be packed for the hosts."""


class NotFoundError(UserError):
    """The named thing does not exist."""


class ConflictError(UserError):
    """The named thing exists already or is in use."""


class ExecutionTimeoutError(UserError):
    """The trial did not end within the task's execution_timeout."""


class MaxRuntimeError(UserError):
    """The run used up the ``max_runtime`` of its configuration."""


class RankHangsError(UserError):
    """A rank that could run made no progress for ``hang_timeout`` while others waited: its program hangs.

    It would hang again on another host, so it counts against ``max_restarts``.
    """


class TrialKilledError(UserError):
    """A person stopped the trial."""


class TaskEndedError(DtrainError):
    """Airflow ended the task that followed the trial.

    A person marked or cleared it, or Airflow lost it: then it runs the same task again, and the trial goes on.
    """


class EnvironmentMissingError(UserError):
    """A host lacks the interpreter or a module that this configuration needs."""


class InvalidHPError(UserError):
    """The training code refused its hyperparameters: another attempt would refuse them as well."""


class LogPolicyError(UserError):
    """A line of a rank's log matched a policy with the action cancel_retries."""


class MetricMissingError(UserError):
    """No validation of a trial reported the metric that the searcher needs."""


class SearchFailedError(UserError):
    """No trial of a search has a result."""


class GangEndedError(UserError):
    """A held gang is not there any more, or not the one that is meant."""


class GangMismatchError(UserError):
    """A configuration asks for other slots than the held gang that it should use."""


class FunctionError(UserError):
    """A decorated function cannot run on a host, or what goes in or comes out is no JSON."""


class RankFailedError(UserError):
    """The training code failed; the first failing rank is the cause.

    :param rank: global rank that failed first
    :param host: name of its host
    :param exit_code: exit code, negative for a signal
    :param traceback: the rank's Python traceback, or its last log lines
    :param message: what it said of the failure; its first line is shown in ours
    """

    def __init__(self, *, rank: int, host: str, exit_code: int | None, traceback: str, message: str = "") -> None:
        self.rank, self.host, self.exit_code, self.traceback = rank, host, exit_code, traceback
        how = f"exit code {exit_code}" if (exit_code or 0) >= 0 else f"signal {-(exit_code or 0)}"
        text, first = traceback.rstrip(), (message.strip().splitlines() or [""])[0]
        super().__init__(f"Rank {rank} on host '{host}' failed first ({how}){f': {first}' if first else '.'}\n{text}")


class TrainingRefusedError(RankFailedError):
    """The training library refused how it was used or configured; another attempt would end the same."""


class StoreError(DtrainError):
    """The store could not do what was asked."""


class StoreUnavailableError(StoreError):
    """The database does not answer, or somebody else keeps it locked."""


class StoreNotMigratedError(StoreError):
    """The schema of the store does not fit this version of the provider."""


class StaleWatchError(StoreError):
    """Somebody else follows this attempt now."""


class StoreSetBackError(StaleWatchError):
    """The store has lost commits of this follower, as after a failover to a replica that lagged behind."""


class IllegalTransitionError(StoreError):
    """A state change that the table of transitions does not allow."""


class RunEndedError(DtrainError):
    """A run ended although neither its code nor its host failed: nobody renewed its lease, or it never got its go."""


class HostError(DtrainError):
    """A host is at fault.

    :param host: name of the host
    :param message: what happened, the limit, the next step
    """

    kind: ClassVar[Kind] = "infra"

    def __init__(self, host: str, message: str) -> None:
        self.host = host
        super().__init__(message)


class HostUnreachableError(HostError):
    """No connection to the host."""


class HostKeyError(HostError):
    """The host key is unknown or has changed."""


class HostAuthError(HostError):
    """The host refused the credentials."""


class HostProtocolError(HostError):
    """The host answered something that the protocol does not know."""


class HostRefusedError(HostError):
    """The supervisor refused a command.

    :param code: the supervisor's error code
    :param details: the rest of its answer
    """

    def __init__(self, host: str, message: str, *, code: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(host, message)
        self.code = code
        self.details = details or {}


class HostLostError(HostError):
    """The host rebooted, or the run vanished from it."""


class HostSilentError(HostLostError):
    """The host did not answer for so long that its supervisor has ended what ran there."""


class ProcessStuckError(HostError):
    """A rank's process was stopped, or stuck in the kernel, for ``hang_timeout``: no fault of its program."""


class SlotBusyError(HostError):
    """Another run holds the lock of one of the slots.

    :param details: the supervisor's answer: ``slot``, and the ``run`` that holds it
    """

    def __init__(self, host: str, message: str, *, details: dict[str, Any] | None = None) -> None:
        super().__init__(host, message)
        self.details = details or {}


class NetworkPathError(HostError):
    """One host of the gang cannot be reached from another."""
