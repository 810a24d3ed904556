"""``airflow dtrain experiments config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.terminal.output import dump, hint, is_table

if TYPE_CHECKING:
    from argparse import Namespace


@command
def config(args: Namespace) -> None:
    """Print the effective configuration of an experiment, secrets masked."""
    from airflow_provider_dtrain.core.config import mask
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    store = DtrainHook().store
    view = store.experiments.get(args.experiment_id)
    trials = store.trials.list(experiment_id=view.experiment_id, limit=None)
    if view.search_id is None and not trials:
        raise NotFoundError(
            f"Experiment {view.experiment_id} has no trial and no plan, so it has no configuration yet."
        )
    found = store.searches.get(view.search_id).config_id if view.search_id is not None else trials[-1].config_id
    dump("yaml" if is_table(args) else args.output, mask(store.configs.get(found).document))
    hint(f"airflow dtrain experiments describe {view.experiment_id}")
