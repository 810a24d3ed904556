"""Commands that show trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.lifecycle.inference_progress import inference_text
from airflow_provider_dtrain.core.lifecycle.trial_text import progress_text
from airflow_provider_dtrain.core.search.value_text import value_text
from airflow_provider_dtrain.terminal.csv_output import show_csv
from airflow_provider_dtrain.terminal.failures import failure_lines
from airflow_provider_dtrain.terminal.jobs import job_line, use_line
from airflow_provider_dtrain.terminal.output import (
    dump,
    hint,
    is_table,
    note,
    placement_text,
    short_time,
    show,
    show_one,
    task_name,
)
from airflow_provider_dtrain.terminal.profile import straggler_lines
from airflow_provider_dtrain.terminal.provenance import provenance_lines

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.gaps import Gap
    from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry
    from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint
    from airflow_provider_dtrain.resources.metrics import MetricReport
    from airflow_provider_dtrain.resources.ranks import RankRow
    from airflow_provider_dtrain.resources.trials import TrialDetail, TrialSummary
    from airflow_provider_dtrain.terminal.source import Source


def list_trials(args: Namespace, source: Source) -> None:
    """List trials, latest first."""
    found = source.trials(
        experiment=args.experiment, state=args.state, tags=args.tag or (), limit=args.limit, where=args.where
    )
    is_filtered = args.experiment is not None or args.state or args.tag or args.where
    empty = "No trial has these properties." if is_filtered else "No trials. A task with TrialOperator creates one."
    show(args, trial_rows(args, found), empty=empty)
    if found:
        hint(f"airflow dtrain trials describe {found[0].trial_id}")


def trial_rows(args: Namespace, found: Sequence[TrialSummary]) -> list[dict[str, Any]]:
    """Return trials as rows of the requested format."""
    if not is_table(args):
        return [asdict(one) for one in found]
    return [_short(one) if args.experiment is None else _of_experiment(one) for one in found]


def _short(trial: TrialSummary) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    return {
        "trial": trial.trial_id,
        "experiment": f"{trial.experiment_id} {trial.experiment}",
        "task": task_name(trial.task),
        "state": trial.state_text,
        "created": short_time(trial.created_at),
        "ended": short_time(trial.ended_at),
        "reason": summary_of(trial),
    }


def _of_experiment(trial: TrialSummary) -> dict[str, Any]:
    """Return the columns that compare the trials of one experiment."""
    return {
        "trial": trial.trial_id,
        "number": trial.number,
        "hyperparameters": hparams_text(trial),
        "state": trial.state_text,
        "metric": trial.best_metric,
        "steps": trial.steps,
        "ended": short_time(trial.ended_at),
        "reason": summary_of(trial),
    }


def hparams_text(trial: TrialSummary) -> str:
    """Return the hyperparameters that differ between the trials of an experiment."""
    prefix = f"{trial.number} | "
    # If none differs, the name is that of the task.
    return trial.name.removeprefix(prefix) if trial.name.startswith(prefix) else ""


def latest_placement(trial: TrialDetail) -> Mapping[str, Sequence[int]]:
    """Return the slots of its latest attempt, which an ended trial has released."""
    return trial.attempts_list[-1].placement


def summary_of(trial: TrialSummary) -> str | None:
    """Return why a trial waits or has ended early, else the progress of a batch inference."""
    return trial.reason or (None if trial.shards is None else inference_text(trial.shards))


def describe(args: Namespace, source: Source) -> None:
    """Show a trial, what it was made of, its ranks and checkpoints."""
    trial = source.trial(args.trial_id)
    provenance = source.provenance(args.trial_id)
    ranks = source.ranks(args.trial_id).rows
    reproductions = source.reproductions(args.trial_id)
    failure = None if trial.failure is None else source.failure(args.trial_id)
    # A refused checkpoint counts as removed: nothing of it is used.
    found = source.checkpoints(args.trial_id).rows
    present = [one for one in found if one.removed_at is None or one.refused is not None]
    if not is_table(args):
        parts = {
            "cause": None if failure is None else asdict(failure),
            "provenance": asdict(provenance),
            "ranks": [_rank_facts(one) for one in ranks],
            "checkpoints": [asdict(one) for one in present if one.refused is None],
            "refused_checkpoints": [asdict(one) for one in present if one.refused is not None],
            "reproductions": asdict(reproductions),
        }
        dump(args.output, {**asdict(trial), **parts})
        return
    of = reproductions.of
    own = {"reproduces": of and f"trial {of.original_id}", "reproduction": of and of.text}
    again = {"reproduced": {f"trial {one.trial_id}": one.text for one in reproductions.by}}
    causes = {} if failure is None else failure_lines(failure)
    lines = {**_described(trial), **provenance_lines(provenance), **own, **again, **causes}
    show_one(args, lines, with_empty=False)
    usable = [one for one in present if one.refused is None]
    for rows in ([_rank(one) for one in ranks], [_checkpoint(one) for one in usable]):
        if rows:
            print()
            show(args, rows)
    if refused := [_refused(one) for one in present if one.refused is not None]:
        print()
        note(f"{len(refused)} checkpoint(s) were refused: their paths are outside what the configuration names.")
        show(args, refused)
    if trial.gaps:
        print()
        note(f"{len(trial.gaps)} part(s) of the hosts' data are not in the store:")
        show(args, gap_rows(trial.gaps))
    hint(f"airflow dtrain trials logs {trial.trial_id}")


def _described(trial: TrialDetail) -> dict[str, Any]:
    """Return a trial as lines of a terminal."""
    # The hosts of the ranks are in a table of their own.
    result = {name: value for name, value in (trial.result or {}).items() if name != "hosts"}
    return {
        "trial": trial.trial_id,
        "experiment_id": trial.experiment_id,
        "experiment": trial.experiment,
        "number": trial.number,
        "task": task_name(trial.task),
        "dag_run": trial.task.run_id,
        "hyperparameters": {name: value_text(value) for name, value in trial.hparams.items()},
        "state": trial.state,
        "metric": trial.best_metric,
        "rung": trial.rung,
        "attempts": trial.attempts,
        "created": trial.created_at,
        "ended": trial.ended_at,
        "progress": progress_line(trial),
        "expected_end": trial.progress.expected_end if trial.progress is not None else None,
        "seed": trial.seed,
        "config": trial.config_id,
        "run": trial.run,
        "pool": trial.pool,
        "slots": trial.slots,
        "priority": trial.priority,
        "hosts": placement_text(latest_placement(trial)) or None,
        "position": trial.position,
        "expected": trial.expected,
        "paused": trial.is_paused,
        "preempted_for": trial.preempted_for,
        "jobs": [job_line(one) for one in trial.jobs if one.end is None],
        "job_use": use_line(trial.job_use),
        # The first line of a failure would be there twice.
        "reason": trial.reason if trial.failure is None or not trial.is_current else None,
        "restarts": f"{trial.restarts} of {trial.max_restarts}",
        "watcher": trial.watcher,
        "unfollowed_since": trial.unfollowed_since,
        "slow_ranks": straggler_lines(trial.stragglers),
        "limits": trial.limits,
        "result": result,
        "display_name": trial.display_name,
        "description": trial.description or None,
        "tags": trial.tags,
    }


def progress_line(trial: TrialSummary) -> str | None:
    """Return the progress of a batch inference or of a running trial in words."""
    if trial.shards is not None:
        return inference_text(trial.shards)
    return None if trial.progress is None else progress_text(trial.progress)


def _rank_facts(rank: RankRow) -> dict[str, Any]:
    """Return all facts of a rank but its log."""
    return {name: value for name, value in asdict(rank).items() if name != "log_tail"}


def _rank(rank: RankRow) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "slot": rank.slot,
        "pid": rank.pid,
        "exit_code": rank.exit_code,
        "exited": rank.exited_at,
        "error": rank.error.splitlines()[0][:200] if rank.error else None,
    }


def gap_rows(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    """Return gaps as rows for a terminal."""
    return [
        {
            "host": gap.host,
            "stream": gap.stream,
            "offset": gap.offset,
            "lines": gap.lines,
            "reason": gap.reason,
            "size": byte_size(gap.bytes),
        }
        for gap in gaps
    ]


def metrics(args: Namespace, source: Source) -> None:
    """Print the metrics that the trial reported.

    For steps that were repeated after a restart, the latest report is printed.
    """
    rows = source.metrics(args.trial_id, group=args.group, abandoned=args.abandoned)
    names = sorted({name for row in rows for name in row.metrics})
    table = [metric_row(row, names) for row in rows]
    if args.csv:
        show_csv(table, list(table[0]) if table else [])
    else:
        show(args, table, empty=f"Trial {args.trial_id} has reported nothing yet.")


def metric_row(row: MetricReport, names: Sequence[str]) -> dict[str, Any]:
    """Return a report as a row with a column per metric."""
    fixed = asdict(row)
    values = fixed.pop("metrics")
    return {**fixed, **{name if name not in fixed else f"metrics.{name}": values.get(name) for name in names}}


def timeline(args: Namespace, source: Source) -> None:
    """Show everything that happened to a trial, oldest first."""
    shown = [
        entry
        for entry in source.timeline(args.trial_id).entries
        if (not args.kind or entry.kind in args.kind) and args.attempt in (None, entry.attempt)
    ]
    rows = [_entry(one) if is_table(args) else asdict(one) for one in shown]
    show(args, rows, empty=f"The timeline of trial {args.trial_id} has no such entries.")
    hint(f"airflow dtrain trials describe {args.trial_id}")


def _entry(entry: TimelineEntry) -> dict[str, Any]:
    from airflow_provider_dtrain.core.lifecycle.timeline import duration

    lasted = None if entry.until is None else duration((entry.until - entry.at).total_seconds())
    return {
        "time": entry.at,
        "kind": entry.kind,
        "attempt": entry.attempt,
        "host": entry.host,
        "text": entry.text,
        "lasted": lasted,
    }


def checkpoints(args: Namespace, source: Source) -> None:
    """List a trial's checkpoints with their locations, oldest first."""
    found = [
        one
        for one in source.checkpoints(args.trial_id).rows
        if one.refused is None and (args.removed or one.removed_at is None)
    ]
    rows = [_checkpoint(one, with_removed=args.removed) if is_table(args) else asdict(one) for one in found]
    show(args, rows, empty=f"Trial {args.trial_id} has no checkpoint.")


def _checkpoint(checkpoint: StoredCheckpoint, *, with_removed: bool = False) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint.checkpoint_id,
        "step": checkpoint.step,
        "written": short_time(checkpoint.at),
        "host": checkpoint.host,
        "path": checkpoint.path,
        "size": byte_size(checkpoint.size_bytes),
        "metrics": checkpoint.metrics,
        "copy": checkpoint.copy_url,
        **({"removed": checkpoint.removed_at} if with_removed else {}),
    }


def _refused(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "host": checkpoint.host,
        "reported": checkpoint.path,
        "refused": checkpoint.refused,
    }
