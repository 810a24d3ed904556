"""``airflow dtrain experiments``: results of an experiment's trials, and its share of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli import _labels
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import NotFoundError, UsageError
from airflow_provider_dtrain.listings.experiments import wider_trials
from airflow_provider_dtrain.listings.source import StoreSource
from airflow_provider_dtrain.terminal import experiments as terminal
from airflow_provider_dtrain.terminal.output import dump, hint, is_table, note, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.store import Store


@command
def list_experiments(args: Namespace) -> None:
    """List experiments, latest first."""
    terminal.list_experiments(args, StoreSource(_store()))


@command
def describe(args: Namespace) -> None:
    """Show an experiment with its share of the queue."""
    terminal.describe(args, StoreSource(_store()))


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
    dump("yaml" if is_table(args) else args.output, mask(store.configs.get(found).document))
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
    if wider := wider_trials(store, args.experiment_id, args.max_slots):
        note(f"Warning: {wider}")
    show_one(args, row, with_empty=False)
    hint("airflow dtrain queue list" if shares else f"airflow dtrain experiments describe {args.experiment_id}")


def _store() -> Store:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook().store
