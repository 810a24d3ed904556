"""A restored store reuses ids and tokens, on each database."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.errors import GangEndedError
from airflow_provider_dtrain.store.queue import requests
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from testbed.stores import host


def hold(store, run_id):
    key = TrialKey(dag_id="d", run_id=run_id, task_id="gang")
    gang = store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=2, hold_for_s=900.0))
    watch = store.gangs.watch(gang.allocation_id, watcher="me")
    store.queue.schedule("gpus")
    held = store.gangs.take_up(gang.allocation_id, watch)
    assert held is not None
    return held


def use(store, allocation_id, token, run_id):
    config = store.configs.put({"entrypoint": "python train.py"}, origins={})
    submission = TrialSubmission(
        key=TrialKey(dag_id="d", run_id=run_id, task_id="train"), experiment_name="e", config_id=config.config_id,
        pool="gpus", slots=2, allocation_id=allocation_id,
    )  # fmt: skip
    return store.gangs.submit_trial(submission, token)


def test_a_gang_that_has_the_number_and_token_of_a_forgotten_one_is_not_used_by_its_tasks(store):
    """The same allocation and token as in the XCom of another DAG run: the store has given them out a second time."""
    store.hosts.add(host("h1", 2))
    held = hold(store, "after the restore")
    with pytest.raises(GangEndedError, match="restored from a backup"):
        use(store, held.allocation_id, held.token, "before it")
    assert store.gangs.get(held.allocation_id).attempt_id is None
    assert use(store, held.allocation_id, held.token, "after the restore").allocation_id == held.allocation_id


@pytest.mark.each_change
def test_the_counter_is_raised_above_what_hosts_have_seen_and_never_lowered(store, submit):
    store.hosts.add(host("h1", 4))
    assert store.queue.raise_token(500) == 500
    assert store.queue.raise_token(7) == 500
    ticket = submit(slots=1)
    store.queue.schedule("gpus")
    assert store.attempts.get(ticket.attempt_id).token == 501


@pytest.mark.parametrize("token", [500 + requests.MOST_RAISE + 1, requests.TOKEN_LIMIT + 1, 2**63 - 1, 2**64])
def test_a_token_that_no_backup_explains_leaves_the_counter_and_grants_continue(store, submit, token):
    store.hosts.add(host("h1", 4))
    store.queue.raise_token(500)
    assert store.queue.raise_token(token) == 500
    ticket = submit(slots=1)
    store.queue.schedule("gpus")
    assert store.attempts.get(ticket.attempt_id).token == 501


def test_the_counter_is_raised_by_as_much_as_a_backup_explains(store):
    assert store.queue.raise_token(requests.MOST_RAISE) == requests.MOST_RAISE
    assert store.queue.raise_token(2 * requests.MOST_RAISE) == 2 * requests.MOST_RAISE


def test_hosts_can_never_raise_the_counter_so_far_that_supervisors_refuse_its_tokens(store, submit, monkeypatch):
    monkeypatch.setattr(requests, "MOST_RAISE", 2**62)
    store.hosts.add(host("h1", 4))
    assert store.queue.raise_token(requests.TOKEN_LIMIT) == requests.TOKEN_LIMIT
    assert store.queue.raise_token(requests.TOKEN_LIMIT + 1) == requests.TOKEN_LIMIT
    ticket = submit(slots=1)
    store.queue.schedule("gpus")
    assert store.attempts.get(ticket.attempt_id).token == requests.TOKEN_LIMIT + 1 < 10**18
