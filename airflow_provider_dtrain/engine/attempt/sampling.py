"""Sampling of hyperparameters when a trial starts: the first ones of ``optuna``, and further samples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import Hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.search.optuna_sampler import Observation
    from airflow_provider_dtrain.store.records.searches import SearchView
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store

#: Samples of one trial that the training code may reject before the trial fails.
MOST_DRAWS = 20


def drawn(store: Store, view: AttemptView, draw: int) -> Hyperparameters | None:
    """Return the hyperparameters of a trial, or None when its searcher samples none. Blocks.

    :param draw: index of the sample for the trial's number, from 0
    :raises ConfigError: the stored space is not valid for this version, or a package for sampling is missing here
    """
    from airflow_provider_dtrain.core.config.unions import SEARCHERS
    from airflow_provider_dtrain.core.hyperparameters.space import sample

    search = store.searches.get(view.search_id) if view.search_id is not None else None
    if search is None or not SEARCHERS[search.method].draws_samples:
        return None
    document = store.configs.get(search.config_id).document
    space = document.get("hyperparameters") or {}
    if search.method != "optuna":
        return sample(space, experiment_seed=search.seed, trial=view.trial_number, draw=draw)
    from airflow_provider_dtrain.search.optuna_sampler import draw as ask

    return ask(
        space,
        sampler=document["searcher"].get("sampler", "tpe"),
        seed=search.seed,
        trial=view.trial_number,
        # Samples that follow rejected ones are random.
        history=() if draw else _observations(store, search, view.trial_id),
        smaller_is_better=search.smaller_is_better,
        draw=draw,
    )


def redrawn(store: Store, view: AttemptView, most: int = MOST_DRAWS) -> tuple[int, Hyperparameters] | None:
    """Return number and hyperparameters of the next sample that was not rejected yet, or None. Blocks.

    None means that there is none up to number ``most``, or that the searcher samples none. The sample follows from the
    trial's row alone, so a process that takes over gets the same one.

    :raises ConfigError: the stored space is not valid for this version
    """
    refused = {_text(view.hparams)}
    search = store.searches.get(view.search_id) if view.search_id is not None else None
    # The first sample of optuna depends on the other trials at that time.
    for number in range(1 if search is not None and search.method == "optuna" else 0, most + 1):
        hparams = drawn(store, view, number)
        if hparams is None:
            return None
        if number > view.draw and _text(hparams) not in refused:
            return number, hparams
        refused.add(_text(hparams))
    return None


def _text(hparams: Mapping[str, Any]) -> str:
    return json.dumps(hparams, sort_keys=True)


def _observations(store: Store, search: SearchView, trial_id: int) -> list[Observation]:
    return [
        # A trial that waits for another gang counts as one that runs.
        (row.hparams, row.metric, "running" if row.state == "queued" else row.state)
        for row in store.searches.history(search.search_id)
        if row.is_drawn and row.trial_id != trial_id
    ]
