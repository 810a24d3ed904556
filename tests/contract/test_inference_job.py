"""Job of a batch inference: its weights, its part of the context, and the shards that failures were attributed to."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.engine.attempt.job import inference_modules, load_job, source_of
from airflow_provider_dtrain.engine.attempt.source_checkpoint import pinned
from airflow_provider_dtrain.engine.submission.submit import may_preempt
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from testbed.stores import host

SETTINGS: Any = SimpleNamespace(kill_grace_s=1, orphan_timeout_s=1, log_limit_bytes=1)
BUCKET = {"type": "s3", "bucket": "b"}


def effective(**section: Any) -> Any:
    return assemble(None, {"inference": {"processor": "m:P", "outputs": {"path": "/out"}, **section}})


def submitted(store, document, task="infer", **fields):
    config = store.configs.put(document, origins={})
    key = TrialKey(dag_id="d", run_id=task, task_id=task)
    submission = TrialSubmission(
        key=key, config_id=config.config_id, **{"experiment_name": "e", "pool": "gpus", "slots": 1, **fields}
    )
    return store.trials.submit(submission)


def trained(store, start, *, name="digits", metrics=(0.5,), task="train", ends=True):
    """Return a trial that reported its metric and wrote a checkpoint to a bucket at each of these values."""
    document = assemble(
        None,
        {"entrypoint": "a", "searcher": {"name": "single", "metric": "loss"}, "checkpoint_storage": BUCKET},
    ).document
    ticket = submitted(store, document, task=task, experiment_name=name)
    watch = start(ticket)
    folder = f"s3://b/experiment-{ticket.experiment_id}/trial-{ticket.trial_id}"
    events = []
    for step, value in enumerate(metrics, 1):
        report = {"seq": 2 * step, "at": 1.0, "step": step, "metrics": {"loss": value}}
        events.append({**report, "kind": "validation"})
        events.append({**report, "seq": 2 * step + 1, "kind": "checkpoint", "path": f"{folder}/step-{step}",
                       "sha256": "ab" * 32})  # fmt: skip
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 100, events)
    if ends:
        result = {"metric": min(metrics)}
        store.attempts.end(ticket.attempt_id, watch, state="completed", result=result)
        store.queue.release(ticket.attempt_id, watch, ["a"], proof="clear")
    return ticket


def context(store, ticket):
    view = store.attempts.get(ticket.attempt_id)
    return load_job(store, view, SETTINGS).context(view)


def test_only_a_batch_inference_gets_the_failures_of_shards(store, start) -> None:
    store.hosts.add(host("a"))
    plain = submitted(store, assemble(None, {"entrypoint": "a"}).document, task="plain")
    ticket = submitted(store, effective().document)
    assert set(context(store, ticket)) - set(context(store, plain)) == {"shard_failures"}
    found = context(store, ticket)
    assert (found["source_checkpoint"], found["shard_failures"]) == (None, {})
    assert found["config"]["inference"]["outputs"]["path"] == "/out"


def test_the_context_says_whether_ranks_share_a_gpu(store, start) -> None:
    store.hosts.add(host("a"))
    ticket = submitted(store, assemble(None, {"entrypoint": "a"}).document, task="plain")
    view = dataclasses.replace(store.attempts.get(ticket.attempt_id), placement={"a": (0, 1)})
    job = load_job(store, view, SETTINGS)
    of = {name: dataclasses.replace(job, devices={"a": {0: f"{name}-0", 1: f"{name}-1"}}) for name in ("MIG", "GPU")}
    assert {name: one.context(view)["shares_devices"] for name, one in of.items()} == {"MIG": True, "GPU": False}


def test_weights_of_an_experiment_are_pinned_to_its_best_trial(store, start) -> None:
    store.hosts.add(host("a"))
    first = trained(store, start, metrics=(0.5, 0.2, 0.4))
    document = pinned(store, effective(weights={"experiment": "digits"}).document)
    assert document["inference"]["weights"] == f"trial:{first.trial_id}:best"
    # An experiment of the same name that runs now has no final best trial.
    store.hosts.add(host("b"))
    trained(store, start, metrics=(0.1,), task="again", ends=False)
    assert pinned(store, effective(weights={"experiment": "digits"}).document) == document
    found = context(store, submitted(store, document))
    assert found["source_checkpoint"].endswith(f"/trial-{first.trial_id}/step-2")


def test_an_experiment_is_also_named_by_its_id(store, start) -> None:
    store.hosts.add(host("a"))
    first = trained(store, start)
    document = pinned(store, effective(weights={"experiment": first.experiment_id}).document)
    assert document["inference"]["weights"] == f"trial:{first.trial_id}:best"


@pytest.mark.parametrize(
    ("weights", "words"),
    [("experiment:nothing", "no experiment 'nothing'"), ("experiment:99", "no experiment '99'"),
     ("experiment:running", "is still running")],
)  # fmt: skip
def test_an_experiment_without_a_best_trial_is_an_error_of_the_field(store, start, weights, words) -> None:
    store.hosts.add(host("a"))
    trained(store, start, name="running", ends=False)
    with pytest.raises(ConfigError, match=words) as error:
        pinned(store, effective(weights=weights).document)
    assert error.value.problems[0].path == "inference.weights"


def test_weights_that_do_not_exist_are_an_error_of_the_field(store) -> None:
    with pytest.raises(ConfigError, match="no trial 99") as error:
        source_of(store, effective(weights="trial:99").config, None)
    assert error.value.problems[0].path == "inference.weights"


def test_the_context_counts_the_failures_of_each_shard_over_all_attempts(store, start) -> None:
    store.hosts.add(host("a"))
    ticket = submitted(store, effective().document)
    for number, index in enumerate((4, 4, 7)):
        # The next attempt keeps the gang.
        watch = start(ticket) if number == 0 else store.attempts.watch(ticket.attempt_id, watcher="test")
        failure = {"error": "ShardFailedError", "kind": "user", "message": "m", "shard": {"index": index, "label": "x"}}
        ticket = store.attempts.next(ticket.attempt_id, watch, failure=failure, counted=False)
    assert context(store, ticket)["shard_failures"] == {"4": 2, "7": 1}


def test_a_batch_inference_can_be_preempted_from_its_start() -> None:
    assert may_preempt(effective().config) is True
    assert may_preempt(assemble(None, {"entrypoint": "a"}).config) is None
    config = assemble(None, {"inference": {"processor": "m:P", "outputs": {"path": "/o"}}, "preemptible": False}).config
    assert may_preempt(config) is False


@pytest.mark.parametrize(
    ("section", "modules"),
    [
        ({}, ("pyarrow",)),
        ({"inputs": {"path": "/a", "format": "images"}}, ("PIL", "pyarrow")),
        ({"outputs": {"path": "s3://b/o", "format": "jsonl"}}, ("fsspec", "pyarrow", "s3fs")),
        ({"inputs": {"path": ["gs://a", "memory://b"]}}, ("fsspec", "gcsfs", "pyarrow")),
    ],
)
def test_modules_for_inputs_and_outputs_are_looked_for_before_the_launch(section, modules) -> None:
    assert inference_modules(effective(**section).config) == modules


def test_the_latest_events_of_one_rank_are_read_in_order(store, start) -> None:
    store.hosts.add(host("a", slots=2))
    ticket = submitted(store, effective().document, slots=2)
    watch = start(ticket)

    def event(seq, kind, shard):
        return {"seq": seq, "at": 1.0, "kind": kind, "shard": shard, "label": f"part-{shard}"}

    first = [event(1, "shard_started", 0), event(2, "shard_done", 0), event(3, "init", 0)]
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 9, first)
    store.events.commit(ticket.attempt_id, watch, "a", "rank1.events", 0, 9, [event(1, "shard_started", 1)])
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 9, 20, [event(4, "shard_started", 2)])
    found = [(one["kind"], one["shard"]) for one in store.shards.of_rank(ticket.attempt_id, 0)]
    assert found == [("shard_started", 0), ("shard_done", 0), ("shard_started", 2)]
    assert [one["shard"] for one in store.shards.of_rank(ticket.attempt_id, 1)] == [1]
    assert store.shards.finished(ticket.attempt_id) == 1
