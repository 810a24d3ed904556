"""First results of trials that are batch inferences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.results import BadRow, ResultColumn, ResultPreview
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.store import Store

#: Bad rows of an answer.
BAD_ROWS_MOST = 100


def result_preview(store: Store, rights: Rights, trial_id: int) -> ResultPreview:
    """Return the first results of a batch inference, which need the right to read its logs.

    :raises NotFoundError: there is no such trial, or it is no batch inference
    """
    trial = readable_trial(store, rights, trial_id)
    rights.require_logs(trial.key.dag_id)
    if not store.configs.get(trial.config_id).document.get("inference"):
        raise NotFoundError(f"Trial {trial_id} is no batch inference: its configuration has no section inference.")
    bad_rows = _bad_rows(store, trial_id)
    body = store.shards.preview(trial_id)
    if body is None:
        return ResultPreview(columns=[], columns_in_all=0, rows=[], shard=0, label="", bad_rows=bad_rows)
    return ResultPreview(
        columns=[ResultColumn(name=name, type=kind) for name, kind in body["columns"]],
        columns_in_all=body["columns_in_all"],
        rows=[list(row) for row in body["rows"]],
        shard=body["shard"],
        label=body["label"],
        bad_rows=bad_rows,
    )


def _bad_rows(store: Store, trial_id: int) -> list[BadRow]:
    found = [
        BadRow(shard=body["shard"], row=row, name=name, error=error)
        for body in store.shards.bad_rows(trial_id, most=BAD_ROWS_MOST)
        for row, name, error in body.get("bad_rows") or ()
    ]
    return found[:BAD_ROWS_MOST]
