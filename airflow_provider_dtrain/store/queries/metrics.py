"""Reported metrics of trials."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.resources.metrics import MetricReports
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.store import Store


def reports_of(
    store: Store,
    rights: Rights,
    trial_id: int,
    *,
    group: str | None,
    abandoned: bool,
    offset: int = 0,
    most: int | None = None,
) -> MetricReports:
    """Return a page of the reports of a trial, by step.

    :param group: None = training and validation
    :param abandoned: also steps that a later attempt repeated
    :param most: reports of the page; None = all from the offset on
    :raises NotFoundError: there is no trial with this id that the user may read
    """
    own = readable_trial(store, rights, trial_id).trial_id
    # One more tells whether there is another page.
    limit = None if most is None else most + 1
    found = store.metrics.page(own, group, with_abandoned=abandoned, offset=offset, limit=limit)
    rows = [replace(one, metrics=plain_data(one.metrics)) for one in found[:most]]
    return MetricReports(rows=rows, next_offset=offset + len(rows) if len(rows) < len(found) else None)
