"""Names of trials, as Airflow shows them for mapped task instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.search.names import trial_name
from airflow_provider_dtrain.store.queries.config_facts import config_facts

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store


def name_of(
    store: Store, config_id: int | None, number: int, hparams: Mapping[str, Any] | None, task: tuple[str, int]
) -> str:
    """Return the name of a trial: its number and the hyperparameters that differ between trials, or its task.

    :param hparams: None = not drawn yet
    :param task: id and map index
    """
    space = None if config_id is None else config_facts(store, [config_id])[config_id].space
    return trial_name(number, hparams, space, task=task)
