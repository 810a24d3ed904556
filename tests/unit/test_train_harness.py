"""Typical mistakes of new users, and the harness's messages: fields, lengths, YAML, hyperparameters."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import airflow_provider_dtrain
from airflow_provider_dtrain.core.config import sections, unions
from airflow_provider_dtrain.core.config.determined_compat import FOREIGN, SYNONYMS
from airflow_provider_dtrain.core.config.environment import Environment
from airflow_provider_dtrain.core.config.experiment import ExperimentConfig
from airflow_provider_dtrain.core.config.inference import Inference
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.train import harness
from airflow_provider_dtrain.train.durations import Length
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.process import config_check, yaml12
from airflow_provider_dtrain.train.reports import failure
from tests.support.warm_ranks import run_program

ROOT = Path(airflow_provider_dtrain.__file__).parent.parent


def fields(*models):
    return frozenset(name for model in models for name in model.model_fields)


def test_the_table_of_fields_is_that_of_the_experiments_configuration():
    members = {union: fields(*models.values()) for union, models in unions.MEMBERS.items()}
    plain = {
        "resources": sections.Resources, "optimizations": sections.Optimizations, "profiling": sections.Profiling,
        "reproducibility": sections.Reproducibility, "environment": Environment,
        "inference": Inference, "diagnosis": sections.DiagnosisRun,
    }  # fmt: skip
    groups = {name: fields(model) for name, model in plain.items()}
    assert {"": fields(ExperimentConfig), **members, **groups} == config_check.FIELDS


def test_the_table_of_foreign_fields_is_what_an_experiment_renames_or_leaves_out():
    expected = {section: set(names) for section, names in FOREIGN.items()}
    for section, name in SYNONYMS:
        if section in config_check.FIELDS:
            expected.setdefault(section, set()).add(name)
        else:
            expected[""].add(section)
    # It is joined with the project.
    expected[""].add("workspace")
    assert expected == config_check.FOREIGN


def test_unknown_fields_are_named_all_at_once_with_what_was_meant():
    config = {
        "optimizations": {"agregation_frequency": 2}, "sercher": {}, "max_length": {"epochs": 1}, "qqq": 1,
        "searcher": {"max_lenght": 3}, "resources": 4, "data": {"anything": 1}, "profiling": None,
    }  # fmt: skip
    with pytest.raises(SetupError) as caught:
        config_check.check(config)
    said = str(caught.value)
    assert "no field optimizations.agregation_frequency (did you mean optimizations.aggregation_frequency?)" in said
    assert "no field sercher (did you mean searcher?)" in said
    assert "no field max_length (did you mean searcher.max_length?)" in said
    assert "no field searcher.max_lenght (did you mean searcher.max_length?)" in said
    assert "no field qqq" in said
    assert "resources must be a map of fields, got 4" in said
    assert "anything" not in said
    assert "profiling" not in said


def test_a_configuration_in_determineds_spelling_is_no_mistake():
    config_check.check({"workspace": "a", "resources": {"resource_pool": "b"}, "environment": {"ports": {}}})
    config_check.check({"hyperparameters": {"agregation_frequency": 1}, "searcher": None})


def test_ranges_without_a_value_are_named():
    space = {
        "lr": {"type": "log", "minval": -3, "maxval": -1}, "layers": 3, "seen": {"type": "int"},
        "optimizer": {"beta": {"type": "double"}, "name": {"type": "const", "val": "adam"}},
    }  # fmt: skip
    with pytest.raises(SetupError) as caught:
        config_check.check_ranges(space, {"seen": 4})
    said = str(caught.value)
    assert said.startswith("hyperparameters.lr is a range (log), hyperparameters.optimizer.beta is a range (double)")
    assert "hparams={'lr': ...}" in said
    assert "seen" not in said
    with pytest.raises(SetupError, match=r"hparams=\{'optimizer': \{'beta': \.\.\.\}\}"):
        config_check.check_ranges(space, {"seen": 4, "lr": 1})
    config_check.check_ranges(space, {"seen": 4, "lr": 1, "optimizer": {"beta": 0.9}})


@pytest.mark.parametrize("value", ["ten", 0, -1, 1.5, True])
def test_a_scheduling_unit_that_is_no_number_of_batches_is_named(value):
    with pytest.raises(SetupError, match="scheduling_unit must be "):
        config_check.scheduling_unit({"scheduling_unit": value})


def test_a_scheduling_unit_has_a_default():
    assert config_check.scheduling_unit({}) == config_check.scheduling_unit({"scheduling_unit": None}) == 100
    assert config_check.scheduling_unit({"scheduling_unit": 7}) == 7


SCALARS = [
    "1e-3", "1e3", "1.5", ".5", "+7", "on", "yes", "Off", "010", "12:30", "0x10", "0o10", "0b1", "1_000", ".inf",
    "-.Inf", "null", "~", "", "true", "True", "TRUE", "tRue", "2024-01-01", "'1'", '"true"', "=", "!!str 1",
    "!!float 1", "!!int '10'", "[1e-3, on]", "{a: 0x1f}", "|\n  10\n",
]  # fmt: skip


@pytest.mark.parametrize("scalar", SCALARS)
def test_yaml_means_the_same_as_in_an_experiment(scalar):
    ours, theirs = yaml12.load(f"a: {scalar}"), load_yaml(f"a: {scalar}")
    assert ours == theirs
    assert type(ours["a"]) is type(theirs["a"])


def test_yaml_has_not_a_number_merge_keys_and_tags_for_templates():
    assert math.isnan(yaml12.load(".nan"))
    text = "x: &x {a: 1e-1, b: on}\ny: {<<: *x, b: 2}"
    assert yaml12.load(text) == load_yaml(text) == {"x": {"a": 0.1, "b": "on"}, "y": {"a": 0.1, "b": 2}}
    tagged = yaml12.load("a: !override {b: 1e-1}\nc: !override 1e-1\nd: !reset\ne: !override [on]")
    assert tagged == {"a": {"b": 0.1}, "c": 0.1, "d": None, "e": ["on"]}


@pytest.mark.parametrize("text", ["a: [", "a: !!python/object:os.system x", "a: !!timestamp 2024-01-01", "a: !!int x"])
def test_yaml_that_an_experiment_refuses_is_refused(text):
    with pytest.raises(ConfigError):
        load_yaml(text)
    with pytest.raises(ValueError, match="line 1"):
        yaml12.load(text)


@pytest.mark.parametrize("value", [0, "epochs=0", {"epochs": 0}])
def test_to_train_nothing_is_refused_but_a_period_may_be_zero(value):
    for name in ("max_length", "searcher.max_length"):
        with pytest.raises(SetupError, match=f"^{name} must be .* got .*0.*, which trains nothing"):
            Length.parse(value, name)
    assert Length.parse(value, "min_checkpoint_period") is None


def test_a_length_that_is_not_understood_is_shown_as_it_was_typed():
    with pytest.raises(SetupError, match="^max_length must be one of .*, got 'banana'"):
        Length.parse("banana")


@pytest.mark.parametrize("text", ["banana", "epochs=0", "epochs", "epochs=-1", "hours=3", "10"])
def test_a_wrong_length_on_the_command_line_ends_before_anything_is_built(text, capsys):
    with pytest.raises(SystemExit) as caught:
        harness.main(["no_such_module:Trial", "--max-length", text])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"(N of 1 or more), e.g. epochs=10, got {text!r}" in said
    assert "no_such_module" not in said


def refused(capsys, *arguments):
    """Return the harness's error message."""
    assert harness.main(["model_def:Trial", *arguments]) == harness.EXIT_REFUSED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_mistakes_on_the_command_line_are_one_line_each(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(failure._state, "failed", False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "bad.yaml").write_text("a: [")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.yaml").write_text("- 1")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4")
    assert refused(capsys, "--config", "none.yaml") == "dtrain: --config none.yaml cannot be read: " + (
        "No such file or directory."
    )
    assert refused(capsys, "--config", ".").startswith("dtrain: --config . cannot be read: ")
    for name in ("bad.yaml", "bad.json", "latin.yaml"):
        assert refused(capsys, "--config", name).startswith(f"dtrain: --config {name} cannot be parsed: ")
    assert refused(capsys, "--config", "list.yaml").endswith("must hold a mapping, got list.")
    assert refused(capsys, "--hparam", "lr").startswith("dtrain: --hparam must be NAME=VALUE")


MODEL = """
from airflow_provider_dtrain import train as dtrain
from airflow_provider_dtrain.train import pytorch

class Needs(pytorch.PyTorchTrial):
    def __init__(self, context):
        context.get_hparam("lr")

class Raises(pytorch.PyTorchTrial):
    def __init__(self, context):
        raise dtrain.SetupError("mine")
"""


def run(folder, *arguments, **env):
    (folder / "model_def.py").write_text(MODEL)
    module = "airflow_provider_dtrain.train.harness"
    code = f"import runpy, sys\nsys.argv[1:] = {arguments!r}\nrunpy.run_module({module!r}, run_name='__main__')\n"
    return run_program(code, folder, **env)


@pytest.mark.torch
def test_what_the_library_refuses_is_one_line_with_a_way_out(tmp_path):
    code, said = run(tmp_path, "model_def:Needs")
    assert (code, len(said.splitlines())) == (2, 1), said
    assert said.startswith("dtrain: There is no hyperparameter 'lr'")
    assert said.endswith(" Here: --hparam lr=...\n")
    assert "Traceback" not in said


@pytest.mark.torch
def test_a_range_is_given_a_value_on_the_command_line(tmp_path):
    (tmp_path / "c.yaml").write_text("hyperparameters: {lr: {type: log, minval: -3, maxval: -1}}")
    code, said = run(tmp_path, "model_def:Needs", "--config", "c.yaml")
    assert (code, len(said.splitlines())) == (2, 1), said
    assert said.startswith("dtrain: hyperparameters.lr is a range (log)")
    assert "Here: --hparam lr=..." in said


@pytest.mark.torch
def test_what_the_users_code_raises_keeps_its_traceback(tmp_path):
    code, said = run(tmp_path, "model_def:Raises")
    assert code == 1
    assert 'raise dtrain.SetupError("mine")' in said


@pytest.mark.torch
def test_a_trial_keeps_its_error_file_and_its_traceback(tmp_path):
    path = tmp_path / "error.json"
    code, said = run(tmp_path, "model_def:Needs", DTRAIN_RUN="r", TORCHELASTIC_ERROR_FILE=str(path))
    assert code == 1, said
    assert "Here:" not in said
    error = json.loads(path.read_text())
    assert error["message"].startswith("HparamError: There is no hyperparameter 'lr'")
    assert "in get_hparam" in error["traceback"]


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("The length of training is not set. Set searcher.max_length, e.g. {epochs: 10}.", "--max-length epochs=10"),
        ("To continue anyway, set dtrain.init(fail_on_nan=False).", "--keep-going-on-nan"),
        ("it is in records, but there is no hyperparameter global_batch_size.", "--hparam global_batch_size=..."),
        ("hyperparameters.o.beta is a range (int)", '--hparam "o={...}" with the whole group'),
    ],
)
def test_a_message_says_how_it_is_put_right_on_the_command_line(said, hint):
    assert harness._with_hint(SetupError(said)) == f"{said} Here: {hint}"
