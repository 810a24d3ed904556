"""Commands that show experiments."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.follower_text import CANNOT_RUN
from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE
from airflow_provider_dtrain.core.search.value_text import value_text
from airflow_provider_dtrain.resources.experiments import ExperimentFilter
from airflow_provider_dtrain.terminal.failures import experiment_failure_lines
from airflow_provider_dtrain.terminal.output import dump, hint, is_table, short_time, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.experiments import ExperimentDetail, ExperimentSummary
    from airflow_provider_dtrain.terminal.source import Source


def list_experiments(args: Namespace, source: Source) -> None:
    """List experiments, latest first."""
    query = ExperimentFilter(
        name=args.name,
        tags=args.tag or (),
        owner=args.owner,
        mine=args.mine,
        project=args.project,
        archived=args.archived,
        limit=args.limit,
    )
    found = source.experiments(query)
    is_filtered = query != ExperimentFilter(limit=args.limit)
    show(
        args,
        [_short(one) if is_table(args) else asdict(one) for one in found],
        empty="No experiment matches the filters."
        if is_filtered
        else "No experiments. A task with TrialOperator creates one, or: airflow dtrain experiments create",
    )
    if found:
        hint(f"airflow dtrain experiments describe {found[0].experiment_id}")


def _short(one: ExperimentSummary) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    best = f"{one.best:.6g}" if isinstance(one.best, float) else one.best
    return {
        "id": one.experiment_id,
        "name": one.display_name or one.name,
        "owner": one.owner,
        "project": one.project,
        "tags": ", ".join(one.tags),
        "dag": one.dag_id,
        "method": one.method,
        "state": state_text(one),
        "trials": ", ".join(f"{number} {state}" for state, number in one.trials.items()),
        "best": None if best is None else f"{one.metric} {best} (trial {one.best_trial})",
        "created": short_time(one.created_at),
    }


def state_text(one: ExperimentSummary) -> str:
    """Return the state of an experiment with the control request of a user that is in force, or that it cannot run."""
    if one.state not in EXPERIMENT_LIVE or one.control_request is None:
        return f"{one.state}, {CANNOT_RUN}" if one.never_fits else one.state
    if one.control_request == "pause":
        return "running, pauses" if one.trials.get("running") else "paused"
    return f"{one.state}, {'stops' if one.control_request == 'stop' else 'is killed'}"


def describe(args: Namespace, source: Source) -> None:
    """Show an experiment with its share of the queue."""
    found = source.experiment(args.experiment_id)
    failures = source.failures(args.experiment_id)
    if is_table(args):
        show_one(args, {**_described(found), **experiment_failure_lines(failures)}, with_empty=False)
    else:
        dump(args.output, {**asdict(found), "failures": asdict(failures)})
    if failures.is_most and failures.groups:
        hint(f"airflow dtrain trials describe {failures.groups[0].trials[0]}")
    elif found.best_trial is not None:
        hint(f"airflow dtrain trials describe {found.best_trial}")
    else:
        hint("airflow dtrain trials list")


def _described(one: ExperimentDetail) -> dict[str, Any]:
    """Return an experiment as lines of a terminal."""
    return {
        "experiment": one.experiment_id,
        "name": one.name,
        "owner": one.owner or None,
        "project": one.project,
        "archived": one.archived or None,
        "is_deleting": one.is_deleting or None,
        "dag": one.dag_id,
        "dag_run": one.run_id,
        "method": one.method,
        "state": state_text(one),
        "reason": one.reason,
        "trials": one.trials,
        "metric": one.metric,
        "smaller_is_better": None if one.metric is None else one.smaller_is_better,
        "best": one.best,
        "best_trial": one.best_trial,
        "created": one.created_at,
        "ended": one.ended_at,
        "progress": progress_text(one),
        "expected_end": one.expected_end if one.state in EXPERIMENT_LIVE else None,
        "display_name": one.display_name,
        "description": one.description or None,
        "tags": one.tags,
        "best_hyperparameters": {name: value_text(value) for name, value in (one.best_hparams or {}).items()},
        "weight": one.weight,
        "max_slots": one.max_slots,
        "control_request": one.control_request,
        "requested_by": one.requested_by,
        "without_checkpoint": one.without_checkpoint,
    }


def progress_text(one: ExperimentSummary) -> str | None:
    """Return the progress of a live experiment in percent, None if it is unknown."""
    if one.progress is None or one.state not in EXPERIMENT_LIVE:
        return None
    return f"{math.floor(one.progress * 100)} %"
