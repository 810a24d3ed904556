"""Reads new predictions: the event of a batch inference starts it and has the result of the task that wrote them."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, task

PREDICTIONS = Asset("digits-predictions")

with DAG(
    "dtrain_new_predictions",
    description="Counts the digits of new predictions",
    schedule=PREDICTIONS,
    tags=["dtrain", "example"],
):

    @task
    def count(triggering_asset_events=None) -> dict[str, int]:
        """Return how often each digit was predicted, from the folder that the latest event names."""
        import pyarrow.dataset as ds

        result = triggering_asset_events[PREDICTIONS][-1].extra
        manifest = result["manifest"]
        digits = ds.dataset(manifest["location"], format="parquet").to_table(columns=["digit"])["digit"]
        print(f"{manifest['rows']} predictions of trial {result['trial_id']} in {manifest['location']}")
        return {str(one["values"]): one["counts"] for one in digits.value_counts().to_pylist()}

    count()
