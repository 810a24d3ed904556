"""Submission of a batch inference by its operator and its decorator, with a store and without hosts' processes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_dtrain.decorators.dtrain_batch import dtrain_batch_task
from airflow_provider_dtrain.engine.attempt.xcom_result import trial_result
from airflow_provider_dtrain.engine.submission.search import plan_search, select_best
from airflow_provider_dtrain.errors import ConfigError, FunctionError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host, new_sqlite
from tests.support.task_facts import task_of

ROOT = Path(__file__).parents[2]
KEY = TrialKey(dag_id="d", run_id="r", task_id="infer")
MANIFEST = {"location": "/elsewhere", "rows": 9, "rows_bad": 0, "shards": 3, "bytes": 99, "skipped": [],
            "sha256": "ab", "schema": {"label": "int64"}}  # fmt: skip


@pytest.fixture
def hook(tmp_path: Path) -> DtrainHook:
    found = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=new_sqlite(tmp_path / "dtrain.db")))
    found.store.hosts.add(host("a", slots=2, pool="train"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a DAG file, with code."""
    code = tmp_path / "dags"
    (code / "models").mkdir(parents=True)
    (code / "models" / "digits.py").write_text("VALUE = 1\n")
    return code


def started(hook: DtrainHook, ticket: Any) -> int:
    watch = hook.store.attempts.watch(ticket.attempt_id, watcher="test")
    hook.store.queue.schedule("train")
    assert hook.store.queue.take_up(ticket.attempt_id, watch)
    hook.store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"a": {"ranks": [{"rank": 0}]}}})
    hook.store.attempts.set_running(ticket.attempt_id, watch)
    return int(watch)


def test_the_operator_submits_a_trial_whose_result_has_the_manifest(hook: DtrainHook, folder: Path) -> None:
    operator = BatchInferenceOperator(
        task_id="infer", processor="models.digits:Digits", inputs="/in", outputs="/out", host_pool="train"
    )
    (ticket,) = operator._submit(hook, task_of(KEY, folder))
    view = hook.store.attempts.get(ticket.attempt_id)
    assert view.experiment == "d.infer"
    assert operator._submit(hook, task_of(KEY, folder)) == [ticket]
    watch = started(hook, ticket)
    assert trial_result(hook.store, view, "completed")["manifest"] is None
    event = {"seq": 1, "at": 1.0, "kind": "manifest", **MANIFEST}
    hook.store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 9, [event])
    # A host cannot announce another folder than that of the configuration.
    assert trial_result(hook.store, view, "completed")["manifest"] == {**MANIFEST, "location": "/out"}


def test_two_runs_of_an_inference_have_one_seed(hook: DtrainHook, folder: Path) -> None:
    seeds = set()
    for run_id in "ab":
        operator = BatchInferenceOperator(task_id="infer", processor="a:B", outputs="/out", host_pool="train")
        (ticket,) = operator._submit(hook, task_of(dataclasses.replace(KEY, run_id=run_id), folder))
        seeds.add(hook.store.attempts.get(ticket.attempt_id).seed)
    assert len(seeds) == 1, "results of another seed are not continued"


def test_a_training_trial_has_no_manifest(hook: DtrainHook, folder: Path) -> None:
    (ticket,) = TrialOperator(task_id="t", config={"entrypoint": "a", "resources": {"pool": "train"}})._submit(
        hook, task_of(KEY, folder)
    )
    assert "manifest" not in trial_result(hook.store, hook.store.attempts.get(ticket.attempt_id), "completed")


def test_weights_that_do_not_exist_fail_the_task_before_anything_waits(hook: DtrainHook, folder: Path) -> None:
    operator = BatchInferenceOperator(
        task_id="infer", processor="a:B", outputs="/out", host_pool="train", weights={"experiment": "nothing"}
    )
    with pytest.raises(ConfigError, match=r"inference\.weights: there is no experiment 'nothing'"):
        operator._submit(hook, task_of(KEY, folder))
    assert hook.store.trials.list() == []


def test_an_inference_of_the_command_line_is_no_new_best_model(hook: DtrainHook, folder: Path) -> None:
    document = {
        "name": "digits", "inference": {"processor": "a:B", "outputs": {"path": "/out"}},
        "searcher": {"name": "single", "metric": "accuracy"}, "resources": {"pool": "train"},
    }  # fmt: skip
    (spec,) = plan_search(hook, dataclasses.replace(KEY, task_id="plan"), document, None, folder)
    (ticket,) = TrialOperator(task_id="infer", trial=spec)._submit(hook, task_of(KEY, folder))
    watch = started(hook, ticket)
    events = [
        {"seq": 1, "at": 1.0, "kind": "validation", "step": 1, "metrics": {"accuracy": 0.9}},
        {"seq": 2, "at": 1.0, "kind": "manifest", **MANIFEST},
    ]
    hook.store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 9, events)
    result = trial_result(hook.store, hook.store.attempts.get(ticket.attempt_id), "completed")
    hook.store.attempts.end(ticket.attempt_id, watch, state="completed", result=result)
    selection = select_best(hook.store, spec["search_id"], dataclasses.replace(KEY, task_id="best"))
    assert selection.result["metric"] == 0.9
    assert (selection.is_new_best, selection.announced) == (False, None)
    assert selection.result["manifest"] == {**MANIFEST, "location": "/out"}


def predict(batch, threshold, *, scale=2, ds=None):
    import math

    return {"label": [math.floor(value * scale) > threshold for value in batch["x"]], "day": ds}


def batch_operator(**arguments: Any) -> Any:
    with DAG("d", schedule=None) as made:
        dtrain_batch_task(outputs="/out", inputs="/in", host_pool="train", **arguments)(predict)(3, scale=4)
    return made.task_dict["predict"]


@pytest.mark.parametrize("model_dir", [None, "models"])
def test_the_function_runs_on_a_host_with_the_arguments_of_its_call(
    hook: DtrainHook, folder: Path, tmp_path: Path, model_dir: str | None
) -> None:
    operator = batch_operator(config={"model_dir": model_dir} if model_dir else None)
    operator._context = {"ds": "2026-01-02"}
    (ticket,) = operator._submit(hook, task_of(KEY, folder))
    view = hook.store.attempts.get(ticket.attempt_id)
    section = hook.store.configs.get(view.config_id).document["inference"]
    assert section["processor"] == "dtrain_batch:predict"
    with tarfile.open(fileobj=io.BytesIO(hook.store.payloads.get(str(view.payload)))) as archive:
        archive.extractall(tmp_path / "host")
    assert (tmp_path / "host" / "digits.py").exists() == bool(model_dir)
    code = "import dtrain_batch, json; print(json.dumps(dtrain_batch.predict({'x': [0.5, 1.0]})))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "host", env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"label": [False, True], "day": "2026-01-02"}


def with_context(batch, ctx, limit, *, scale=1):
    return {"seen": [ctx, limit, scale], "rows": batch}


def with_context_by_name(batch, limit, *, ctx, scale=1):
    return {"seen": [ctx, limit, scale], "rows": batch}


@pytest.mark.parametrize("function", [with_context, with_context_by_name])
def test_a_function_gets_the_context_of_the_host(hook: DtrainHook, folder: Path, tmp_path: Path, function: Any) -> None:
    with DAG("d", schedule=None) as made:
        dtrain_batch_task(outputs="/out", inputs="/in", host_pool="train")(function)(limit=3, scale=4)
    operator: Any = made.task_dict[function.__name__]
    view = hook.store.attempts.get(operator._submit(hook, task_of(KEY, folder))[0].attempt_id)
    with tarfile.open(fileobj=io.BytesIO(hook.store.payloads.get(str(view.payload)))) as archive:
        archive.extractall(tmp_path / "host")
    code = f"import dtrain_batch, json; print(json.dumps(dtrain_batch.{function.__name__}([1], ctx='the context')))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "host", env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"seen": ["the context", 3, 4], "rows": [1]}


def test_other_arguments_are_other_code(hook: DtrainHook, folder: Path) -> None:
    payloads = set()
    for scale in (1, 2):
        with DAG("d", schedule=None) as made:
            dtrain_batch_task(outputs="/out", inputs="/in", host_pool="train")(predict)(3, scale=scale)
        key = dataclasses.replace(KEY, run_id=str(scale))
        operator: Any = made.task_dict["predict"]
        payloads.add(hook.store.attempts.get(operator._submit(hook, task_of(key, folder))[0].attempt_id).payload)
    assert len(payloads) == 2, "results of other arguments must not be reused"


def test_a_processor_beside_the_function_is_refused(hook: DtrainHook, folder: Path) -> None:
    with pytest.raises(FunctionError, match="Remove processor"):
        batch_operator(processor="a:B")._submit(hook, task_of(KEY, folder))
