"""Log policies: the handling of a failed attempt by lines in its ranks' logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind
from airflow_provider_dtrain.errors import DtrainError, HostError, LogPolicyError, RankFailedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.sections import LogPolicy
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Longer than a host may search; see MATCH_WALL_S in supervisor/limits.py.
MATCH_TIMEOUT_S = 60.0
#: Kinds of causes that say what to do. For other ones, the line that the user has chosen says more.
_SPECIFIC = frozenset(CauseKind) - {
    CauseKind.EXCEPTION,
    CauseKind.EXIT_CODE,
    CauseKind.EARLY_END,
    CauseKind.CONNECTION,
    CauseKind.MISSING,
}


@dataclass(frozen=True, kw_only=True)
class PolicyMatch:
    """A line of a rank's log that matches a policy."""

    name: str
    #: None: the match is only logged.
    action: str | None
    host: str
    rank: int
    line: str

    def __str__(self) -> str:
        policy = f"Log policy '{self.name}' ({self.action or 'no action'})"
        return f"{policy} matches a line of rank {self.rank} on '{self.host}': {self.line}"


async def find_matches(rt: Runtime, view: AttemptView, policies: Sequence[LogPolicy]) -> list[PolicyMatch]:
    """Return the first matching line per policy and host, in the order of the policies.

    The hosts search the logs themselves, all ranks to the last byte that ``log_limit`` kept, after the attempt has
    failed: while it runs, policies cost nothing. If a host cannot answer, a warning is logged.
    """
    active = [policy for policy in policies if policy.pattern]
    if not active or view.run is None:
        return []
    hosts = list(view.placement)
    answers = await asyncio.gather(*(_ask(rt, view, host, active) for host in hosts), return_exceptions=True)
    found: list[tuple[int, PolicyMatch]] = []
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, HostError):
            rt.log.warning("The logs on host '%s' could not be searched for log_policies: %s", host, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += _matches(rt, host, active, answer, await rt.redactor())
    return [match for _, match in sorted(found, key=lambda pair: pair[0])]


async def apply_policies(
    rt: Runtime, view: AttemptView, policies: Sequence[LogPolicy], error: DtrainError
) -> DtrainError:
    """Return the failure after the policies were applied, or ``error`` when none of them matches.

    ``cancel_retries`` comes before ``exclude_host``: a trial that must not start again does not need another host.
    """
    matches = await find_matches(rt, view, policies)
    for match in matches:
        if match.action == "cancel_retries":
            message = _message(match, "The trial is not started again.", error)
            rank, host = _blamed(match, error)
            return LogPolicyError(message, rank=rank, host=host, cause_kind=error.cause_kind)
    for match in matches:
        if match.action == "exclude_host":
            message = _message(match, "The host is left out of this trial.", error)
            return HostError(match.host, message, rank=_blamed(match, error)[0], cause_kind=error.cause_kind)
        rt.log.warning("%s", match)
    return error


def _blamed(match: PolicyMatch, error: DtrainError) -> tuple[int, str]:
    """Return rank and host that the first line of the message names."""
    if isinstance(error, RankFailedError) and error.cause_kind in _SPECIFIC:
        return error.rank, error.host
    return match.rank, match.host


def _message(match: PolicyMatch, consequence: str, error: DtrainError) -> str:
    """Return the message of a failure to which a policy was applied. The cause comes first where it is specific."""
    if error.cause_kind not in _SPECIFIC:
        return f"{match}\n{consequence} {error}"
    cause, _, rest = str(error).partition("\n")
    return f"{cause}\n{consequence} {match}\n{rest}".rstrip("\n")


async def _ask(rt: Runtime, view: AttemptView, host: str, policies: Sequence[LogPolicy]) -> JsonObject:
    patterns = [policy.pattern for policy in policies]
    return await rt.call(host, "match", timeout_s=MATCH_TIMEOUT_S, run=view.run, patterns=patterns)


def _matches(
    rt: Runtime, host: str, policies: Sequence[LogPolicy], answer: JsonObject, redactor: Redactor
) -> list[tuple[int, PolicyMatch]]:
    found = []
    for index, policy in enumerate(policies):
        name = policy.name or str(policy.pattern)
        match = answer["matches"].get(str(index))
        if match:
            line = redactor.rank_text(str(match["line"]))
            found.append(
                (index, PolicyMatch(name=name, action=policy.action, host=host, rank=match["rank"], line=line))
            )
        elif index in answer["unfinished"]:
            rt.log.warning("Log policy '%s' took too long on the logs of host '%s' and was given up", name, host)
        elif refused := answer["refused"].get(str(index)):
            rt.log.warning("Log policy '%s' cannot be used on host '%s': %s", name, host, refused)
    return found
