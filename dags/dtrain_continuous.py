"""Classifies all digits anew whenever a search has found a better model, and announces the predictions.

``dtrain_batch_inference`` and any other search of the experiment ``digits-grid`` start it.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Asset, Param, task

from airflow_provider_dtrain.assets import best_asset
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator

OUTPUTS = str(Path.home() / "dtrain-predictions")

with DAG(
    "dtrain_continuous",
    description="Predictions follow the best model of an experiment",
    schedule=best_asset("digits-grid"),
    tags=["dtrain", "example"],
    params={
        "outputs": Param(OUTPUTS, type="string", description="folder that all hosts share, or a URL"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
    },
):

    @task
    def newest(triggering_asset_events=None) -> dict:
        """Return the result of the best trial, which came with the event."""
        events = [event for found in triggering_asset_events.values() for event in found]
        return events[-1].extra

    model = newest()
    BatchInferenceOperator(
        task_id="predict",
        config={"model_dir": "digits"},
        processor="predict:Classifier",
        inputs={"shard_rows": 200},
        outputs={"path": "{{ params.outputs }}/model-{{ ti.xcom_pull('newest')['trial_id'] }}", "row_id": "row"},
        weights=model,
        host_pool="{{ params.pool or '' }}",
        outlets=[Asset("digits-predictions")],
        deferrable=True,
    )
