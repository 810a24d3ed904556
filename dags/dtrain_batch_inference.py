"""Searches a model of handwritten digits, classifies all digits with the best one, and reports what it found."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.inference import BatchInferenceOperator
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

OUTPUTS = str(Path.home() / "dtrain-predictions")

with DAG(
    "dtrain_batch_inference",
    description="A search, then batch inference with the best model",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "outputs": Param(OUTPUTS, type="string", description="folder that all hosts share, or a URL"),
        "slots": Param(2, type="integer", minimum=1, description="processes of the inference"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(2, type="integer", minimum=1),
    },
):
    plan = PlanTrialsOperator(
        task_id="plan",
        config="digits/grid.yaml",
        template="digits/template.yaml",
        overrides={
            "model_dir": "digits",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
    )
    trials = TrialOperator.partial(task_id="trial", deferrable=True).expand(trial=plan.output)
    best = SelectBestTrialOperator(task_id="best", plan=plan.output, name="digits-grid")

    predicted = BatchInferenceOperator(
        task_id="predict",
        config={"model_dir": "digits"},
        processor="predict:Classifier",
        inputs={"shard_rows": 200},
        outputs={"path": "{{ params.outputs }}/{{ ti.run_id }}", "row_id": "row"},
        weights=best.output,
        slots="{{ params.slots }}",
        host_pool="{{ params.pool or '' }}",
        deferrable=True,
    )

    @task
    def report(result: dict) -> dict[str, int]:
        """Count the digits that were found. Where a bucket holds the results, give pyarrow its file system."""
        import pyarrow.dataset as ds

        manifest = result["manifest"]
        rows = ds.dataset(manifest["location"], format="parquet").to_table().sort_by("row").to_pylist()
        wrong = [row for row in rows if row["digit"] != row["label"]]
        print(f"{manifest['rows']} digits, accuracy {result['metrics']['accuracy']:.4f}, {len(wrong)} are wrong")
        for row in sorted(wrong, key=lambda row: -row["score"])[:5]:
            print(f"Image {row['row']} is a {row['label']}, found a {row['digit']} with score {row['score']:.2f}")
        return {"rows": len(rows), "wrong": len(wrong)}

    trials >> best
    report(predicted.output)
