"""Searchers that draw a trial's hyperparameters when it starts, from what other trials have shown."""

from __future__ import annotations


def draws_at_start(name: str | None, sampler: str | None) -> bool:
    """Return whether trials get their hyperparameters when they start.

    :param name: of the searcher; None: the default one
    :param sampler: of the searcher; None: it has none
    """
    return name == "optuna" or sampler == "gp"
