"""Section ``inference`` of a configuration: its fields, its rules, and its JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble, validate_partial
from airflow_provider_dtrain.core.config.inference import INFERENCE
from airflow_provider_dtrain.errors import ConfigError

OUTPUTS = {"path": "/out"}
SMALL = {"processor": "models:Digits", "outputs": OUTPUTS}


def document(section: Any, **more: Any) -> dict[str, Any]:
    effective: dict[str, Any] = assemble(None, {"inference": section, **more}).document["inference"]
    return effective


def problems(section: Any, **more: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        assemble(None, {"inference": section, **more})
    return {problem.path: problem.message for problem in error.value.problems}


def weights(value: Any) -> Any:
    return document({**SMALL, "weights": value}).get("weights")


def test_the_stored_section_has_every_default_and_runs_the_program_of_the_ranks() -> None:
    effective = assemble(None, {"inference": {**SMALL, "inputs": {"path": "s3://bucket/rows"}}})
    assert effective.document["inference"] == {
        "processor": "models:Digits",
        "inputs": {"path": ["s3://bucket/rows"]},
        "outputs": {"path": "/out", "format": "parquet", "columns": [], "preview": 20, "overwrite": False},
        "batch_size": 64,
        "on_bad_shard": "fail",
        "on_bad_row": "fail",
        "collect": False,
        "compile": False,
    }
    assert effective.config.command == INFERENCE
    assert ExperimentConfig.model_validate(effective.document) == effective.config


def test_a_declared_schema_is_kept_under_its_own_name() -> None:
    types = {"label": "int64", "scores": "list<float>"}
    assert document({**SMALL, "outputs": {**OUTPUTS, "schema": types}})["outputs"]["schema"] == types


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("trial:7", "trial:7"),
        ("trial:7:latest", "trial:7:latest"),
        ({"trial": 7}, "trial:7:best"),
        ({"trial": 7, "which": 300}, "trial:7:300"),
        ({"experiment": "digits asha"}, "experiment:digits asha"),
        ({"experiment": 12}, "experiment:12"),
        ({"trial_id": 7, "checkpoint": "h:run/step-1", "state": "completed"}, "trial:7:best"),
        ({"checkpoint": "s3://bucket/step-1"}, "s3://bucket/step-1"),
        ("/models/step-1", "/models/step-1"),
    ],
)
def test_each_way_to_name_weights_becomes_one_text(given: Any, kept: str) -> None:
    assert weights(given) == kept


@pytest.mark.parametrize(
    "given",
    ["step-1", "trial:x", "/a/../b", "experiment:", "a\nb", 7, [], {}, {"trial": "7:best:x"}, {"experiment": ""},
     {"experiment": True}, {"trial": 7, "experiment": "a"}, {"checkpoint": 3}, {"trial": 7, "which": "worst"}],
)  # fmt: skip
def test_weights_that_name_nothing_are_refused_with_the_forms(given: Any) -> None:
    found = problems({**SMALL, "weights": given})
    assert set(found) == {"inference.weights"}
    assert "must be" in found["inference.weights"]


def test_the_result_of_a_trial_without_a_checkpoint_names_the_trial() -> None:
    found = problems({**SMALL, "weights": {"trial_id": 7, "checkpoint": None}})
    assert "trial 7 has no checkpoint" in found["inference.weights"]


def test_weights_of_the_configuration_replace_those_of_the_template() -> None:
    template = {"inference": {"weights": {"trial": 3, "which": "best"}, "inputs": {"path": ["/a", "/b"]}}}
    config = {"inference": {**SMALL, "weights": {"experiment": "x"}, "inputs": {"path": "/c"}}}
    section = assemble(template, config).document["inference"]
    assert section["weights"] == "experiment:x"
    assert section["inputs"]["path"] == ["/c"]


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "64", "max", 1 << 40, float("nan"), None, []])
def test_a_batch_size_is_a_number_of_rows_or_auto(given: Any) -> None:
    if given is None:
        assert document({**SMALL, "batch_size": None})["batch_size"] == 64
        return
    assert set(problems({**SMALL, "batch_size": given})) == {"inference.batch_size"}
    assert document({**SMALL, "batch_size": "auto"})["batch_size"] == "auto"


def test_fields_that_contradict_the_section_are_named_at_their_places() -> None:
    search = {"name": "random", "metric": "loss", "max_trials": 3, "source_checkpoint": "trial:1"}
    found = problems(
        SMALL, entrypoint="python a.py", searcher=search, hyperparameters={"lr": {"type": "double", "minval": 0,
        "maxval": 1}}
    )  # fmt: skip
    assert set(found) == {"entrypoint", "searcher.name", "searcher.source_checkpoint"}


def test_an_inference_without_outputs_or_processor_is_refused() -> None:
    assert set(problems({"processor": "a:B"})) == {"inference.outputs"}
    assert set(problems({"processor": "a:B", "outputs": {}})) == {"inference.outputs.path"}
    assert set(problems({"outputs": OUTPUTS})) == {"inference.processor"}
    # The decorator brings the code.
    assert assemble(None, {"inference": {"outputs": OUTPUTS}}, needs_entrypoint=False).config.inference is not None


def test_a_model_over_several_slots_is_refused_by_name() -> None:
    found = problems({**SMALL, "tensor_parallel_size": 2})
    assert "several slots for one replica" in found["inference.tensor_parallel_size"]


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"outputs": {**OUTPUTS, "columns": ["a"], "row_id": "a"}}, "inference.outputs"),
        ({"outputs": {**OUTPUTS, "columns": ["a"], "schema": {"a": "int64"}}}, "inference.outputs"),
        ({"outputs": {**OUTPUTS, "row_id": "a", "schema": {"a": "int64"}}}, "inference.outputs"),
        ({"outputs": {**OUTPUTS, "columns": ["a", "a"]}}, "inference.outputs.columns"),
        ({"outputs": {**OUTPUTS, "columns": ["a"]}}, "inference.outputs.columns"),
        ({"outputs": {"path": "relative/folder"}}, "inference.outputs.path"),
        ({"outputs": {"path": "/a/../b"}}, "inference.outputs.path"),
        ({"outputs": {"path": "s3://a/b"}, "collect": True}, "inference.outputs.path"),
        ({"inputs": {"path": []}}, "inference.inputs.path"),
        ({"inputs": {"path": ["/a", 3]}}, "inference.inputs.path.1"),
        ({"inputs": {"path": "/a", "format": "images", "columns": ["a"]}}, "inference.inputs.columns"),
        ({"inputs": {"path": "/a", "shard_rows": 0}}, "inference.inputs.shard_rows"),
        ({"processor": "digits.py"}, "inference.processor"),
        ({"on_bad_shard": "ignore"}, "inference.on_bad_shard"),
        ({"outputs": {**OUTPUTS, "schema": {}}}, "inference.outputs.schema"),
        ({"outputs": {**OUTPUTS, "shema": {"a": "b"}}}, "inference.outputs.shema"),
    ],
)
def test_a_wrong_field_is_one_problem_at_its_place(section: Any, path: str) -> None:
    assert set(problems({**SMALL, **section})) == {path}


def test_a_template_may_have_a_part_of_the_section() -> None:
    assert validate_partial({"inference": {"batch_size": "auto", "outputs": {"format": "jsonl"}}}, template=True) == []


def test_the_json_schema_describes_the_section_as_users_write_it() -> None:
    definitions = ExperimentConfig.model_json_schema()["$defs"]
    assert "schema" in definitions["InferenceOutputs"]["properties"]
    assert definitions["InferenceOutputs"]["required"] == ["path"]
    assert definitions["Inputs"]["properties"]["path"]["anyOf"][0]["anyOf"][0] == {"type": "string"}
    assert "experiment" in json.dumps(definitions["Inference"]["properties"]["weights"])
    assert {"const": "auto"} in definitions["Inference"]["properties"]["batch_size"]["anyOf"]


def test_a_data_set_from_code_may_have_a_size_of_shards_and_nothing_of_files():
    def problems(**inputs):
        return assemble(None, {"inference": {"processor": "m:P", "outputs": {"path": "/out"}, "inputs": inputs}})

    assert problems(shard_rows=10).config.inference.inputs.path is None
    with pytest.raises(ConfigError, match="format and columns given without path"):
        problems(format="csv", columns=["a"])
