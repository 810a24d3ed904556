"""Outcome of an attempt, in a form that fits into an Airflow trigger event."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from airflow_provider_dtrain import errors
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.failure_groups import FAILED_RANK
from airflow_provider_dtrain.errors import DtrainError, FailedShard, Kind

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.xcom_result import TrialResult
    from airflow_provider_dtrain.engine.session.runtime import Runtime

State = Literal["completed", "stopped", "errored", "killed"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Reason why an attempt failed."""

    #: Name of the class in :mod:`airflow_provider_dtrain.errors`.
    error: str
    kind: Kind
    message: str
    host: str | None = None
    rank: int | None = None
    #: Kind of the cause, e.g. ``out_of_memory``; None: not known.
    cause_kind: str | None = None
    #: Shard of a batch inference to which the failure is attributed.
    shard: FailedShard | None = None

    @classmethod
    def of(cls, error: DtrainError) -> Failure:
        """Return the failure that an exception describes."""
        return cls(
            error=type(error).__name__,
            kind=error.kind,
            message=str(error),
            host=getattr(error, "host", None),
            rank=getattr(error, "rank", None),
            cause_kind=error.cause_kind,
            shard=getattr(error, "shard", None),
        )

    @property
    def cause(self) -> str:
        """The cause in one line: of a rank that failed, its own message comes first."""
        line = self.message.strip().partition("\n")[0]
        found = FAILED_RANK.fullmatch(line)
        return line if found is None else f"{found['own']} (rank {found['where']})"

    @property
    def brief(self) -> DtrainError:
        """An exception of the same class with the cause as its message."""
        return replace(self, message=self.cause).exception()

    def exception(self) -> DtrainError:
        """Return an exception of the same class and message."""
        found = getattr(errors, self.error, None)
        if not (isinstance(found, type) and issubclass(found, DtrainError)):
            found = DtrainError
        rebuilt: DtrainError = found.__new__(found)
        Exception.__init__(rebuilt, self.message)
        return rebuilt


async def failure_dict(rt: Runtime, error: DtrainError) -> JsonObject:
    """Return a failure as the store keeps it, with the trial's secrets masked."""
    redactor = await rt.redactor()
    found = asdict(Failure.of(error))
    return {**found, "message": redactor.text(found["message"]), "shard": redactor.value(found["shard"])}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a trial."""

    state: State
    #: The operator's XCom.
    result: TrialResult | None = None
    failure: Failure | None = None

    def to_dict(self) -> JsonObject:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: JsonObject) -> Outcome:
        """Return the outcome from the result of :meth:`to_dict`."""
        failure = value.get("failure")
        return cls(state=value["state"], result=value.get("result"), failure=Failure(**failure) if failure else None)
