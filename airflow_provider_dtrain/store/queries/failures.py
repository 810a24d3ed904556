"""Causes of failures: of one trial with what helps to remove it, and of an experiment's trials together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.lifecycle.failure_groups import (
    blamed_rank,
    cause_groups,
    cause_key,
    headline,
)
from airflow_provider_dtrain.core.lifecycle.failure_steps import advice_of, next_steps
from airflow_provider_dtrain.core.lifecycle.raised_errors import raised_errors
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TRIAL_LIVE
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.failures import (
    Baseline,
    ExperimentFailures,
    FailureGroup,
    LogEnd,
    TrialFailure,
)
from airflow_provider_dtrain.store.queries.differences import trial_differences
from airflow_provider_dtrain.store.queries.rights import readable_experiment, readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.fact_differences import Difference
    from airflow_provider_dtrain.core.lifecycle.failure_groups import CauseGroup
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import AttemptView, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Most characters of the sentence, of a traceback, and of a line of a log.
CAUSE_CHARS: Final = 4_000
DETAIL_CHARS: Final = 20_000
_LINE_CHARS: Final = 2_000
#: Lines of the log of the rank that failed.
LOG_LINES: Final = 40
CHANGES_MOST: Final = 100
#: Failed trials of an experiment that are compared, the latest ones.
COMPARED_MOST: Final = 1_000
GROUPS_MOST: Final = 20
IDS_MOST: Final = 100
#: Subjects in the order in which they explain a failure. Other ones follow in their own order.
_ORDER: Final = ("files", "code", "git", "lock file", "packages", "image", "interpreter", "configuration", "hosts")
#: Seeds and results of two trials always differ.
_LEFT_OUT: Final = frozenset({("seed", "trial"), ("data", "manifest"), ("data", "")})


def trial_failure(store: Store, rights: Rights, trial_id: int) -> TrialFailure:
    """Return the cause of a trial's failure, the last lines of the rank, what has changed, and what to try.

    :raises NotFoundError: there is no such trial that the user may read, or no attempt of it has failed
    """
    trial = readable_trial(store, rights, trial_id)
    attempts = store.attempts.of_trial(trial_id)
    view = next((one for one in reversed(attempts) if one.failure), attempts[-1])
    failure = trial.failure or view.failure
    if not failure:
        raise NotFoundError(
            f"No attempt of trial {trial_id} has failed. See: airflow dtrain trials describe {trial_id}"
        )
    may_read_logs = rights.may_read_logs(trial.key.dag_id)
    cause, _, details = str(failure.get("message") or failure.get("error") or "").strip().partition("\n")
    baseline = _baseline(store, rights, trial)
    key = cause_key(failure)
    earlier = [one.number for one in attempts if one.number < view.number and one.failure]
    failures = {one.number: one.failure for one in attempts}
    return TrialFailure(
        trial_id=trial_id,
        attempt=view.number,
        phase="start" if view.started_at is None else "training",
        cause=cause[:CAUSE_CHARS],
        error=str(failure.get("error") or ""),
        kind=failure.get("kind"),
        cause_kind=failure.get("cause_kind"),
        rank=blamed_rank(failure),
        host=failure.get("host"),
        at=view.ended_at,
        same_attempts=[number for number in earlier if cause_key(failures[number] or {}) == key],
        raised=raised_errors(details) if may_read_logs else [],
        details=details[-DETAIL_CHARS:] if may_read_logs else "",
        log=_log_end(store, view, failure, details) if may_read_logs else None,
        is_restricted=not may_read_logs,
        baseline=baseline,
        steps=next_steps(
            failure,
            trial_id=trial_id,
            pool=view.pool,
            has_ranks=view.started_at is not None,
            baseline=baseline.trial_id if baseline is not None and baseline.changes else None,
        ),
    )


def _log_end(store: Store, view: AttemptView, failure: Mapping[str, Any], shown: str) -> LogEnd | None:
    """Return the last lines of the log of the rank that failed.

    :param shown: the record of the failure, which most logs end with
    """
    rank = blamed_rank(failure)
    tails = [] if rank is None else store.events.log_tails(view.attempt_id, rank=rank)
    text = tails[0].content.decode("utf-8", errors="replace").rstrip() if tails else ""
    shown = shown[max(0, shown.find("Traceback (most recent call last)")) :].strip()
    before, _, after = text.rpartition(shown) if shown else (text, "", "")
    text = f"{before.rstrip()}{after}"
    if not text.strip():
        return None
    lines = text.split("\n")
    is_cut = tails[0].end is not None and tails[0].end > len(tails[0].content)
    return LogEnd(
        rank=tails[0].rank,
        host=tails[0].host,
        lines=[line[:_LINE_CHARS] for line in lines[-LOG_LINES:]],
        has_more=is_cut or len(lines) > LOG_LINES,
    )


def _baseline(store: Store, rights: Rights, trial: TrialView) -> Baseline | None:
    good = store.failures.last_good_run(trial.trial_id)
    if good is None or not rights.may_read(good.dag_id):
        return None
    found = trial_differences(store, rights, [good.trial_id, trial.trial_id])
    rows = [one for one in found.rows if (one.subject, one.name) not in _LEFT_OUT]
    changes = _in_order([one for one in rows if not one.is_unknown])
    return Baseline(
        trial_id=good.trial_id,
        experiment_id=good.experiment_id,
        ended_at=good.ended_at,
        is_of_experiment=good.experiment_id == trial.experiment_id,
        changes=changes[:CHANGES_MOST],
        more=max(0, len(changes) - CHANGES_MOST),
        same=found.same,
        unknown=[f"{one.subject} {one.name}".rstrip() for one in rows if one.is_unknown][:CHANGES_MOST],
    )


def _in_order(rows: Sequence[Difference]) -> list[Difference]:
    # The digest of the code says nothing beside the files that differ.
    has_files = any(one.subject == "files" for one in rows)
    rest = [one for one in rows if not (has_files and one.subject == "code")]
    return sorted(rest, key=lambda one: _ORDER.index(one.subject) if one.subject in _ORDER else len(_ORDER))


def experiment_failures(store: Store, rights: Rights, experiment_id: int) -> ExperimentFailures:
    """Return the failed trials of an experiment by cause. Trials that were replaced do not count.

    :raises NotFoundError: there is no experiment with this id that the user may read
    """
    view = readable_experiment(store, rights, experiment_id).view
    failed = view.trials.get("errored", 0)
    ended = sum(count for state, count in view.trials.items() if state in TRIAL_ENDED)
    if not failed:
        return ExperimentFailures(text="", failed=0, ended=ended, is_most=False, groups=[], compared=0)
    trials = store.failures.of_experiment(experiment_id, most=COMPARED_MOST)
    groups = cause_groups(trials)
    is_over = not any(view.trials.get(state) for state in TRIAL_LIVE)
    may_read_logs = rights.may_read_logs(view.dag_id)
    return ExperimentFailures(
        text=headline([len(one.trials) for one in groups], failed, ended, is_over=is_over),
        failed=failed,
        ended=ended,
        is_most=failed * 2 > ended,
        groups=[_group(one, may_read_logs=may_read_logs) for one in groups[:GROUPS_MOST]],
        compared=len(trials),
    )


def _group(group: CauseGroup, *, may_read_logs: bool) -> FailureGroup:
    example = group.trials[0].failure
    details = str(example.get("message") or "").partition("\n")[2]
    return FailureGroup(
        cause=group.cause,
        count=len(group.trials),
        trials=[one.trial_id for one in group.trials[:IDS_MOST]],
        error=str(example.get("error") or ""),
        cause_kind=example.get("cause_kind"),
        raised=raised_errors(details) if may_read_logs else [],
        advice=advice_of(example),
    )
