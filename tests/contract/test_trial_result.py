"""The result of a trial, from what its ranks reported to the store."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.engine.attempt.xcom_result import trial_result
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from testbed.stores import host

REPORTS = ((10, 0.5), (20, 0.9), (30, float("nan")), (40, 0.7))


@pytest.fixture
def result(store, start):
    """Return the result of a trial that validated at the given steps."""

    def result_of(searcher, reports):
        store.hosts.add(host("a"))
        config = store.configs.put({"entrypoint": "python train.py", "searcher": searcher}, origins={})
        key = TrialKey(dag_id="d", run_id="r", task_id="t", max_tries=0)
        ticket = store.trials.submit(
            TrialSubmission(key=key, config_id=config.config_id, experiment_name="e", pool="gpus", slots=1, number=0)
        )
        watch = start(ticket)
        events = [
            {"seq": seq, "at": 1.0, "kind": "validation", "step": step, "metrics": {"accuracy": value, "n": step}}
            for seq, (step, value) in enumerate(reports, 1)
        ]
        events.append({"seq": 9, "at": 1.0, "kind": "report", "step": 45, "metrics": {"loss": 1.0}})
        store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 100, events)
        return trial_result(store, store.attempts.get(ticket.attempt_id), "completed")

    return result_of


@pytest.mark.each_change
@pytest.mark.parametrize(
    ("searcher", "metric", "step"),
    [
        ({"metric": "accuracy", "smaller_is_better": False}, 0.9, 20),
        ({"metric": "accuracy"}, 0.5, 10),
        ({}, None, 40),
        ({"metric": "other"}, None, 40),
    ],
)
def test_best_step_belongs_to_the_metrics_and_steps_to_the_end(result, searcher, metric, step):
    found = result(searcher, REPORTS)
    assert (found["metric"], found["best_step"], found["metrics"]["n"]) == (metric, step, step)
    assert found["steps"] == 45


def test_a_trial_that_never_validated_has_no_best_step(result):
    found = result({"metric": "accuracy"}, ())
    assert (found["metric"], found["best_step"], found["metrics"], found["steps"]) == (None, None, {}, 45)
