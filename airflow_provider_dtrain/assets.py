"""Airflow assets that can trigger other DAGs: the best model of an experiment, and the results of an inference."""

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


def outputs_alias(task: str) -> AssetAlias:
    """Return the asset alias of a batch inference whose output folder is known only when it runs.

    :param task: ``<dag>.<task>``
    """
    return AssetAlias(f"dtrain-outputs-{task}")


def outputs_asset(location: str) -> Asset:
    """Return the asset of the results of a batch inference. The ``extra`` of its events is the manifest.

    :param location: absolute path or URL of the output folder
    """
    return Asset(location if "://" in location else f"file://{quote(location)}")
