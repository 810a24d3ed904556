"""Hyperparameters that a trial of a search gets only once it runs: the first ones of ``optuna``, and further draws."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.search.optuna_sampler import Observation
    from airflow_provider_dtrain.store.records import AttemptView
    from airflow_provider_dtrain.store.repository import Store
    from airflow_provider_dtrain.store.search_records import SearchView

#: How often the samples of one trial may be refused by the training code before it fails.
MOST_DRAWS = 20
#: Searchers whose trials are as good with other hyperparameters.
_DRAWN = ("random", "async_halving", "adaptive_asha", "optuna")


def drawn(store: Store, view: AttemptView, draw: int) -> dict[str, Any] | None:
    """Return the hyperparameters of a trial; None where its searcher draws none. Blocks.

    :param draw: which sample of its number, from 0
    :raises ConfigError: the stored space is not valid for this version, or a package for drawing is missing here
    """
    from airflow_provider_dtrain.core.search_space import sample

    search = store.search(view.search_id) if view.search_id is not None else None
    if search is None or search.method not in _DRAWN:
        return None
    document = store.get_config(search.config_id).document
    space = document.get("hyperparameters") or {}
    if search.method != "optuna":
        return sample(space, experiment_seed=search.seed, trial=view.trial_number, draw=draw)
    from airflow_provider_dtrain.search.optuna_sampler import draw as ask

    return ask(
        space,
        sampler=document["searcher"].get("sampler", "tpe"),
        seed=search.seed,
        trial=view.trial_number,
        # What follows refused samples is drawn by chance.
        history=() if draw else _others(store, search, view.trial_id),
        smaller_is_better=search.smaller_is_better,
        draw=draw,
    )


def redrawn(store: Store, view: AttemptView, most: int = MOST_DRAWS) -> tuple[int, dict[str, Any]] | None:
    """Return number and hyperparameters of the next sample that the training code has not refused yet. Blocks.

    None where there is none up to number ``most``, or the searcher draws none. It follows from the trial's row alone,
    so that whoever takes over draws the same.

    :raises ConfigError: the stored space is not valid for this version
    """
    refused = {_text(view.hparams)}
    search = store.search(view.search_id) if view.search_id is not None else None
    # What optuna drew first depends on the other trials of that time.
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


def first_attempt(store: Store, view: AttemptView) -> int:
    """Return the number of a trial's first attempt with the hyperparameters that it has now. Blocks."""
    if not view.draw:
        return 1
    refused = [
        one.number for one in store.trial_attempts(view.trial_id)
        if one.failure is not None and one.failure.get("error") == "InvalidHPError"
    ]  # fmt: skip
    return max(refused, default=0) + 1


def _others(store: Store, search: SearchView, trial_id: int) -> list[Observation]:
    """Return what is known of a search's other trials that have hyperparameters."""
    return [
        # Whoever waits for another gang will be judged as one that runs.
        (row.hparams, row.metric, "running" if row.state == "queued" else row.state)
        for row in store.history(search.search_id)
        if row.is_drawn and row.trial_id != trial_id
    ]
