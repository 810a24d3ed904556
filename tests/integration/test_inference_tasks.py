"""Tasks of batch inferences as Airflow runs them, with real ranks: results, XCom, events of their outlets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

import pyarrow.parquet as pq  # noqa: E402
from airflow.sdk import DAG, Asset  # noqa: E402
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred  # noqa: E402
from airflow.sdk.execution_time.context import OutletEventAccessors  # noqa: E402

from airflow_provider_dtrain.decorators.dtrain_batch import dtrain_batch_task  # noqa: E402
from airflow_provider_dtrain.hooks.dtrain import DtrainHook  # noqa: E402
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator  # noqa: E402
from testbed.stores import new_sqlite  # noqa: E402
from testbed.wheels import make_wheel  # noqa: E402
from tests.support.engines import register  # noqa: E402
from tests.support.inference import PROCESSOR, ROWS, rows, rows_of_a_loop, write_input  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of a DAG file with code and inputs, beside a store and two slots of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"SQL_ALCHEMY_CONN": new_sqlite(tmp_path / "dtrain.db"), "CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    for name, value in {**options, "KILL_GRACE_S": "2"}.items():
        monkeypatch.setenv(f"AIRFLOW__DTRAIN__{name}", value)
    hook = DtrainHook()
    hook.links.close_all()
    register(hook, tmp_path / "state")
    write_input(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "processors.py").write_text(PROCESSOR)
    yield tmp_path
    hook.links.close_all()


def context(place: Path, task_id: str) -> Any:
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id=task_id, map_index=-1, max_tries=0)
    dag = SimpleNamespace(fileloc=str(place / "dag.py"))
    return {"ti": ti, "dag": dag, "outlet_events": OutletEventAccessors(), "ds": "2026-01-02"}


def infer(place: Path, task_id: str = "infer", **arguments: Any) -> tuple[Any, Any]:
    """Run an operator, and return its XCom and the events of its outlets."""
    operator = BatchInferenceOperator(
        task_id=task_id, config={"model_dir": "code"}, processor="processors:Model", slots=2, deferrable=False,
        inputs={"path": str(place / "in"), "shard_rows": 50}, **arguments,
    )  # fmt: skip
    found = context(place, task_id)
    return operator.execute(found), found["outlet_events"]


@pytest.mark.nightly
def test_a_processor_imports_packages_of_its_environment(place: Path) -> None:
    code = place / "code"
    make_wheel(code / "wheels", "demo")
    (code / "requirements.lock").write_text("demo==1.0\n")
    (code / "packaged.py").write_text("import demo\nfrom processors import Model\nassert demo.VERSION == '1.0'\n")
    section = {"requirements": "requirements.lock", "wheels": "wheels", "system_site_packages": True}
    operator = BatchInferenceOperator(
        task_id="infer",
        config={"model_dir": "code", "environment": section},
        processor="packaged:Model",
        slots=2,
        deferrable=False,
        inputs={"path": str(place / "in"), "shard_rows": 50},
        outputs={"path": str(place / "out"), "columns": ["id"], "row_id": "row"},
    )
    operator.execute(context(place, "infer"))
    assert rows(place) == rows_of_a_loop()


@pytest.mark.nightly
def test_an_operator_returns_the_manifest_and_announces_the_folder(place: Path) -> None:
    outputs = {"path": str(place / "out"), "columns": ["id"], "row_id": "row"}
    result, events = infer(place, outputs=outputs)
    assert rows(place) == rows_of_a_loop()
    manifest = result["manifest"]
    assert (manifest["location"], manifest["rows"], manifest["skipped"]) == (str(place / "out"), ROWS, [])
    assert "label" in manifest["schema"]
    assert 0 < result["metrics"]["positive"] < 1
    (asset,) = events
    assert asset == Asset(f"file://{place / 'out'}")
    assert events[asset].extra == result
    # Another task with the same inputs, code and outputs finds everything done.
    again, _ = infer(place, "again", outputs=outputs)
    assert again["manifest"]["sha256"] == manifest["sha256"]
    store = DtrainHook().store
    assert store.shards.counts([again["trial_id"]])[again["trial_id"]].missing == 0
    # Other outputs are not mixed with them.
    with pytest.raises(AirflowFailException, match="overwrite"):
        infer(place, "other", outputs={**outputs, "columns": []})


@pytest.mark.nightly
def test_a_deferred_operator_announces_the_folder_when_its_trigger_has_fired(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.triggers.trial.EARLIEST_EVENT_S", 0.0)
    monkeypatch.setenv("AIRFLOW__DTRAIN__DEFER_AFTER", "1")

    def operator() -> BatchInferenceOperator:
        return BatchInferenceOperator(
            task_id="infer",
            config={"model_dir": "code"},
            processor="processors:Model",
            slots=1,
            deferrable=True,
            inputs={"path": str(place / "in"), "shard_rows": 50},
            outputs=str(place / "out"),
        )

    with pytest.raises(TaskDeferred) as deferred:
        operator().execute(context(place, "infer"))

    async def fired() -> Any:
        return [event.payload async for event in deferred.value.trigger.run()]

    [event] = asyncio.run(fired())
    found = context(place, "infer")
    # Another worker process ends the task.
    result = operator().execute_complete(found, json.loads(json.dumps(event)))
    assert result is not None
    assert (result["state"], result["manifest"]["rows"]) == ("completed", ROWS)
    (asset,) = found["outlet_events"]
    assert asset == Asset(f"file://{place / 'out'}")
    assert found["outlet_events"][asset].extra == result


def scale(batch, factor, *, ds=None):
    return {"scaled": batch["x"] * factor, "day": [ds] * len(batch["x"])}


@pytest.mark.nightly
def test_a_decorated_function_computes_each_batch(place: Path) -> None:
    with DAG("dag", schedule=None) as made:
        dtrain_batch_task(inputs=str(place / "in"), outputs=str(place / "out"), deferrable=False)(scale)(3)
    operator: Any = made.task_dict["scale"]
    result = operator.execute(context(place, "scale"))
    table = pq.read_table([str(path) for path in sorted((place / "out").glob("*.parquet"))])
    assert result["manifest"]["rows"] == table.num_rows == ROWS
    assert set(table["day"].to_pylist()) == {"2026-01-02"}
    source = pq.read_table(place / "in")
    assert sum(table["scaled"].to_pylist()) == pytest.approx(3 * sum(source["x"].to_pylist()))
