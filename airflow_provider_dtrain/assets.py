"""The best model of an experiment as an Airflow asset, so that other DAGs can be scheduled on a better one."""

from __future__ import annotations

from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias


def best_alias(name: str) -> AssetAlias:
    """Return the alias that gets an event whenever a run finds a better trial than every run before it.

    :param name: of the experiment
    """
    return AssetAlias(f"dtrain-best-{name}")


def best_asset(name: str) -> Asset:
    """Return the asset of these events; their ``extra`` is the result of the best trial.

    :param name: of the experiment
    """
    return Asset(f"x-dtrain://{quote(name, safe='')}/best")
