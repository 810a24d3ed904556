"""Checkpoints in the store: existing and removed ones."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.terminal import trials
from testbed.stores import host


def checkpoint(seq, step, path, removed=()):
    return {"seq": seq, "at": 1.0, "kind": "checkpoint", "step": step, "path": path, "removed": list(removed)}


BUCKET = {"type": "s3", "bucket": "b", "prefix": "p"}
#: Folder of the first trial of the first experiment.
OWN = "s3://b/p/experiment-1/trial-1"


def reported(store, submit, start, *events, storage=None):
    store.hosts.add(host("a"))
    ticket = submit(storage=storage)
    watch = start(ticket)
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 100, events)
    return ticket


def test_what_a_rank_removed_is_not_named_any_more(store, submit, start):
    ticket = reported(
        store, submit, start,
        checkpoint(1, 1, "checkpoints/step-1"), checkpoint(2, 2, f"{OWN}/step-2"),
        checkpoint(3, 3, "checkpoints/step-3", ["checkpoints/step-1", f"{OWN}/step-2", "/nothing", "a\0b", 7]),
        storage=BUCKET,
    )  # fmt: skip
    assert [c.step for c in store.checkpoints.of_trial(ticket.trial_id)] == [3]
    assert [c.step for c in store.checkpoints.of_experiment(ticket.experiment_id)] == [3]
    every = store.checkpoints.of_trial(ticket.trial_id, removed=True)
    assert [(c.step, c.removed_at is None) for c in every] == [(1, False), (2, False), (3, True)]


def test_a_copy_outlives_the_original(store, submit, start):
    ticket = reported(store, submit, start, checkpoint(1, 1, "c/step-1"), checkpoint(2, 2, "c/step-2"))
    first, second = store.checkpoints.of_trial(ticket.trial_id)
    store.checkpoints.add_copy(first.checkpoint_id, "/copies/1")
    watch = store.attempts.get(ticket.attempt_id).watch
    third = checkpoint(3, 3, "c/step-3", ["c/step-1", "c/step-2"])
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 100, 200, [third])
    assert [c.step for c in store.checkpoints.of_trial(ticket.trial_id)] == [1, 3]
    assert store.checkpoints.find("/copies/1").checkpoint_id == first.checkpoint_id
    store.checkpoints.mark_removed([first.checkpoint_id, second.checkpoint_id])
    assert [c.step for c in store.checkpoints.of_trial(ticket.trial_id)] == [3]
    assert store.checkpoints.find("/copies/1") is None


def test_a_checkpoint_outside_the_trials_places_is_stored_as_refused_and_used_nowhere(store, submit, start):
    outside = [
        "file:///srv/models/prod", "/srv/models/prod", "s3://other/p/experiment-1/trial-1/step-1", f"{OWN}0/step-1",
        f"{OWN}/../trial-2/step-1", f"{OWN}/%2e%2e/step-1", f"{OWN}/step-1::file:///srv", f"{OWN}/step-*", OWN,
        "S3" + OWN[2:] + "/step-1", "checkpoints/../../x", "checkpoints\0/x", f"{OWN}/" + "x" * 5000, "../step-1", "",
    ]  # fmt: skip
    events = [checkpoint(seq, seq, path) for seq, path in enumerate(outside, 1)]
    ticket = reported(store, submit, start, *events, checkpoint(99, 99, f"{OWN}/step-99"), storage=BUCKET)
    assert [one.step for one in store.checkpoints.of_trial(ticket.trial_id, removed=True)] == [99]
    assert [one.step for one in store.checkpoints.of_experiment(ticket.experiment_id)] == [99]
    refused = store.checkpoints.refused(ticket.trial_id)
    assert [one.step for one in refused] == list(range(1, len(outside) + 1))
    assert all(one.place is None and one.refused for one in refused)
    assert store.checkpoints.find("file:///srv/models/prod") is None


def test_a_refused_checkpoint_does_not_make_its_gang_preemptible(store, submit, start, url):
    reported(store, submit, start, checkpoint(1, 1, "file:///srv/models"))
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        assert not connection.scalar(sa.text("SELECT has_checkpoint FROM allocations"))
    engine.dispose()


def test_a_bad_path_of_an_older_store_is_refused_when_it_is_read(store, submit, start, url):
    ticket = reported(store, submit, start, checkpoint(1, 1, "checkpoints/step-1"))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE checkpoints SET path = 'file:///srv/models/prod', refused = NULL"))
    engine.dispose()
    assert store.checkpoints.of_trial(ticket.trial_id) == store.checkpoints.of_experiment(ticket.experiment_id) == []
    assert store.checkpoints.find("file:///srv/models/prod") is None
    [refused] = store.checkpoints.refused(ticket.trial_id)
    assert (refused.path, refused.place) == ("file:///srv/models/prod", None)
    assert "checkpoint_storage" in (refused.refused or "")


@pytest.mark.each_change
def test_the_command_lists_what_is_there_and_on_request_what_is_gone(store, submit, start, capsys):
    ticket = reported(
        store, submit, start, checkpoint(1, 1, "c/step-1"), checkpoint(2, 2, f"{OWN}/step-2", ["c/step-1"]),
        storage=BUCKET,
    )  # fmt: skip
    for removed, steps in ((False, [2]), (True, [1, 2])):
        given = Namespace(trial_id=ticket.trial_id, removed=removed, output="json")
        trials.checkpoints(given, StoreSource(store))
        rows = json.loads(capsys.readouterr().out)
        assert [row["step"] for row in rows] == steps
    assert rows[0]["removed_at"] is not None
    assert rows[1]["path"] == f"{OWN}/step-2"
    trials.checkpoints(Namespace(trial_id=ticket.trial_id, removed=False, output="plain"), StoreSource(store))
    assert "01-01 00:00Z" in capsys.readouterr().out, "the time at which it was written"
