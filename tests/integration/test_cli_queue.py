"""What people see of the queue and change in it: ``trial pause|activate|set``, ``experiment set``, ``explain``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.store.records import HostRecord, SlotRecord, Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.repository import Store
from tests.support.cli_world import World

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def store(world: World) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{Path(world.environment['AIRFLOW_HOME'])}/dtrain.db")
    slots = tuple(SlotRecord(index=index) for index in range(4))
    store.add_host(HostRecord(name="a", pool="lab", slot_type="cpu", slots=slots, state="ready"))
    yield store
    store.close()


def submitted(store: Store, task: str, slots: int, priority: int = 42) -> Ticket:
    config = store.put_config({"name": "e"}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id=task)
    return store.submit_trial(
        TrialSubmission(key=key, experiment_name=task, config_id=config, pool="lab", slots=slots, priority=priority)
    )


def ended(store: Store, *tickets: Ticket) -> None:
    for ticket in tickets:
        watch = store.watch(ticket.attempt_id, watcher="test")
        store.end_attempt(ticket.attempt_id, watch, state="killed")


def audit(store: Store) -> list[tuple[str, str]]:
    from airflow_provider_dtrain.store import tables

    with store._engine.connect() as connection:
        return [(row.action, row.subject) for row in connection.execute(tables.audit.select())]


def test_a_trial_that_waits_is_paused_and_goes_on_in_its_place(world: World, store: Store) -> None:
    first, second = submitted(store, "p1", 4), submitted(store, "p2", 4)
    store.schedule("lab")
    paused = str(second.trial_id)
    assert "is paused; it keeps its place" in world("trial", "pause", paused).err
    found = {row["trial"]: row for row in world.rows("task", "list")}
    assert (found[first.trial_id]["paused"], found[second.trial_id]["paused"]) == (False, True)
    why = world("explain", paused, "-o", "json")
    assert (why.code, why.json["paused"], why.json["state"]) == (3, True, "paused")
    assert "trial activate" in why.json["reason"]
    assert world.rows("trial", "describe", paused)["paused"] is True
    assert "goes on" in world("trial", "activate", paused).err
    assert "is not paused" in world("trial", "activate", paused).err
    assert ("pause requested", f"trial {paused}") in audit(store)
    ended(store, first, second)
    refused = world("trial", "pause", paused)
    assert (refused.code, "is killed" in refused.err) == (1, True)


def test_a_better_priority_moves_a_gang_and_the_place_of_the_last_pass_is_shown(world: World, store: Store) -> None:
    tickets = [submitted(store, f"q{number}", 4) for number in range(3)]
    store.schedule("lab")
    last = str(tickets[2].trial_id)
    assert world.rows("trial", "set", last, "--priority", "7") == {"trial": tickets[2].trial_id, "priority": 7}
    store.schedule("lab")
    rows = {row["trial"]: row for row in world.rows("trial", "list")}
    assert [rows[ticket.trial_id]["position"] for ticket in tickets] == [None, 2, 1]
    why = world("explain", last, "-o", "json").json
    assert (why["priority"], why["position"], why["class"]) == (7, 1, "fresh")
    assert why["expected"]
    assert ("priority set", f"trial {last}") in audit(store)
    ended(store, *tickets)
    refused = world("trial", "set", last, "--priority", "9")
    assert (refused.code, "waits for nothing" in refused.err) == (1, True)


def test_the_share_of_an_experiment_is_set_for_all_its_gangs(world: World, store: Store) -> None:
    ticket = submitted(store, "x1", 4)
    experiment = str(world.rows("trial", "describe", str(ticket.trial_id))["experiment_id"])
    done = world.rows("experiment", "set", experiment, "--priority", "3", "--weight", "2.5", "--max-slots", "8")
    assert done == {"experiment": int(experiment), "priority": 3, "weight": 2.5, "max_slots": 8}
    why = world("explain", str(ticket.trial_id), "-o", "json").json
    assert (why["priority"], why["weight"], why["max_slots"]) == (3, 2.5, 8)
    assert world.rows("experiment", "set", experiment, "--max-slots", "0")["max_slots"] == 0
    assert world("explain", str(ticket.trial_id), "-o", "json").json["max_slots"] is None
    ended(store, ticket)
    missing = world("experiment", "set", "9999", "--weight", "1")
    assert (missing.code, "no experiment 9999" in missing.err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("trial", "set", "1"),
        ("trial", "set", "1", "--priority", "0"),
        ("trial", "set", "1", "--priority", "100"),
        ("trial", "pause"),
        ("experiment", "set", "1"),
        ("experiment", "set", "1", "--weight", "0"),
        ("experiment", "set", "1", "--weight", "nan"),
        ("experiment", "set", "1", "--max-slots", "-1"),
    ],
)
def test_values_that_make_no_sense_are_usage_errors(world: World, arguments: tuple[str, ...]) -> None:
    assert world(*arguments).code == 2
