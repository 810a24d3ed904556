"""Commands that show experiments."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.search.value_text import value_text
from airflow_provider_dtrain.terminal.output import hint, is_table, short_time, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.experiments import ExperimentLine
    from airflow_provider_dtrain.terminal.source import Source


def list_experiments(args: Namespace, source: Source) -> None:
    """List experiments, latest first."""
    found = source.experiments(name=args.name, tags=args.tag or (), limit=args.limit)
    show(
        args,
        [_short(one) if is_table(args) else asdict(one) for one in found],
        empty="No experiment has this name and these tags."
        if args.name or args.tag
        else "No experiments. A task with TrialOperator creates one, or: airflow dtrain experiments create",
    )
    if found:
        hint(f"airflow dtrain experiments describe {found[0].experiment}")


def _short(one: ExperimentLine) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    best = f"{one.best:.6g}" if isinstance(one.best, float | int) else one.best
    return {
        "id": one.experiment,
        "name": one.display_name or one.name,
        "tags": ", ".join(one.tags),
        "dag": one.dag,
        "method": one.method,
        "state": one.state,
        "trials": ", ".join(f"{number} {state}" for state, number in one.trials.items()),
        "best": None if best is None else f"{one.metric} {best} (trial {one.best_trial})",
        "created": short_time(one.created),
    }


def describe(args: Namespace, source: Source) -> None:
    """Show an experiment with its share of the queue."""
    found = source.experiment(args.experiment_id)
    row = asdict(found)
    if is_table(args) and found.best_hyperparameters:
        row["best_hyperparameters"] = {name: value_text(value) for name, value in found.best_hyperparameters.items()}
    if not found.state.startswith(("queued", "running")):
        del row["progress"], row["expected_end"]
    show_one(args, row, with_empty=False)
    if found.best_trial is not None:
        hint(f"airflow dtrain trials describe {found.best_trial}")
    else:
        hint("airflow dtrain trials list")
