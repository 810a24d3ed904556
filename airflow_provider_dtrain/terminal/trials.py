"""Commands that show trials."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.core.search.value_text import value_text
from airflow_provider_dtrain.terminal.output import (
    cell,
    dump,
    hint,
    is_table,
    note,
    short_time,
    show,
    show_one,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.gaps import Gap
    from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry
    from airflow_provider_dtrain.resources.checkpoints import CheckpointLine
    from airflow_provider_dtrain.resources.metrics import MetricReport
    from airflow_provider_dtrain.resources.trials import TrialLine
    from airflow_provider_dtrain.terminal.source import Source

#: Parts of a description that a terminal shows as tables.
_PARTS = ("ranks", "checkpoints", "refused_checkpoints", "gaps")


def list_trials(args: Namespace, source: Source) -> None:
    """List trials, latest first."""
    found = source.trials(experiment=args.experiment, state=args.state, tags=args.tag or (), limit=args.limit)
    is_filtered = args.experiment is not None or args.state or args.tag
    empty = "No trial has these properties." if is_filtered else "No trials. A task with TrialOperator creates one."
    show(args, trial_rows(args, found), empty=empty)
    if found:
        hint(f"airflow dtrain trials describe {found[0].trial}")


def trial_rows(args: Namespace, found: Sequence[TrialLine]) -> list[dict[str, Any]]:
    """Return trials as rows of the requested format."""
    if not is_table(args):
        return [asdict(one) for one in found]
    return [_short(one) if args.experiment is None else _of_experiment(one) for one in found]


def _short(trial: TrialLine) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    return {
        "trial": trial.trial,
        "experiment": f"{trial.experiment_id} {trial.experiment}",
        "task": trial.task,
        "state": trial.state_words,
        "created": short_time(trial.created),
        "ended": short_time(trial.ended),
        "reason": trial.summary,
    }


def _of_experiment(trial: TrialLine) -> dict[str, Any]:
    """Return the columns that compare the trials of one experiment."""
    return {
        "trial": trial.trial,
        "number": trial.number,
        "hyperparameters": trial.name,
        "state": trial.state_words,
        "metric": trial.metric if trial.metric is not None else trial.best_metric,
        "steps": trial.steps,
        "ended": short_time(trial.ended),
        "reason": trial.summary,
    }


def describe(args: Namespace, source: Source) -> None:
    """Show a trial, its ranks and checkpoints."""
    trial = source.trial(args.trial_id)
    facts = asdict(trial)
    for checkpoint in facts["checkpoints"]:
        del checkpoint["removed"]
    if facts["shards"] is None:
        del facts["shards"]
    if not is_table(args):
        dump(args.output, facts)
        return
    shown = {name: value for name, value in facts.items() if name not in (*_PARTS, "shards")}
    shown["hyperparameters"] = {name: value_text(value) for name, value in trial.hyperparameters.items()}
    if trial.result:
        # The hosts of the ranks are in a table of their own.
        shown["result"] = {name: value for name, value in trial.result.items() if name != "hosts"}
    show_one(args, shown, with_empty=False)
    for part in ("ranks", "checkpoints"):
        if facts[part]:
            print()
            show(args, facts[part])
    if trial.refused_checkpoints:
        print()
        count = len(trial.refused_checkpoints)
        note(f"{count} checkpoint(s) were refused: their paths are outside what the configuration names.")
        show(args, facts["refused_checkpoints"])
    if trial.gaps:
        print()
        note(f"{len(trial.gaps)} part(s) of the hosts' data are not in the store:")
        show(args, gap_rows(trial.gaps))
    hint(f"airflow dtrain trials logs {trial.trial}")


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
        _csv(table, list(table[0]) if table else [])
    else:
        show(args, table, empty=f"Trial {args.trial_id} has reported nothing yet.")


def metric_row(row: MetricReport, names: Sequence[str]) -> dict[str, Any]:
    """Return a report as a row with a column per metric."""
    fixed = asdict(row)
    values = fixed.pop("metrics")
    return {**fixed, **{name if name not in fixed else f"metrics.{name}": values.get(name) for name in names}}


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if columns:
        writer.writerow([_csv_cell(column) for column in columns])
    for row in rows:
        writer.writerow(["" if row.get(name) is None else _csv_cell(row.get(name)) for name in columns])


def _csv_cell(value: Any) -> Any:
    ready = plain_data(value)
    if not isinstance(ready, str):
        return ready if isinstance(ready, int | float) else cell(ready)
    # A spreadsheet would run such a cell as a formula, and ranks choose the texts that they report.
    return f"'{ready}" if ready.lstrip().startswith(("=", "+", "@")) else ready


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
    found = source.checkpoints(args.trial_id, removed=args.removed)
    rows = [_checkpoint(one, with_removed=args.removed) for one in found]
    show(args, rows, empty=f"Trial {args.trial_id} has no checkpoint.")


def _checkpoint(checkpoint: CheckpointLine, *, with_removed: bool) -> dict[str, Any]:
    row = asdict(checkpoint)
    if not with_removed:
        del row["removed"]
    return row
