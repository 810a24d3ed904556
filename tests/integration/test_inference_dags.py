"""Examples of batch inference under a real scheduler, on two real hosts (network namespaces) with two slots each."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from testbed.netns import missing  # noqa: E402
from tests.support.cluster import Cluster  # noqa: E402

pytestmark = [
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all hosts and Airflow see: each host has its own /tmp."""
    folder = tempfile.mkdtemp(prefix=".dtrain-test-", dir=Path.home())
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.mark.nightly
def test_the_best_model_of_a_search_classifies_all_digits_and_a_second_dag_follows_it(
    cluster: Cluster, shared: Path
) -> None:
    for dag_id in ("dtrain_continuous", "dtrain_new_predictions"):
        cluster.airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
    conf = {"pool": "nfs", "slots": 4, "outputs": str(shared), "epochs": 1}
    state, run_id = cluster.run("dtrain_batch_inference", conf)
    log = cluster.airflow.log("dtrain_batch_inference", run_id, "predict")
    assert state == "success", log[-6000:]

    result = cluster.airflow.xcom("dtrain_batch_inference", run_id, "predict")
    manifest = result["manifest"]
    assert (manifest["rows"], manifest["shards"], manifest["skipped"]) == (1797, 9, [])
    assert len(result["hosts"]) == 2
    assert "9 of 9 shards, 1,797 rows, " in log
    published = json.loads((Path(manifest["location"]) / "_manifest.json").read_text())
    report = cluster.airflow.xcom("dtrain_batch_inference", run_id, "report")
    assert report["rows"] == 1797
    assert report["wrong"] == round(1797 * (1 - result["metrics"]["accuracy"]))
    assert published["metrics"] == result["metrics"]

    best = cluster.airflow.xcom("dtrain_batch_inference", run_id, "best")
    _assert_continued(cluster, best["trial_id"])


def _assert_continued(cluster: Cluster, trial_id: int) -> None:
    """Check that the new best model started the second DAG, and that its predictions are an event of their asset."""
    found = cluster.until(lambda: cluster.runs("dtrain_continuous"), "a run of dtrain_continuous")
    run_id = found[0]["dag_run_id"]
    state = cluster.airflow.wait("dtrain_continuous", run_id)
    assert state == "success", cluster.airflow.log("dtrain_continuous", run_id, "predict")[-6000:]
    # The example writes below the home of its user.
    folder = Path.home() / "dtrain-predictions" / f"model-{trial_id}"
    try:
        _assert_counted(cluster, run_id, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _assert_counted(cluster: Cluster, run_id: str, folder: Path) -> None:
    """Check that the predictions started the third DAG, which reads them."""
    manifest = cluster.airflow.xcom("dtrain_continuous", run_id, "predict")["manifest"]
    assert manifest["location"] == str(folder)
    (counted,) = cluster.until(lambda: cluster.runs("dtrain_new_predictions"), "a run of dtrain_new_predictions")
    run_id = counted["dag_run_id"]
    state = cluster.airflow.wait("dtrain_new_predictions", run_id)
    assert state == "success", cluster.airflow.log("dtrain_new_predictions", run_id, "count")[-6000:]
    assert sum(cluster.airflow.xcom("dtrain_new_predictions", run_id, "count").values()) == 1797
    # Airflow 3.3 answers with status 500 as long as a run that the event has created is queued.
    events = cluster.airflow.api("GET", "/assets/events?source_dag_id=dtrain_continuous")["asset_events"]
    (extra,) = [event["extra"] for event in events]
    assert extra["manifest"] == manifest
