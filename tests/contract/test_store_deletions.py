"""Owner, project and archive of experiments, and their deletion."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store.database.tables import audit, configs, experiments, metadata
from airflow_provider_dtrain.store.deletions import NOT_OWNED, owned_tables
from airflow_provider_dtrain.store.records.pages import ExperimentQuery
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.search_world import Search


def listed(store: Store, **query: Any) -> list[str]:
    entries, total = store.experiment_table.page(ExperimentQuery(**query))
    assert total == len(entries)
    return sorted(entry.view.name for entry in entries)


def planned(store: Store, name: str, **fields: Any) -> Search:
    search = Search(store, name=name, dag=f"d-{name}")
    search.plan(max_trials=1, **fields)
    return search


def ended(store: Store, name: str, *, state: str = "completed", **fields: Any) -> Search:
    """Return an experiment whose only trial has ended, and whose slots are released."""
    search = planned(store, name, **fields)
    ticket = search.start(0, slots=1)
    search.validate(ticket, loss=0.5)
    search.end(ticket, state)
    return search


def removed(store: Store, experiment_id: int) -> int:
    return sum(store.deletions.remove_rows(experiment_id))


def rows(store: Store) -> dict[str, int]:
    with store.db.engine.connect() as conn:
        # Other experiments may share a configuration, so it stays.
        return {
            table.name: int(conn.scalar(sa.select(sa.func.count()).select_from(table)) or 0)
            for table in metadata.sorted_tables
            if table not in (audit, configs)
        }


def test_an_experiment_has_the_owner_and_the_project_of_its_first_submission(world: Store) -> None:
    one = planned(world, "one", owner="ann", project="vision")
    one.plan(max_tries=1, owner="bob", project="text")
    planned(world, "two")
    view = world.experiments.get(one.view.experiment_id)
    assert (view.owner, view.project, view.archived) == ("ann", "vision", False)
    trial = world.trials.get(one.submit(0).trial_id)
    assert (trial.owner, trial.project, trial.archived) == ("ann", "vision", False)
    assert listed(world, owner="ann") == ["one"]
    assert listed(world, owner="") == ["two"]
    assert listed(world, project=DEFAULT_PROJECT) == ["two"]
    assert world.places.in_use() == (["ann"], ["Uncategorized", "vision"])
    assert world.places.in_use(frozenset({"d-two"})) == ([], ["Uncategorized"])
    assert [world.places.is_owner(name) for name in ("ann", "bob", "")] == [True, False, False]


def test_an_archived_experiment_is_left_out_of_lists_until_it_runs_again(world: Store) -> None:
    search = ended(world, "old", owner="ann")
    number = search.view.experiment_id
    before = world.experiment_table.version()
    world.control.set("experiment", number, archived=True, by="ann")
    assert world.experiment_table.version().digest != before.digest
    assert (listed(world), listed(world, archived="only"), listed(world, archived="all")) == ([], ["old"], ["old"])
    assert not world.places.is_owner("ann")
    search.plan(max_tries=1)
    assert listed(world) == ["old"]


def test_a_running_experiment_is_not_archived_and_a_trial_has_no_place(world: Store) -> None:
    search = planned(world, "new")
    ticket = search.submit(0, slots=1)
    with pytest.raises(ConflictError, match="has not ended"):
        world.control.set("experiment", search.view.experiment_id, archived=True, by="ann")
    with pytest.raises(UserError, match="A trial has no project"):
        world.control.set("trial", ticket.trial_id, project="x", by="ann")


@pytest.mark.parametrize("name", ["", "  ", "x" * 129, "a\x00b", "a\x1b[31m", "a\nb", "a\u202eb"])
def test_the_name_of_a_project_is_printable_and_not_empty(world: Store, name: str) -> None:
    search = planned(world, "new", project="before")
    with pytest.raises(UserError, match="A project must be"):
        world.control.set("experiment", search.view.experiment_id, project=name, by="ann")
    assert world.experiments.get(search.view.experiment_id).project == "before"


def test_a_move_and_an_archive_are_in_the_audit(world: Store) -> None:
    number = ended(world, "e").view.experiment_id
    world.control.set("experiment", number, project=" vision ", archived=True, by="ann")
    with world.db.engine.connect() as conn:
        found = conn.execute(sa.select(audit.c.by, audit.c.action, audit.c.subject, audit.c.details)).all()
    assert ("ann", "moved", f"experiment {number}", "'Uncategorized' -> 'vision'") in found
    assert ("ann", "archived", f"experiment {number}", "") in found


def test_a_deletion_removes_every_row_of_the_experiment_and_no_other(world: Store) -> None:
    other = ended(world, "other")
    before = rows(world)
    search = ended(world, "gone")
    number, trial = search.view.experiment_id, world.trials.list(experiment_id=search.view.experiment_id)[0]
    world.control.set("experiment", number, tags=["a"], by="ann")
    world.control.set("trial", trial.trial_id, tags=["b"], description="x", by="ann")
    assert world.deletions.freed(number).trials == 1
    assert world.deletions.freed(number).hosts == 1
    added = sum(rows(world).values()) - sum(before.values())
    assert world.deletions.freed(number).rows == added
    world.deletions.begin(number, "ann")
    assert removed(world, number) == added
    assert rows(world) == before
    assert listed(world, archived="all") == ["other"]
    assert world.deletions.pending() == []
    assert world.trials.list(experiment_id=other.view.experiment_id)


def test_ids_of_deleted_rows_are_not_given_again(world: Store) -> None:
    search = ended(world, "gone")
    number, trial = search.view.experiment_id, world.trials.list()[0]
    world.deletions.begin(number, "ann")
    removed(world, number)
    again = ended(world, "next")
    assert again.view.experiment_id > number
    found = world.trials.list()[0]
    assert (found.trial_id > trial.trial_id, found.attempt_id > trial.attempt_id) == (True, True)


def test_a_removal_that_was_interrupted_after_any_step_is_completed_by_the_next_one(world: Store) -> None:
    before = rows(world)
    number = ended(world, "gone").view.experiment_id
    world.deletions.begin(number, "ann")
    steps = 0
    while world.deletions.pending():
        # The process is killed after its first transaction.
        next(iter(world.deletions.remove_rows(number)))
        steps += 1
        assert listed(world, archived="all") == []
    assert steps > 5
    assert rows(world) == before
    assert list(world.deletions.remove_rows(number)) == []


def test_an_experiment_that_was_not_marked_keeps_its_rows(world: Store) -> None:
    number = ended(world, "e").view.experiment_id
    with pytest.raises(ConflictError, match="was not marked"):
        removed(world, number)
    assert world.experiments.get(number).name == "e"
    with pytest.raises(NotFoundError):
        world.deletions.begin(999, "ann")


def test_a_running_experiment_is_not_deleted(world: Store) -> None:
    search = planned(world, "new")
    search.submit(0, slots=1)
    with pytest.raises(ConflictError, match=r"has not ended \(1 trial left\). Stop or kill it first"):
        world.deletions.begin(search.view.experiment_id, "ann")
    assert world.deletions.pending() == []


def test_an_experiment_with_slots_whose_host_has_not_confirmed_the_end_is_not_deleted(world: Store) -> None:
    search = planned(world, "e")
    ticket = search.start(0, slots=1)
    watch = search.watches[ticket.attempt_id]
    world.attempts.end(ticket.attempt_id, watch, state="completed")
    with pytest.raises(ConflictError, match="still holds slots on gpu-01"):
        world.deletions.begin(search.view.experiment_id, "ann")
    world.queue.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    world.deletions.begin(search.view.experiment_id, "ann")


@pytest.mark.parametrize(
    "source",
    [
        {"searcher": {"source_checkpoint": "trial:{trial}:best"}},
        {"searcher": {"source_checkpoint": "trial:{trial}"}},
        {"inference": {"weights": "trial:{trial}:best"}},
    ],
)
def test_the_source_of_a_fork_is_not_deleted(world: Store, source: Any) -> None:
    search = ended(world, "parent")
    trial = world.trials.list()[0].trial_id
    fork = Search(world, name="child", dag="d2")
    document = {
        name: {key: text.format(trial=trial) for key, text in section.items()} for name, section in source.items()
    }
    fork.config = world.configs.put({"entrypoint": "python train.py", **document}, origins={}).config_id
    fork.plan(max_trials=1)
    with pytest.raises(ConflictError, match=f"Experiment {fork.view.experiment_id} 'child' starts from a checkpoint"):
        world.deletions.begin(search.view.experiment_id, "ann")


def test_a_trial_of_another_number_is_no_fork(world: Store) -> None:
    search = ended(world, "parent")
    trial = world.trials.list()[0].trial_id
    fork = Search(world, name="child", dag="d2")
    document = {"entrypoint": "python train.py", "searcher": {"source_checkpoint": f"trial:{trial}0"}}
    fork.config = world.configs.put(document, origins={}).config_id
    fork.plan(max_trials=1)
    assert world.deletions.refusal(search.view.experiment_id) == ""


def test_an_experiment_whose_trial_is_run_again_is_not_deleted(world: Store) -> None:
    search = ended(world, "original")
    trial = world.trials.list()[0]
    submission = Submission(
        dag_id="d-again",
        run_id="r",
        config_id=trial.config_id,
        payload=None,
        user_id=None,
        git=None,
        reproduces=trial.trial_id,
    )
    world.submissions.add(submission)
    again = ended(world, "again")
    with pytest.raises(ConflictError, match=f"runs trial {trial.trial_id} again"):
        world.deletions.begin(search.view.experiment_id, "ann")
    world.deletions.begin(again.view.experiment_id, "ann")
    world.deletions.begin(search.view.experiment_id, "ann")


def test_no_trial_of_a_deleted_experiment_starts(world: Store) -> None:
    search = ended(world, "gone", state="errored")
    ticket = search.submit(0, slots=1)
    watch = world.attempts.watch(ticket.attempt_id, watcher="retry")
    world.deletions.begin(search.view.experiment_id, "ann")
    with pytest.raises(ConflictError, match="is being deleted"):
        world.attempts.next(ticket.attempt_id, watch, failure={}, counted=False)
    with pytest.raises(ConflictError, match="is being deleted"):
        search.plan(max_tries=1)
    with pytest.raises(ConflictError, match="is being deleted"):
        world.control.set("experiment", search.view.experiment_id, project="x", by="ann")
    removed(world, search.view.experiment_id)
    assert search.plan(max_tries=1).generation == 1


def test_the_runs_of_an_experiment_are_named_by_host(world: Store) -> None:
    world.hosts.add(host("gpu-02", slots=2))
    search = ended(world, "e")
    trial = world.trials.list()[0]
    run = world.attempts.get(trial.attempt_id).run
    (place,) = world.attempts.get(trial.attempt_id).placement
    assert world.deletions.runs(search.view.experiment_id) == {place: [run]}


def test_every_table_with_rows_of_experiments_is_removed_with_them() -> None:
    names = {"experiment_id", "search_id", "trial_id", "attempt_id", "allocation_id", "operation_id", "object_id"}
    known = {table.name for table in owned_tables()} | NOT_OWNED
    missing = [
        table.name for table in metadata.sorted_tables if names.intersection(table.c.keys()) and table.name not in known
    ]
    assert missing == []
    assert {experiments.name, "labels", "tags", "comments"} <= known
