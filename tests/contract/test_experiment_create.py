"""Checks of ``experiments create`` before Airflow gets a DAG run, with a store."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli import experiments_create
from airflow_provider_dtrain.cli._inputs import InputDocument, read
from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.engine.submission.search import plan_search
from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.secrets import private_variables, seal
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host, new_sqlite
from tests.support.search_world import Search

ARGS = argparse.Namespace(dag="d", config="c.yaml", model_dir=None, template=None, follow=False, output="json")

KEY = TrialKey(dag_id="d", run_id="r", task_id="plan")
SEARCHER = "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"


@pytest.fixture
def hook(tmp_path: Path) -> DtrainHook:
    found = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=new_sqlite(tmp_path / "dtrain.db")))
    found.store.hosts.add(host("a", slots=2, pool="train"))
    return found


@pytest.fixture
def triggered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The configurations of DAG runs that Airflow would have got."""
    runs: list[dict[str, Any]] = []
    monkeypatch.setattr(experiments_create, "require_ready", lambda dag_id: None)
    monkeypatch.setattr(experiments_create, "_trigger", lambda dag_id, conf, run_id: runs.append(conf) or "run")
    return runs


def source(folder: Path, entrypoint: str, more: str = "") -> InputDocument:
    path = folder / "c.yaml"
    path.write_text(f"entrypoint: {entrypoint}\nresources: {{slots_per_trial: 1, resource_pool: train}}\n{more}")
    return read(str(path), what="configuration")


def test_a_script_that_the_code_lacks_is_a_problem_and_starts_nothing(hook, triggered, tmp_path):
    (tmp_path / "train.py").mkdir()
    with pytest.raises(ConfigError) as refused:
        experiments_create.start(ARGS, hook, source(tmp_path, "python ./train.py"))
    (problem,) = refused.value.problems
    assert problem.path == "entrypoint"
    assert problem.message == (
        f"the code in {tmp_path} has no file 'train.py'. Put it there, or correct model_dir or entrypoint"
    )
    assert triggered == []
    (tmp_path / "train.py").rmdir()
    (tmp_path / "train.py").write_text("")
    assert experiments_create.start(ARGS, hook, source(tmp_path, "python ./train.py")) == 0
    assert len(triggered) == 1


@pytest.mark.each_change
def test_a_task_refuses_a_script_that_its_code_lacks_before_anything_waits(hook, tmp_path):
    (tmp_path / "port").mkdir()
    (tmp_path / "port" / "train.py").write_text("")
    document = {"name": "n", "entrypoint": "python3 train.py", "resources": {"resource_pool": "train"}}
    searcher = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 8}}
    here = rf"the code in {tmp_path} has no file 'train\.py'.*\(there is one in port: model_dir: port\)"
    drawn = {"lr": {"type": "double", "minval": 0.1, "maxval": 0.2}}
    for given in (document, {**document, "searcher": searcher, "hyperparameters": drawn}):
        with pytest.raises(ConfigError, match=here):
            plan_search(hook, KEY, given, None, tmp_path)
        with pytest.raises(ConfigError, match=here):
            submit(hook, render(hook, document, None, tmp_path), key=KEY, folder=tmp_path)
        with pytest.raises(ConfigError, match=f"model_dir: folder {tmp_path}/prot does not exist"):
            plan_search(hook, KEY, {**given, "model_dir": "prot"}, None, tmp_path)
    assert hook.store.experiments.list() == []
    for model_dir in ("port", str(tmp_path / "port")):
        plan_search(hook, KEY, {**document, "name": model_dir[-4:], "model_dir": model_dir}, None, tmp_path)


def test_the_script_is_expected_in_the_folder_of_the_command_line(hook, triggered, tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "empty").mkdir()
    args = argparse.Namespace(**{**vars(ARGS), "model_dir": str(tmp_path / "empty")})
    with pytest.raises(ConfigError, match=r"empty has no file 'train\.py'"):
        experiments_create.start(args, hook, source(tmp_path, "python train.py"))
    assert triggered == []


def test_the_run_is_named_with_its_page_and_the_configuration_with_its_warnings(hook, triggered, tmp_path, capsys):
    (tmp_path / "train.py").write_text("")
    given = source(tmp_path, "python train.py", "checkpoint_policy: all\nrecords_per_epoch: 5\ndebug: true\n")
    assert experiments_create.start(ARGS, hook, given) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out[shown.out.index("{") :])["page"].endswith("/dags/d/runs/run/plugin/dtrain-run")
    assert "Warning: debug" in shown.err


def test_a_module_that_the_code_lacks_is_a_warning(hook, triggered, tmp_path, capsys):
    assert experiments_create.start(ARGS, hook, source(tmp_path, "models.vision:Net", SEARCHER)) == 0
    assert "has no file 'models/vision.py', so the hosts must have installed this module" in capsys.readouterr().err
    assert len(triggered) == 1


@pytest.mark.parametrize(
    ("path", "processor", "name"),
    [
        ("conf/digits.yaml", "predict:Classifier", "digits"),
        (None, "predict:Classifier", "predict"),
        ("-", "package.predict:classify", "package.predict"),
        ("-", None, "dtrain_experiment"),
    ],
)
def test_an_experiment_without_a_name_is_named_after_its_file_or_its_processor(path, processor, name):
    section = {"inference": {"processor": processor, "outputs": {"path": "/out"}}} if processor else {"entrypoint": "x"}
    config = ExperimentConfig.model_validate(section)
    assert experiments_create.default_name(path, config, "dtrain_experiment") == name


@pytest.mark.parametrize(("user", "is_copied"), [(None, True), ("id of ann", False)])
def test_the_command_line_copies_the_secrets_of_administrators_and_not_those_of_users(
    hook, triggered, monkeypatch, user, is_copied
):
    store = hook.store
    store.payloads.put("c" * 64, b"code")
    masked, sealed = seal({"name": "e", "entrypoint": "python t.py", "environment": {"variables": {"TOKEN": "own"}}})
    search = Search(store, pool="train")
    search.config = store.configs.put(masked, origins={}, secrets=sealed).config_id
    search.plan(max_trials=1)
    trial_id = search.submit(0, slots=1, payload="c" * 64).trial_id
    granted = {"config_id": search.config, "payload": "c" * 64, "user_id": user}
    store.submissions.add(Submission(dag_id=search.dag, run_id=search.run, **granted))
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: hook)
    args = argparse.Namespace(trial_id=trial_id, secret=None, follow=False, output="json", verbose=False)
    reproduce = experiments_create.reproduce.__wrapped__
    if is_copied:
        assert reproduce(args) == 0
    else:
        with pytest.raises(ConfigError, match=r"another user submitted trial 1\. Give it again: --secret TOKEN"):
            reproduce(args)
        args.secret = ["TOKEN=mine"]
        assert reproduce(args) == 0
    stored = store.configs.get(triggered[-1]["config"]["config_id"])
    assert private_variables(stored.secrets) == {"TOKEN": "own" if is_copied else "mine"}
    assert len(triggered) == 1
