"""Commands for the queue: ``trials pause|activate|set``, ``experiments set``, ``explain``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord, Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from tests.support.cli_world import World
from tests.support.search_world import Search

pytest_plugins = ["tests.support.cli_world"]
SILENT = timedelta(minutes=5)
pytestmark = [pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def store(world: World) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{Path(world.environment['AIRFLOW_HOME'])}/dtrain.db")
    slots = tuple(SlotRecord(index=index) for index in range(4))
    store.hosts.add(HostRecord(name="a", pool="lab", slot_type="cpu", slots=slots, state="ready"))
    yield store
    store.close()


@pytest.fixture(autouse=True)
def _slots_are_free_afterwards(store: Store) -> Iterator[None]:
    """End what a test that failed has left, so that the tests after it find free slots."""
    yield
    from airflow_provider_dtrain.store.database.tables import attempts

    with store.db.engine.connect() as connection:
        left = list(connection.scalars(sa.select(attempts.c.id).where(attempts.c.ended_at.is_(None))))
    for attempt_id in left:
        end(store, attempt_id)


def submitted(
    store: Store,
    task: str,
    slots: int,
    priority: int = 42,
    *,
    experiment: str = "",
    preemptible: bool | None = None,
    **config: Any,
) -> Ticket:
    config_id = store.configs.put({"name": "e", **config}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id=task)
    ticket = store.trials.submit(
        TrialSubmission(
            key=key, experiment_name=experiment or task, config_id=config_id, pool="lab", slots=slots,
            priority=priority, preemptible=preemptible,
        )
    )  # fmt: skip
    heard(store, ticket)
    return ticket


def run(store: Store, ticket: Ticket) -> int:
    """Bring a trial to ``running`` and return its follower's watch."""
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.schedule("lab")
    assert store.queue.take_up(ticket.attempt_id, watch) is not None
    store.attempts.set_running(ticket.attempt_id, watch)
    heard(store, ticket)
    return watch


def heard(store: Store, *tickets: Ticket, ago: timedelta = timedelta(days=-1)) -> None:
    """Set the time of the followers' last renewals. By default no follower becomes silent during a test."""
    from airflow_provider_dtrain.store.database.tables import allocations, attempts

    then = datetime.now(UTC) - ago
    with store.db.engine.begin() as connection:
        for ticket in tickets:
            for table, number in ((attempts, ticket.attempt_id), (allocations, ticket.allocation_id)):
                connection.execute(table.update().where(table.c.id == number).values(renewed_at=then))


def ended(store: Store, *tickets: Ticket) -> None:
    for ticket in tickets:
        end(store, ticket.attempt_id)


def end(store: Store, attempt_id: int) -> None:
    watch = store.attempts.watch(attempt_id, watcher="test")
    store.attempts.end(attempt_id, watch, state="killed")
    hosts = list(store.attempts.get(attempt_id).held_hosts)
    if hosts:
        store.queue.release(attempt_id, watch, hosts, proof="clear")


def audit(store: Store) -> list[tuple[str, str]]:
    from airflow_provider_dtrain.store.database import tables

    with store.db.engine.connect() as connection:
        return [(row.action, row.subject) for row in connection.execute(tables.audit.select())]


@pytest.mark.nightly
def test_a_trial_that_waits_is_paused_and_goes_on_in_its_place(world: World, store: Store) -> None:
    first, second = submitted(store, "p1", 4), submitted(store, "p2", 4)
    run(store, first)
    paused = str(second.trial_id)
    assert "is paused. It keeps its place" in world("trials", "pause", paused).err
    found = {row["trial_id"]: row for row in world.rows("queue", "list")}
    assert (found[first.trial_id]["is_paused"], found[second.trial_id]["is_paused"]) == (False, True)
    assert found[first.trial_id]["position"] is None, "it has its slots"
    why = world("explain", paused, "-o", "json")
    assert (why.code, why.json["paused"], why.json["state"]) == (3, True, "paused")
    assert "trials activate" in why.json["reason"]
    heard(store, second, ago=SILENT)
    reason = world("explain", paused, "-o", "json").json["reason"]
    assert "trials activate" in reason
    assert "Not followed since" in reason
    heard(store, second)
    assert world.rows("trials", "describe", paused)["is_paused"] is True
    assert "is resumed" in world("trials", "activate", paused).err
    assert "is not paused" in world("trials", "activate", paused).err
    assert ("pause requested", f"trial {paused}") in audit(store)
    ended(store, first, second)
    refused = world("trials", "pause", paused)
    assert (refused.code, "is killed" in refused.err) == (1, True)


def test_a_better_priority_moves_a_gang_and_the_place_of_the_last_pass_is_shown(world: World, store: Store) -> None:
    tickets = [submitted(store, f"q{number}", 4) for number in range(3)]
    # A gang that is granted and not taken up loses its slots after 30 s: too soon for a test on a busy machine.
    run(store, tickets[0])
    last = str(tickets[2].trial_id)
    assert world.rows("trials", "set", last, "--priority", "7") == {"trial_id": tickets[2].trial_id, "priority": 7}
    store.queue.schedule("lab")
    rows = {row["trial_id"]: row for row in world.rows("trials", "list")}
    assert [rows[ticket.trial_id]["position"] for ticket in tickets] == [None, 2, 1]
    why = world("explain", last, "-o", "json").json
    assert (why["priority"], why["position"], why["queue_class"]) == (7, 1, "fresh")
    assert why["expected"] is None, "no experiment of this pool has a known end"
    assert ("trial set", f"trial {last}") in audit(store)
    ended(store, *tickets)
    refused = world("trials", "set", last, "--priority", "9")
    assert (refused.code, "has ended" in refused.err) == (1, True)


def test_the_share_of_an_experiment_is_set_for_all_its_gangs(world: World, store: Store) -> None:
    ticket = submitted(store, "x1", 4)
    experiment = str(world.rows("trials", "describe", str(ticket.trial_id))["experiment_id"])
    done = world.rows("experiments", "set", experiment, "--priority", "3", "--weight", "2.5", "--max-slots", "8")
    assert done == {"experiment_id": int(experiment), "priority": 3, "weight": 2.5, "max_slots": 8}
    why = world("explain", str(ticket.trial_id), "-o", "json").json
    assert (why["priority"], why["weight"], why["max_slots"]) == (3, 2.5, 8)
    narrow = world("experiments", "set", experiment, "--max-slots", "2")
    assert f"trials that request more slots can never start: {ticket.trial_id}" in narrow.err
    assert world.rows("experiments", "set", experiment, "--max-slots", "0")["max_slots"] == 0
    assert world("explain", str(ticket.trial_id), "-o", "json").json["max_slots"] is None
    ended(store, ticket)
    missing = world("experiments", "set", "9999", "--weight", "1")
    assert (missing.code, "no experiment 9999" in missing.err, "experiments list" in missing.err) == (1, True, True)


def test_experiments_and_trials_are_named_and_tagged_and_found_by_name_and_tags(world: World, store: Store) -> None:
    tickets = [submitted(store, name, 1, experiment=f"e-{name}") for name in ("tag1", "tag2")]
    ids = [world.rows("trials", "describe", str(ticket.trial_id))["experiment_id"] for ticket in tickets]
    first, second = map(str, ids)
    done = world.rows("experiments", "set", first, "--name", "Big_run", "--tag", "paper", "--tag", "a b")
    assert (done["display_name"], done["tags"]) == ("Big_run", ["a b", "paper"])
    world.rows("experiments", "set", second, "--tag", "paper", "--description", "why")
    assert world.rows("experiments", "set", second, "--untag", "absent", "--weight", "2")["tags"] == ["paper"]

    def listed(*options: str) -> list[int]:
        return [row["experiment_id"] for row in world.rows("experiments", "list", *options)]

    assert listed("--tag", "paper") == [ids[1], ids[0]]
    assert listed("--tag", "paper", "--tag", "a b") == [ids[0]]
    assert listed("--name", "big_RUN") == listed("--name", "e-tag1") == [ids[0]]
    assert listed("--name", "big%run") == []
    assert "Big_run" in world("experiments", "list", "--name", "Big").out
    assert world.rows("experiments", "set", first, "--name", "", "--untag", "paper")["tags"] == ["a b"]
    assert world.rows("experiments", "describe", first)["display_name"] is None
    trial = str(tickets[0].trial_id)
    world.rows("trials", "set", trial, "--tag", "odd", "--description", "diverges")
    assert [row["trial_id"] for row in world.rows("trials", "list", "--tag", "odd")] == [tickets[0].trial_id]
    assert world.rows("trials", "describe", trial)["description"] == "diverges"
    assert ("labels set", f"trial {trial}") in audit(store)
    ended(store, *tickets)
    assert world.rows("trials", "set", trial, "--tag", "kept")["tags"] == ["kept", "odd"], "also of an ended trial"
    for options, code, words in (((), 2, "Nothing to set"), (("--tag", "a,b"), 1, "without a comma")):
        refused = world("trials", "set", trial, *options)
        assert (refused.code, words in refused.err) == (code, True)
    assert world("experiments", "set", "9999", "--tag", "x").code == 1


def test_experiments_are_listed_with_their_ids_their_trials_and_the_best(world: World, store: Store) -> None:
    searcher = {"name": "single", "metric": "loss", "smaller_is_better": True}
    first = submitted(store, "b1", 1, experiment="best", searcher=searcher)
    second = submitted(store, "b2", 1, experiment="best", searcher=searcher)
    third = submitted(store, "b3", 1, experiment="best", searcher=searcher)
    for ticket, metric in ((first, 0.5), (second, "nan")):
        watch = store.attempts.watch(ticket.attempt_id, watcher="test")
        store.attempts.end(ticket.attempt_id, watch, state="completed", result={"metric": metric})
    row = next(row for row in world.rows("experiments", "list") if row["experiment_id"] == first.experiment_id)
    known = {name: row[name] for name in ("name", "method", "metric", "best", "best_trial", "trials")}
    assert known == {
        "name": "best", "method": "single", "metric": "loss", "best": 0.5, "best_trial": first.trial_id,
        "trials": {"completed": 2, "queued": 1},
    }  # fmt: skip
    assert world.rows("experiments", "describe", str(first.experiment_id))["weight"] == 1.0
    table = world("experiments", "list").out
    assert f"loss 0.5 (trial {first.trial_id})" in table
    assert "2 completed, 1 queued" in table
    missing = world("experiments", "describe", "9999")
    assert (missing.code, "airflow dtrain experiments list" in missing.err) == (1, True)
    ended(store, third)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ({"max_length": {"epochs": 16, "batches": None}}, "at rung 1 (4 epochs)"),
        ({"max_time": 16, "time_metric": "seconds"}, "at rung 1 (4 seconds)"),
    ],
)
def test_a_trial_that_the_searcher_stopped_is_listed_with_its_rung(
    world: World, store: Store, lengths: dict[str, Any], words: str
) -> None:
    unit = words.rstrip(")").rpartition(" ")[2]
    search = Search(store, name=unit, run=unit, pool="lab")
    search.config = store.configs.put({"name": "e", "searcher": lengths}, origins={}).config_id
    search.plan(divisor=4)
    first, second, third = (search.start(number) for number in range(3))
    assert (search.ask(first, 1, 0.2), search.ask(second, 0, 0.1)) == ("continue", "continue")
    assert (search.ask(second, 1, 0.3), search.ask(third, 0, 0.4)) == ("stop", "stop")
    for ticket, state in ((first, "completed"), (second, "stopped"), (third, "stopped")):
        search.end(ticket, state)
    rungs = {row["trial_id"]: row["rung"] for row in world.rows("trials", "list")}
    assert [rungs[ticket.trial_id] for ticket in (first, second, third)] == [1, 1, 0]
    experiment = str(first.experiment_id)
    for table in (world("trials", "list").out, world("trials", "list", "--experiment", experiment).out):
        assert f"stopped by the searcher {words}" in table


def test_a_gang_that_nobody_follows_is_shown_as_such_everywhere(world: World, store: Store) -> None:
    runs, waits = submitted(store, "f1", 4), submitted(store, "f2", 2)
    run(store, runs)
    store.queue.schedule("lab")
    heard(store, runs, waits, ago=SILENT)
    for name in ("queue", "trials"):
        rows = {row["trial_id"]: row for row in world.rows(name, "list")}
        for ticket in (runs, waits):
            row = rows[ticket.trial_id]
            assert row["unfollowed_since"] is not None
            assert "Not followed since" in row["reason"]
        assert f"trials kill {runs.trial_id}" in rows[runs.trial_id]["reason"]
        assert "skipped until" in rows[waits.trial_id]["reason"]
    assert rows[waits.trial_id]["position"] is None
    assert "not followed" in world("queue", "list").out
    for command in (("explain",), ("trials", "describe")):
        found = world(*command, str(waits.trial_id), "-o", "json").json
        assert found["unfollowed_since"] is not None
        assert (found["position"], found["expected"]) == (None, None)
        assert "Not followed since" in world(*command, str(runs.trial_id)).out
    ended(store, runs, waits)


def test_whoever_waits_for_a_gang_that_nobody_follows_is_told_so(world: World, store: Store) -> None:
    low = submitted(store, "c1", 4, 90, preemptible=True)
    run(store, low)
    store.pools.set("lab", min_run_s=0.0, by="test")
    high = submitted(store, "c2", 4, 1)
    store.queue.schedule("lab")
    why = f"Stopping: d.c1 (trial {low.trial_id} of "
    reason = world("explain", str(high.trial_id), "-o", "json").json["reason"]
    assert why in reason
    assert "no follower" not in reason
    heard(store, low, ago=SILENT)
    rows = {row["trial_id"]: row for row in world.rows("queue", "list")}
    for reason in (world("explain", str(high.trial_id), "-o", "json").json["reason"], rows[high.trial_id]["reason"]):
        assert why in reason
        assert f"Trial {low.trial_id} has had no follower since" in reason
    ended(store, low, high)


def test_a_pause_that_loses_work_is_asked_about(world: World, store: Store) -> None:
    ticket = submitted(store, "l1", 2)
    watch = run(store, ticket)
    number = str(ticket.trial_id)
    refused = world("trials", "pause", number)
    assert (refused.code, "It has no checkpoint yet" in refused.err, "--yes" in refused.err) == (
        2,
        True,
        True,
    )
    assert store.control.pending(ticket.attempt_id).pause_by is None
    event = {"kind": "checkpoint", "step": 7, "path": "checkpoints/7", "at": 1.0, "seq": 1, "metrics": {}}
    store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 10, [event])
    done = world("trials", "pause", number)
    assert (done.code, "from the checkpoint of step 7" in done.err) == (0, True)
    assert store.control.pending(ticket.attempt_id).pause_by is not None
    store.attempts.set_stopping(ticket.attempt_id, watch, "paused by ann")
    assert "is still stopping. Then" in world("trials", "activate", number).err
    ended(store, ticket)


def test_a_pause_that_loses_work_is_made_when_that_is_agreed(world: World, store: Store) -> None:
    ticket = submitted(store, "l2", 2)
    run(store, ticket)
    done = world("trials", "pause", str(ticket.trial_id), "-y")
    assert (done.code, "it resumes with the files that it has written" in done.err) == (0, True)
    assert "is cancelled: it keeps running" in world("trials", "activate", str(ticket.trial_id)).err
    ended(store, ticket)


def test_a_kill_says_where_the_trial_is(world: World, store: Store) -> None:
    first, second = submitted(store, "k1", 4), submitted(store, "k2", 4)
    run(store, first)
    world("trials", "pause", str(second.trial_id))
    told = {ticket.trial_id: world("trials", "kill", str(ticket.trial_id), "-y").err for ticket in (first, second)}
    assert "stopped on every host" in told[first.trial_id]
    assert "holds no slots. The process that waits for it ends it" in told[second.trial_id]
    ended(store, first, second)


def test_tables_fit_100_columns_and_leave_out_what_has_no_value(world: World, store: Store) -> None:
    first, second = submitted(store, "w1", 4), submitted(store, "w2", 4)
    store.queue.schedule("lab")
    for name in ("queue", "trials"):
        heading = world(name, "list").out.splitlines()[0]
        assert heading.index("reason") <= 80, "reasons come last, and are folded in the room that is left"
    ended(store, first, second)
    found = world("explain", str(first.trial_id)).out
    assert "killed" in found
    assert [line for line in found.splitlines() if line.split()[-1] == "-"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("trials", "set", "1"),
        ("trials", "set", "1", "--priority", "0"),
        ("trials", "set", "1", "--priority", "100"),
        ("trials", "pause"),
        ("experiments", "set", "1"),
        ("experiments", "set", "1", "--weight", "0"),
        ("experiments", "set", "1", "--weight", "nan"),
        ("experiments", "set", "1", "--max-slots", "-1"),
    ],
)
def test_values_that_make_no_sense_are_usage_errors(world: World, arguments: tuple[str, ...]) -> None:
    assert world(*arguments).code == 2


def test_the_gang_of_a_sensor_is_explained_and_moved_by_its_id(world: World, store: Store) -> None:
    key = TrialKey(dag_id="d", run_id="r", task_id="gang")
    asked = store.gangs.submit(GangSubmission(key=key, pool="lab", slots=4, hold_for_s=900.0))
    before = submitted(store, "before", 4)
    store.gangs.watch(asked.allocation_id, watcher="sensor")
    store.control.set("trial", before.trial_id, priority=50, by="ann")
    name = f"gang:{asked.allocation_id}"
    assert name in world("queue", "list").out
    assert world.rows("queue", "set", name, "--priority", "60") == {
        "allocation_id": asked.allocation_id,
        "priority": 60,
    }
    rows = {row["allocation_id"]: row for row in world.rows("queue", "list")}
    assert (rows[asked.allocation_id]["priority"], rows[asked.allocation_id]["trial_id"]) == (60, None)
    told = world("explain", name, "-o", "json")
    assert (told.code, told.json["task"], told.json["priority"]) == (3, "d.gang", 60)
    assert told.json["reason"]
    assert ("priority set", f"gang {asked.allocation_id}") in audit(store)
    store.gangs.end(asked.allocation_id, "the test is over")
    ended(store, before)


@pytest.mark.parametrize(("command", "code", "words"), [
    (("explain", "gang:9999"), 1, "No gang 9999 waits or holds slots"),
    (("explain", "gang:x"), 2, "must be gang:ID"),
    (("queue", "set", "gang:9999", "--priority", "3"), 1, "No gang 9999 waits or holds slots"),
    (("queue", "set", "7", "--priority", "3"), 2, "must be gang:ID"),
    (("queue", "set", "gang:7"), 2, "Nothing to set"),
])  # fmt: skip
def test_a_wrong_gang_is_named(world: World, command: tuple[str, ...], code: int, words: str) -> None:
    done = world(*command)
    assert (done.code, words in done.err) == (code, True)


def request(world: World, slots: int, priority: int = 42) -> str:
    resources = f"{{pool: lab, slots_per_trial: {slots}, priority: {priority}}}"
    return world.file("request.yaml", f"entrypoint: python train.py\nresources: {resources}\n")


@pytest.mark.nightly
def test_a_configuration_is_explained_as_a_scheduling_pass_would_decide_it(world: World, store: Store) -> None:
    running = submitted(store, "holder", 2, 90, preemptible=True)
    watch = run(store, running)
    store.pools.set("lab", preemption="priority", min_run_s=0.0)
    claimer = submitted(store, "claimer", 4, 60)
    store.queue.schedule("lab")
    kept = world("explain", request(world, 2, 70), "-o", "json")
    assert (kept.code, kept.json["outlook"], kept.json["waiting_ahead"]) == (3, "later", 1)
    assert "2 slots claimed by requests for which other gangs stop" in kept.json["reason"]
    assert kept.json["expected"] is None
    assert world("explain", str(claimer.trial_id), "-o", "json").json["outlook"] == "later"
    store.control.pause(claimer.trial_id, by="ann")
    free = world("explain", request(world, 2, 70), "-o", "json")
    assert (free.code, free.json["hosts"], free.json["waiting_ahead"]) == (0, "a:2-3", 0)
    assert store.attempts.get(running.attempt_id).watch == watch, "nothing was changed"
    store.pools.set("lab", preemption="priority", min_run_s=1800.0)
    ended(store, running, claimer)
