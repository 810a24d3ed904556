"""Sampling of hyperparameters when a trial starts: from what other trials have shown, and after a refused sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.search.late_draws import draws_at_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.core.config.unions import Searcher
    from airflow_provider_dtrain.search.optuna_sampler import Observation
    from airflow_provider_dtrain.search.rung_sampler import KnownTrial
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
    chosen = (document.get("searcher") or {}).get("sampler")
    if not draws_at_start(search.method, chosen):
        return sample(space, experiment_seed=search.seed, trial=view.trial_number, draw=draw)
    if search.method != "optuna":
        from airflow_provider_dtrain.search.rung_sampler import draw as draw_from_rungs

        return draw_from_rungs(
            space,
            seed=search.seed,
            trial=view.trial_number,
            rungs=[units for bracket in search.rungs.values() for units in bracket],
            # Samples that follow rejected ones are random.
            history=() if draw else _known_trials(store, search, view.trial_id),
            smaller_is_better=search.smaller_is_better,
            draw=draw,
        )
    from airflow_provider_dtrain.search.optuna_sampler import draw as ask

    return ask(
        space,
        sampler=chosen or "tpe",
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
    for number in range(1 if _is_first_informed(store, view) else 0, most + 1):
        hparams = drawn(store, view, number)
        if hparams is None:
            return None
        if number > view.draw and _text(hparams) not in refused:
            return number, hparams
        refused.add(_text(hparams))
    return None


def _is_first_informed(store: Store, view: AttemptView) -> bool:
    """Return whether the first sample depends on the other trials at that time."""
    if view.search_id is None:
        return False
    search = store.searches.get(view.search_id)
    searcher = store.configs.get(search.config_id).document.get("searcher") or {}
    return draws_at_start(search.method, searcher.get("sampler"))


def check_installed(searcher: Searcher) -> None:
    """Check that the packages for the samples of a searcher are installed in this environment.

    :raises ConfigError: a package is missing
    """
    from airflow_provider_dtrain.core.config.unions import OptunaSearcher

    if isinstance(searcher, OptunaSearcher):
        from airflow_provider_dtrain.search import optuna_sampler

        optuna_sampler.check_installed(searcher.sampler)
    elif draws_at_start(searcher.name, getattr(searcher, "sampler", None)):
        from airflow_provider_dtrain.search import rung_sampler

        rung_sampler.check_installed()


def _text(hparams: Mapping[str, Any]) -> str:
    return json.dumps(hparams, sort_keys=True)


def _observations(store: Store, search: SearchView, trial_id: int) -> list[Observation]:
    return [
        # A trial that waits for another gang counts as one that runs.
        (row.hparams, row.metric, "running" if row.state == "queued" else row.state)
        for row in store.searches.history(search.search_id)
        if row.is_drawn and row.trial_id != trial_id
    ]


def _known_trials(store: Store, search: SearchView, trial_id: int) -> list[KnownTrial]:
    """Return the other trials with their metrics at the rungs, without trials that were cleared.

    A trial that failed has None at its next rung. One that was killed only has the metrics that it reported.
    """
    from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TrialState
    from airflow_provider_dtrain.search.rung_sampler import KnownTrial

    rows = store.searches.history(search.search_id)
    killed = {row.trial_id for row in rows if row.state == TrialState.KILLED}
    metrics: dict[int, dict[int, float | None]] = {}
    for entry in store.searches.rung_entries(search.search_id):
        if not entry.has_left and not (entry.is_error and entry.trial_id in killed):
            units = search.rungs[entry.bracket][entry.rung]
            metrics.setdefault(entry.trial_id, {})[units] = entry.metric
    return [
        KnownTrial(row.hparams, metrics.get(row.trial_id, {}), row.state not in TRIAL_ENDED)
        for row in rows
        if row.is_drawn and row.trial_id != trial_id
    ]
