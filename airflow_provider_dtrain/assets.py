"""The best model of an experiment as an Airflow asset: a better model can trigger other DAGs."""

from __future__ import annotations

from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias


def best_alias(name: str) -> AssetAlias:
    """Return the asset alias that gets an event when a run finds a better trial than all runs before it.

    :param name: of the experiment
    """
    return AssetAlias(f"dtrain-best-{name}")


def best_asset(name: str) -> Asset:
    """Return the asset of these events. Their ``extra`` is the result of the best trial.

    :param name: of the experiment
    """
    return Asset(f"x-dtrain://{quote(name, safe='')}/best")
