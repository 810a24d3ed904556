"""Batch inference as a task: its configuration, its outlets, and the function of a decorated task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, task
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.decorators.dtrain_batch import DtrainBatchDecoratedOperator, dtrain_batch_task
from airflow_provider_dtrain.engine.submission.inference import with_inference
from airflow_provider_dtrain.engine.submission.search import Selection
from airflow_provider_dtrain.errors import ConfigError, FunctionError
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator
from airflow_provider_dtrain.operators.search import SelectBestTrialOperator

MANIFEST = {"location": "s3://bucket/out", "rows": 9, "rows_bad": 0, "shards": 3, "bytes": 99, "skipped": [],
            "sha256": "ab", "schema": {"label": "int64"}}  # fmt: skip
RESULT = {"experiment_id": 3, "trial_id": 7, "state": "completed", "manifest": MANIFEST}
#: XCom of a training task.
TRAINED = {"trial_id": 5, "checkpoint": "/c/step-3", "hosts": [{"host": "a"}], "metrics": {"loss": 0.1}}


def configured(folder: Path = Path(), held: Any = None, **arguments: Any) -> Mapping[str, Any]:
    operator = BatchInferenceOperator(task_id="infer", **arguments)
    found = operator._configured(folder, held)
    assert isinstance(found, Mapping)
    return found


def test_arguments_alone_are_a_configuration() -> None:
    document = configured(
        processor="models:Digits", inputs="s3://bucket/in", outputs={"path": "/out", "columns": ["id"]},
        weights=TRAINED, batch_size="128", slots="2", host_pool="gpus",
    )  # fmt: skip
    effective = assemble(None, document)
    section = effective.document["inference"]
    assert section["inputs"] == {"path": ["s3://bucket/in"]}
    assert (section["weights"], section["batch_size"], section["outputs"]["columns"]) == ("trial:5:best", 128, ["id"])
    assert effective.config.resources.slots_per_trial == 2
    assert effective.config.resources.pool == "gpus"
    assert "hosts" not in json.dumps(document["inference"]["weights"])


def test_arguments_override_the_fields_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "infer.yaml").write_text(
        "inference:\n  processor: a:B\n  inputs: {path: /in, columns: [x]}\n  outputs: {path: /out, format: jsonl}\n"
        "  batch_size: 7\nresources: {slots_per_trial: 3}\n"
    )
    document = configured(tmp_path, config="infer.yaml", inputs=["/new", "/more"], outputs="s3://bucket/new")
    section = document["inference"]
    assert section["inputs"] == {"path": ["/new", "/more"], "columns": ["x"]}
    assert section["outputs"] == {"path": "s3://bucket/new", "format": "jsonl"}
    assert (section["processor"], section["batch_size"]) == ("a:B", 7)
    assert document["resources"] == {"slots_per_trial": 3}


def test_a_held_gang_gives_the_number_of_slots_unless_something_states_one() -> None:
    held = SimpleNamespace(slots=4)
    assert configured(held=held)["resources"] == {"slots_per_trial": 4}
    assert configured(held=held, slots=2)["resources"] == {"slots_per_trial": 2}
    assert configured(held=held, config={"resources": {"slots_per_trial": 1}})["resources"] == {"slots_per_trial": 1}


def test_a_rendered_configuration_takes_no_arguments() -> None:
    rendered = {"config_id": 1, "digest": "d"}
    assert configured(config=rendered) == rendered
    with pytest.raises(ConfigError, match="belongs to the task that renders") as error:
        configured(config=rendered, inputs="/in", slots=0)
    assert [problem.path for problem in error.value.problems] == ["inputs", "slots"]


def test_a_section_that_is_no_map_is_refused() -> None:
    with pytest.raises(ConfigError, match="inference"):
        with_inference({"inference": "infer.yaml"}, {})


def announced(operator: BatchInferenceOperator, result: Any = RESULT) -> OutletEventAccessors:
    events = OutletEventAccessors()
    operator._announce({"outlet_events": events}, result)  # type: ignore[typeddict-item]
    return events


def test_a_folder_that_the_dag_file_names_is_an_outlet_whose_event_has_the_result_of_the_task() -> None:
    operator = BatchInferenceOperator(task_id="infer", outputs={"path": "s3://bucket/out"})
    assert operator.outlets == [Asset("s3://bucket/out")]
    extra = announced(operator)[operator.outlets[0]].extra
    assert extra == RESULT
    json.dumps(extra, allow_nan=False)


def test_a_folder_that_is_known_at_run_time_is_announced_by_an_alias() -> None:
    with DAG("predict", schedule=None):
        operator = BatchInferenceOperator(task_id="infer", outputs="{{ params.folder }}")
    assert operator.outlets == []
    events = announced(operator)
    assert operator.outlets == [AssetAlias("dtrain-outputs-predict.infer")]
    (event,) = events[operator.outlets[0]].asset_alias_events
    assert event.dest_asset_key.uri == "s3://bucket/out"
    assert event.extra == RESULT


def test_outlets_of_the_user_replace_the_default() -> None:
    mine, alias = Asset("predictions"), AssetAlias("any")
    operator = BatchInferenceOperator(task_id="infer", outputs="s3://bucket/out", outlets=[mine, alias])
    events = announced(operator)
    assert operator.outlets == [mine, alias]
    assert events[mine].extra["trial_id"] == 7
    assert len(events[alias].asset_alias_events) == 1


@pytest.mark.parametrize("result", [None, {"manifest": None}, {}])
def test_an_inference_without_a_manifest_adds_nothing_to_the_events(result: Any) -> None:
    operator = BatchInferenceOperator(task_id="infer", outputs="/out")
    assert operator.outlets == [Asset("file:///out")]
    assert len(announced(operator, result)) == 0


def test_the_operator_can_be_mapped_and_serialized() -> None:
    with DAG("predict", schedule=None) as made:
        BatchInferenceOperator.partial(task_id="infer", processor="a:B", deferrable=True).expand(outputs=["/a", "/b"])
    assert isinstance(made.task_dict["infer"], MappedOperator)
    DagSerialization.from_dict(DagSerialization.to_dict(made))


def test_an_inference_without_a_dag_of_its_own_announces_its_folder_and_no_model() -> None:
    best = SelectBestTrialOperator(task_id="best", plan=[], name="digits")
    selection = Selection(experiment="digits", result=RESULT, is_new_best=False, before=None)
    events = OutletEventAccessors()
    best._announce_outputs({"outlet_events": events}, selection)  # type: ignore[typeddict-item]
    (alias,) = events
    assert alias == AssetAlias("dtrain-outputs-digits")
    assert alias in best.outlets
    assert events[alias].asset_alias_events[0].extra == RESULT


# -- the decorator


def predict(batch, threshold, *, scale=2):
    return {"label": [value * scale > threshold for value in batch["x"]]}


def nothing():
    return None


def keyword(*, batch):
    return batch


def test_airflow_finds_the_decorator() -> None:
    assert "dtrain_batch" in {name for name, _ in ProvidersManagerTaskRuntime().taskflow_decorators.items()}


def test_the_call_in_the_dag_leaves_out_the_batch() -> None:
    with DAG("predict", schedule=None) as made:
        task.dtrain_batch(outputs="/out", slots=2)(predict)(0.5)
    operator = made.task_dict["predict"]
    assert isinstance(operator, DtrainBatchDecoratedOperator)
    assert operator.op_args == [None, 0.5]
    assert operator._fields()["processor"] == "dtrain_batch:predict"
    assert not operator.multiple_outputs
    DagSerialization.from_dict(DagSerialization.to_dict(made))
    with DAG("again", schedule=None), pytest.raises(TypeError, match="threshold"):
        dtrain_batch_task(outputs="/out")(predict)()


def test_a_mapped_call_has_one_inference_per_argument() -> None:
    with DAG("predict", schedule=None) as made:
        dtrain_batch_task(predict, outputs="/out").expand(threshold=[0.1, 0.9])
    mapped = made.task_dict["predict"]
    assert isinstance(mapped, MappedOperator)
    assert mapped.retries == 3


@pytest.mark.parametrize("function", [nothing, keyword])
def test_a_function_without_a_parameter_for_the_batch_is_refused(function: Any) -> None:
    with DAG("predict", schedule=None), pytest.raises(FunctionError, match="no parameter for the batch"):
        dtrain_batch_task(outputs="/out")(function)()
