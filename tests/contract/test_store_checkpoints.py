"""Checkpoints in the store: which are there, which are gone, and the column that says so."""

from __future__ import annotations

import json
from argparse import Namespace

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from airflow_provider_dtrain.store import schema
from airflow_provider_dtrain.store.repository import migrate
from tests.contract.store_world import host


def checkpoint(seq, step, path, removed=()):
    return {"seq": seq, "at": 1.0, "kind": "checkpoint", "step": step, "path": path, "removed": list(removed)}


def reported(store, submit, start, *events):
    store.add_host(host("a"))
    ticket = submit()
    watch = start(ticket)
    store.commit_events(ticket.attempt_id, watch, "a", "rank0.events", 0, 100, events)
    return ticket


def test_what_a_rank_removed_is_not_named_any_more(store, submit, start):
    ticket = reported(
        store, submit, start,
        checkpoint(1, 1, "checkpoints/step-1"), checkpoint(2, 2, "s3://b/step-2"),
        checkpoint(3, 3, "checkpoints/step-3", ["checkpoints/step-1", "s3://b/step-2", "/nothing", 7]),
    )  # fmt: skip
    assert [c.step for c in store.checkpoints(ticket.trial_id)] == [3]
    assert [c.step for c in store.experiment_checkpoints(ticket.experiment_id)] == [3]
    every = store.checkpoints(ticket.trial_id, removed=True)
    assert [(c.step, c.removed_at is None) for c in every] == [(1, False), (2, False), (3, True)]


def test_a_copy_outlives_the_original(store, submit, start):
    ticket = reported(store, submit, start, checkpoint(1, 1, "c/step-1"), checkpoint(2, 2, "c/step-2"))
    first, second = store.checkpoints(ticket.trial_id)
    store.add_checkpoint_copy(first.checkpoint_id, "/copies/1")
    watch = store.attempt(ticket.attempt_id).watch
    third = checkpoint(3, 3, "c/step-3", ["c/step-1", "c/step-2"])
    store.commit_events(ticket.attempt_id, watch, "a", "rank0.events", 100, 200, [third])
    assert [c.step for c in store.checkpoints(ticket.trial_id)] == [1, 3]
    assert store.find_checkpoint("/copies/1").checkpoint_id == first.checkpoint_id
    store.mark_removed([first.checkpoint_id, second.checkpoint_id])
    assert [c.step for c in store.checkpoints(ticket.trial_id)] == [3]
    assert store.find_checkpoint("/copies/1") is None


def test_the_column_comes_and_goes_and_rows_stay(store, submit, start, url):
    ticket = reported(store, submit, start, checkpoint(1, 1, "c/step-1"))
    config = Config()
    config.set_main_option("script_location", str(schema.Path(schema.__file__).parent / "migrations"))
    engine = sa.create_engine(url)

    def columns():
        return {column["name"] for column in sa.inspect(engine).get_columns("checkpoints")}

    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    assert "removed_at" not in columns()
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT path FROM checkpoints")) == "c/step-1"
    migrate(url)
    assert "removed_at" in columns()
    engine.dispose()
    assert [c.step for c in store.checkpoints(ticket.trial_id)] == [1]


def test_the_command_lists_what_is_there_and_on_request_what_is_gone(store, submit, start, monkeypatch, capsys):
    from airflow_provider_dtrain.cli import trials

    ticket = reported(
        store, submit, start, checkpoint(1, 1, "c/step-1"), checkpoint(2, 2, "s3://b/step-2", ["c/step-1"])
    )
    monkeypatch.setattr(trials, "_store", lambda: store)
    for removed, steps in ((False, [2]), (True, [1, 2])):
        trials.checkpoints(Namespace(trial_id=ticket.trial_id, removed=removed, output="json", verbose=False))
        rows = json.loads(capsys.readouterr().out)
        assert [row["step"] for row in rows] == steps
    assert rows[0]["removed"] is not None
    assert rows[1]["path"] == "s3://b/step-2"
