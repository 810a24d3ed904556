"""Failure analysis: the error of an attempt after the end of its gang."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.rank_exits import first_failure
from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.bad_shards import blamed_on_shard, given_up
from airflow_provider_dtrain.engine.attempt.end_place import with_ranks
from airflow_provider_dtrain.engine.attempt.log_policies import apply_policies
from airflow_provider_dtrain.engine.copies.first_attempt import first_attempt
from airflow_provider_dtrain.engine.copies.outputs import chief_of
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    InvalidHPError,
    MetricMissingError,
    RankFailedError,
    RankHangsError,
    TrainingRefusedError,
)

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.gang import GangEnd
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.resources.metrics import MetricReport
    from airflow_provider_dtrain.store.records.trials import AttemptView

_INVALID_HP = "InvalidHP: "
#: Parts that differ in two reports of one error: run folders, addresses of objects, times.
_PASSING = re.compile(r"(?:[0-9a-f]{8}-)?t\d+\.\d+\.\d+|0x[0-9a-f]{4,}|\d\d:\d\d:\d\d UTC")


async def failure_of(rt: Runtime, view: AttemptView, job: Job, end: GangEnd) -> DtrainError:
    """Return why an attempt failed: rejected hyperparameters, a bad shard, a log policy, or the first exit."""
    reason = await _invalid_hp(rt, view, end)
    if reason is not None:
        return InvalidHPError(
            f"The training code refused its hyperparameters: {reason}\nThe trial is not started again "
            f"with these hyperparameters: {dict(view.hparams)}"
        )
    is_inference = job.config.inference is not None
    if is_inference and (bad := await given_up(rt, view, end)) is not None:
        return bad
    error = teardown.cause(end)
    if is_inference and isinstance(error, RankHangsError):
        return await blamed_on_shard(rt, view, error)
    if type(error) not in (RankFailedError, TrainingRefusedError, HostError):
        # The ranks' logs do not explain such an error.
        return with_ranks(view, error)
    error = await apply_policies(rt, view, job.config.log_policies, error)
    return await blamed_on_shard(rt, view, error) if is_inference else error


async def _invalid_hp(rt: Runtime, view: AttemptView, end: GangEnd) -> str | None:
    reports = await rt.db(rt.store.events.of_attempt, view.attempt_id, kinds=("invalid_hp",))
    if reports:
        return str(reports[0].body.get("reason") or "no reason was given")
    found = first_failure(end.exits)
    message = found.message if found is not None else ""
    return message.removeprefix(_INVALID_HP) if message.startswith(_INVALID_HP) else None


async def check_manifest(rt: Runtime, view: AttemptView, job: Job) -> DtrainError | None:
    """Return the error of a batch inference whose ranks ended with exit code 0 and published nothing, or None."""
    if job.config.inference is None:
        return None
    if await rt.db(rt.store.events.of_attempt, view.attempt_id, kinds=("manifest",)):
        return None
    message = "It ended with exit code 0 before the results were published: code of the processor ended the process."
    error = RankFailedError(rank=0, host=chief_of(view), exit_code=0, traceback="", message=message)
    return await blamed_on_shard(rt, view, error)


async def check_metric(rt: Runtime, view: AttemptView, job: Job) -> DtrainError | None:
    """Return the error of a trial that completed without the searcher's metric, or None.

    With the searcher ``single``, a warning is logged instead.
    """
    wanted = job.config.searcher.metric
    if not wanted:
        return None
    first = await rt.db(first_attempt, rt.store, view)
    found = await rt.db(rt.store.metrics.of_trial, view.trial_id, "validation", rank=None)
    rows = [row for row in found if row.attempt >= first]
    if any(wanted in row.metrics for row in rows):
        return None
    message = missing_metric(wanted, rows, await rt.db(rt.store.metrics.of_trial, view.trial_id, "training", rank=None))
    if job.config.searcher.name == "single":
        rt.log.warning("%s", message)
        return None
    return MetricMissingError(message)


def missing_metric(wanted: str, validations: Sequence[MetricReport], trainings: Sequence[MetricReport]) -> str:
    """Return the message for a trial without the metric in its validations."""

    def names(rows: Sequence[MetricReport]) -> str:
        return ", ".join(sorted({name for row in rows for name in row.metrics})) or "nothing"

    return (
        f"searcher.metric is '{wanted}', and no validation of this trial reported it. Reported in validation: "
        f"{names(validations)}; in training: {names(trainings)}. Report it with report_validation, or name one of "
        "these in searcher.metric."
    )


def shortened(message: str, earlier: Mapping[int, Mapping[str, Any] | None]) -> str:
    """Return a failure's message without a traceback that an earlier attempt has already shown.

    :param earlier: number of an attempt -> its failure
    """
    same = _PASSING.sub("", message)
    for number, failure in sorted(earlier.items()):
        if failure and _PASSING.sub("", str(failure.get("message"))) == same:
            return f"{message.splitlines()[0]} (same error as attempt {number})"
    return message
