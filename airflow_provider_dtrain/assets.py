"""Airflow assets that can trigger other DAGs: the best model of an experiment, and the results of an inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow.sdk import Context


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


def outputs_alias(name: str) -> AssetAlias:
    """Return the asset alias of a batch inference whose output folder is known only when it runs.

    :param name: ``<dag>.<task>``, or the experiment of ``airflow dtrain infer``
    """
    return AssetAlias(f"dtrain-outputs-{name}")


def outputs_asset(location: str) -> Asset:
    """Return the asset of the results of a batch inference. The ``extra`` of its events is the XCom of its task.

    :param location: absolute path or URL of the output folder
    """
    return Asset(location if "://" in location else f"file://{quote(location)}")


def announce_outputs(context: Context, outlets: Iterable[object], result: Mapping[str, Any]) -> None:
    """Add the result of a batch inference to the events of a task's outlets. An alias gets an event of the folder.

    :param outlets: those of the task; others than assets and aliases are left out
    :param result: XCom of the task, with the manifest
    """
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            asset = outputs_asset(result["manifest"]["location"])
            context["outlet_events"][outlet].add(asset, extra=dict(result))
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(result)
