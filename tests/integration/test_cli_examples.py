"""Starts without a DAG of one's own: the examples' configurations, and batch inferences from options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_world import World

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]
DAGS = Path(__file__).parents[2] / "dags"
EXAMPLES = sorted(path for path in DAGS.glob("*/*.yaml") if path.name != "template.yaml")


@pytest.fixture(scope="module")
def ready(world: World) -> World:
    """A store with the host ``local``, and an Airflow that knows the DAG of ``experiments create``."""
    assert world("init").code == 0
    assert world("hosts", "add", "local", "--slots", "cpu:2").code == 0
    for arguments in (("dags", "reserialize"), ("dags", "unpause", "dtrain_experiment", "-y")):
        done = world.airflow(*arguments)
        assert done.code == 0, done.err
    return world


@pytest.mark.nightly(
    "digits-digits",
    "digits-grid",
    "hugging_face-train",
    "lightning_trainer-train",
    "accelerate_script-train",
    "experiment_loggers-train",
    "large_batch-large",
)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_example_is_validated_previewed_and_created(ready: World, path: Path) -> None:
    template = path.with_name("template.yaml")
    given = [str(path), *(["--template", str(template)] if template.exists() else [])]
    for command in (("configs", "validate"), ("searches", "preview"), ("experiments", "create")):
        done = ready(*command, *given)
        assert done.code == 0, f"{' '.join(command)}: {done.out}{done.err}"


def test_a_batch_inference_starts_from_options_alone(ready: World, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def predict(batch): ...\n")
    options = ["--processor", "model:predict", "--input", "/in/a", "--input", "/in/b", "--to", "/out", "--slots", "2"]
    (tmp_path / "empty.yaml").write_text("{}\n")
    done = ready("infer", str(tmp_path / "empty.yaml"), *options, "--batch-size", "auto", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["name"] == "empty"
    runs = ready.airflow("dags", "list-runs", "dtrain_experiment", "-o", "json")
    assert done.json["dag_run"] in runs.out


def test_options_override_the_configuration_of_an_inference(ready: World, tmp_path: Path) -> None:
    path = tmp_path / "infer.yaml"
    path.write_text("inference: {processor: 'model:predict', inputs: {path: /in}, outputs: {path: /out}}\n")
    wrong = ready("infer", str(path), "--to", "relative/folder", "--batch-size", "0")
    assert wrong.code == 1
    assert "inference.outputs.path: must be an absolute path or a URL" in wrong.err
    assert "inference.batch_size: must be a number of rows" in wrong.err
    assert "'relative/folder'" in wrong.err
    missing = ready("infer", str(path), "--weights", "experiment:nothing")
    assert missing.code == 1
    assert "there is no experiment 'nothing'" in missing.err
