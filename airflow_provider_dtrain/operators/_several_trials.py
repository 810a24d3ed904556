"""Tasks that run several trials of a search: the trials of the plan, and the end of the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider_dtrain.core.safe_repr import printable_line
from airflow_provider_dtrain.core.search.names import ended_name
from airflow_provider_dtrain.engine.logs.task_log import section_prefix
from airflow_provider_dtrain.errors import ConfigError, DtrainError, Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.engine.attempt.xcom_result import TrialResult
    from airflow_provider_dtrain.store.records.trials import Ticket
    from airflow_provider_dtrain.triggers._followed_trial import TrialEvent

#: Failed trials that the error of the task names, and most characters of the cause of each.
MOST_NAMED, CAUSE_CHARS = 10, 300


class SeveralResults(TypedDict):
    """XCom of a task that ran several trials."""

    experiment_id: int
    trials: list[TrialResult]


@dataclass(frozen=True, kw_only=True)
class FinishedTrial:
    """A trial of the task that has ended."""

    trial_id: int
    #: Number and hyperparameters.
    name: str
    #: How it ended, in a few words.
    ending: str
    outcome: Outcome


def trials_of(planned: Mapping[str, Any] | None) -> list[Mapping[str, Any]] | None:
    """Return the trials of an element of a plan, or None if the element is one trial.

    :raises ConfigError: the element has been changed
    """
    if planned is None or "trials" not in planned:
        return None
    trials = planned["trials"]
    is_list = isinstance(trials, Sequence) and all(isinstance(one, Mapping) for one in trials)
    if not is_list or not trials or {one.get("search_id") for one in trials} != {planned.get("search_id")}:
        message = "must be the trials of one search, as a PlanTrialsOperator returns them"
        raise ConfigError([Problem(path="trial.trials", message=message)])
    return list(trials)


def ended_trials(planned: Mapping[str, Any], ends: Sequence[TrialEvent]) -> list[FinishedTrial]:
    """Return how the trials of an element of a plan ended, in their order."""
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome

    found = []
    for trial, end in zip(trials_of(planned) or (), ends, strict=True):
        outcome = Outcome.from_dict(end["outcome"])
        name = end.get("name") or str(trial.get("name"))
        ending = end.get("ending") or outcome.state
        found.append(FinishedTrial(trial_id=end["trial_id"], name=name, ending=ending, outcome=outcome))
    return found


def log_begins(log: Any, planned: Mapping[str, Any], tickets: Sequence[Ticket]) -> None:
    """Log which trials the sections of the task log are about.

    :param log: of the task
    """
    log.info("Experiment %d, %d trials. Each line about one begins with it:", tickets[0].experiment_id, len(tickets))
    for ticket, trial in zip(tickets, trials_of(planned) or (), strict=True):
        again = "" if ticket.is_new else ", submitted before"
        log.info("%s--- %s%s ---", section_prefix(ticket.trial_id), trial.get("name"), again)


def log_ends(log: Any, ends: Sequence[FinishedTrial]) -> None:
    """Log how the trials ended, with the whole message of each failure.

    :param log: of the task
    """
    for end in ends:
        section, failure = section_prefix(end.trial_id), end.outcome.failure
        log.info("%s--- %s ---", section, ended_name(end.name, end.ending))
        if failure is not None and "\n" in (message := failure.message.strip()):
            log.error("%s", section + message.replace("\n", f"\n{section}  "))


def counts_text(ends: Sequence[FinishedTrial]) -> str:
    """Return how the trials ended, such as ``3 completed, 1 errored``."""
    counts = Counter(end.outcome.state for end in ends)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def results_of(ends: Sequence[FinishedTrial]) -> SeveralResults:
    """Return the XCom of a task whose trials have results."""
    results = [end.outcome.result for end in ends if end.outcome.result is not None]
    return SeveralResults(experiment_id=results[0]["experiment_id"], trials=results)


def failure_of(ends: Sequence[FinishedTrial]) -> DtrainError | None:
    """Return the error of a task that names the failed trials with their causes, None if none failed.

    Its kind is that of a failure that a retry of the task can help against, if there is one.
    """
    failed = [(end, end.outcome.failure) for end in ends if end.outcome.failure is not None]
    if not failed:
        return None
    named = [
        f"trial {end.trial_id} ({end.name}): {printable_line(failure.cause, CAUSE_CHARS)}"
        for end, failure in failed[:MOST_NAMED]
    ]
    more = [f"and {len(failed) - MOST_NAMED} more"] if len(failed) > MOST_NAMED else []
    message = f"{len(failed)} of {len(ends)} trials failed: {'; '.join([*named, *more])}"
    chosen = next((failure for _, failure in failed if failure.kind != "user"), failed[0][1])
    return replace(chosen, message=message).exception()
