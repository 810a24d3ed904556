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
    """Return the asset of the results of a batch inference. The ``extra`` of its events is the manifest.

    :param location: absolute path or URL of the output folder
    """
    return Asset(location if "://" in location else f"file://{quote(location)}")


def announce_outputs(
    context: Context, outlets: Iterable[object], manifest: Mapping[str, Any], result: Mapping[str, Any]
) -> None:
    """Add a manifest to the events of a task's outlets. An alias gets an event of the output folder.

    :param outlets: those of the task; others than assets and aliases are left out
    :param result: XCom of the trial
    """
    extra = {"experiment_id": result["experiment_id"], "trial_id": result["trial_id"], **manifest}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(outputs_asset(manifest["location"]), extra=extra)
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(extra)
