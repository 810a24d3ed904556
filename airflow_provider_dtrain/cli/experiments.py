"""``airflow dtrain experiments``: results of an experiment's trials, and its share of the queue."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli import _labels
from airflow_provider_dtrain.cli._output import UsageError, command, dump, hint, note, short_time, show, show_one, user
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.records.pages import ExperimentQuery

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.records.pages import ExperimentEntry
    from airflow_provider_dtrain.store.records.searches import ExperimentView
    from airflow_provider_dtrain.store.store import Store


@command
def list_experiments(args: Namespace) -> None:
    """List experiments, latest first."""
    store = _store()
    query = ExperimentQuery(name=args.name, tags=args.tag or (), limit=args.limit)
    found, _ = store.experiment_table.page(query)
    make = _row if args.output != "table" else _short
    show(
        args,
        [make(entry) for entry in found],
        empty="No experiment has this name and these tags."
        if args.name or args.tag
        else "No experiments. A task with TrialOperator creates one, or: airflow dtrain experiments create",
    )
    if found:
        hint(f"airflow dtrain experiments describe {found[0].view.experiment_id}")


@command
def describe(args: Namespace) -> None:
    """Show an experiment with its share of the queue."""
    store = _store()
    view = store.experiments.get(args.experiment_id)
    best = store.trials.get(view.best_trial).hparams if view.best_trial is not None else None
    own = store.labels.get("experiment", view.experiment_id)
    share = {
        "weight": view.weight,
        "max_slots": view.max_slots,
        "wish": view.wish,
        "wished_by": view.wished_by,
    }
    facts = {**_facts(view), **_progress(store, view), **_labels.columns(own), "best_hyperparameters": best, **share}
    show_one(args, facts, with_empty=False)
    if view.best_trial is not None:
        hint(f"airflow dtrain trials describe {view.best_trial}")
    else:
        hint("airflow dtrain trials list")


@command
def config(args: Namespace) -> None:
    """Print the effective configuration of an experiment, secrets masked."""
    from airflow_provider_dtrain.core.config import mask

    store = _store()
    view = store.experiments.get(args.experiment_id)
    trials = store.trials.list(experiment_id=view.experiment_id, limit=None)
    if view.search_id is None and not trials:
        raise NotFoundError(
            f"Experiment {view.experiment_id} has no trial and no plan, so it has no configuration yet."
        )
    found = store.searches.get(view.search_id).config_id if view.search_id is not None else trials[-1].config_id
    dump("yaml" if args.output == "table" else args.output, mask(store.configs.get(found).document))
    hint(f"airflow dtrain experiments describe {view.experiment_id}")


@command
def set_experiment(args: Namespace) -> None:
    """Change labels of an experiment, or priority, weight or cap of its waiting and running gangs."""
    given = {"priority": args.priority, "weight": args.weight, "max_slots": args.max_slots}
    shares = {name: value for name, value in given.items() if value is not None}
    if not shares and not _labels.are_given(args):
        raise UsageError(f"Nothing to set. Give --priority, --weight, --max-slots, {_labels.OPTIONS}.")
    store = _store()
    row: dict[str, Any] = {"experiment": args.experiment_id}
    if shares:
        store.experiments.set(args.experiment_id, by=user(), **shares)
        row |= shares
    if _labels.are_given(args):
        row |= _labels.set_labels(store, "experiment", args.experiment_id, args)
    if args.max_slots:
        waiting = [
            one
            for one in store.queue_view.tasks()
            if one.experiment_id == args.experiment_id and one.state == "waiting"
        ]
        if wider := [str(one.trial_id) for one in waiting if one.slots > args.max_slots]:
            note(f"Warning: trials that request more than {args.max_slots} slots can never start: {', '.join(wider)}")
    show_one(args, row, with_empty=False)
    hint("airflow dtrain queue list" if shares else f"airflow dtrain experiments describe {args.experiment_id}")


def _store() -> Store:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook().store


def _row(entry: ExperimentEntry) -> dict[str, Any]:
    return {**_facts(entry.view), **_labels.columns(entry.labels)}


def _facts(view: ExperimentView) -> dict[str, Any]:
    return {
        "experiment": view.experiment_id,
        "name": view.name,
        "dag": view.dag_id,
        "dag_run": view.run_id,
        "method": view.method,
        "state": _state(view),
        "trials": dict(sorted(view.trials.items())),
        "metric": view.metric,
        "smaller_is_better": view.smaller_is_better if view.metric is not None else None,
        "best": view.best,
        "best_trial": view.best_trial,
        "created": view.created_at,
        "ended": view.ended_at,
    }


def _progress(store: Store, view: ExperimentView) -> dict[str, Any]:
    entry = store.experiment_table.get(view.experiment_id)
    if entry is None or view.state != "running":
        return {}
    return {"progress": f"{math.floor(entry.progress * 100)} %", "expected_end": entry.expected_end}


def _state(view: ExperimentView) -> str:
    """Return the state, with the control request of a user while the experiment has not ended."""
    if view.state != "running" or view.wish is None:
        return view.state
    if view.wish == "pause":
        return "running, pauses" if view.trials.get("running") else "paused"
    return "running, stops" if view.wish == "stop" else "running, is killed"


def _short(entry: ExperimentEntry) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    view = entry.view
    return {
        "id": view.experiment_id,
        "name": entry.labels.display_name or view.name,
        "tags": ", ".join(entry.labels.tags),
        "dag": view.dag_id,
        "method": view.method,
        "state": _state(view),
        "trials": ", ".join(f"{number} {state}" for state, number in sorted(view.trials.items())),
        "best": None if view.best is None else f"{view.metric} {view.best:.6g} (trial {view.best_trial})",
        "created": short_time(view.created_at),
    }
