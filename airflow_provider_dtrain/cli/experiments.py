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
    found = store.experiment_table.config_id(view.experiment_id)
    if found is None:
        raise NotFoundError(
            f"Experiment {view.experiment_id} has no trial and no plan, so it has no configuration yet."
        )
    dump("yaml" if is_table(args) else args.output, mask(store.configs.get(found).document))
    hint(f"airflow dtrain experiments describe {view.experiment_id}")
