"""Experiments of a host that really ran something: list, archive, move, and deletion with its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.operations.execution import serve
from airflow_provider_dtrain.engine.upkeep import deletion
from airflow_provider_dtrain.engine.upkeep.deletion import remove_marked
from airflow_provider_dtrain.store.records.operations import OperationKind, Through
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.cli_world import World
from tests.support.gangs import Gangs, until

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def gangs(world: World) -> Iterator[Gangs]:
    world.add_local_host()
    gangs = Gangs(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(world.folder))
        yield gangs
    gangs.hook.links.close_all()


def ended(gangs: Gangs, what: str) -> Ticket:
    ticket = gangs.submit(what, 1)
    gangs.carry(ticket).join(120)
    assert gangs.hook.store.trials.get(ticket.trial_id).state == "completed"
    return ticket


def folder_of(world: World, gangs: Gangs, ticket: Ticket) -> Path:
    return world.folder / "state" / "runs" / str(gangs.hook.store.attempts.get(ticket.attempt_id).run)


def copies_of(checkpoint_dir: Path, ticket: Ticket) -> Path:
    """Return the folder with the copies of an experiment."""
    folder = checkpoint_dir / f"experiment-{ticket.experiment_id}"
    (folder / f"trial-{ticket.trial_id}").mkdir(parents=True, exist_ok=True)
    return folder


def ids(world: World, *options: str) -> set[int]:
    return {row["experiment_id"] for row in world.rows("experiments", "list", *options)}


@pytest.mark.nightly
def test_an_experiment_is_archived_moved_and_returned(world: World, gangs: Gangs) -> None:
    number = ended(gangs, "facts 1").experiment_id
    assert number in ids(world)
    assert world("experiments", "archive", str(number)).code == 0
    assert (number in ids(world), number in ids(world, "--archived", "only")) == (False, True)
    moved = world("experiments", "move", str(number), "--project", "vision", "-o", "json")
    assert (moved.code, "1 experiment: moved to project 'vision'." in moved.err) == (0, True)
    assert world("experiments", "unarchive", str(number)).code == 0
    assert ids(world, "--project", "vision") == {number}
    assert ids(world, "--owner", "zoe") == set()
    assert ids(world, "--mine", "--project", "vision") == set()
    described = world.rows("experiments", "describe", str(number))
    assert (described["project"], described["archived"]) == ("vision", False)


def test_a_deletion_names_what_it_frees_and_removes_files_and_rows(world: World, gangs: Gangs) -> None:
    gone, stays = ended(gangs, "facts 2"), ended(gangs, "facts 3")
    folder, kept = folder_of(world, gangs, gone), folder_of(world, gangs, stays)
    of_commands = world.folder / "airflow" / "dtrain" / "checkpoints"
    copies, others = copies_of(of_commands, gone), copies_of(of_commands, stays)
    assert folder.is_dir()
    number = str(gone.experiment_id)
    tried = world("experiments", "delete", number, "--dry-run")
    assert (tried.code, "1 trial, 0 checkpoints (0 B), logs and outputs on 1 host" in tried.err) == (0, True), tried.err
    assert folder.is_dir()
    done = world("experiments", "delete", number, "--yes")
    assert (done.code, f"Experiment {number} is deleted" in done.err) == (0, True), done.err
    assert (folder.exists(), copies.exists()) == (False, False)
    assert (kept.is_dir(), others.is_dir()) == (True, True)
    assert gone.experiment_id not in ids(world, "--archived", "all")
    assert world("trials", "describe", str(gone.trial_id)).code == 1
    assert world("trials", "describe", str(stays.trial_id)).code == 0


def test_a_running_experiment_is_not_deleted(world: World, gangs: Gangs) -> None:
    live = gangs.submit("sleep 314", 1)
    thread = gangs.carry(live)
    try:
        until(lambda: gangs.hook.store.attempts.get(live.attempt_id).state == "running")
        done = world("experiments", "delete", str(live.experiment_id), "--yes")
        assert (done.code, "has not ended (1 trial left)" in done.err) == (1, True)
        assert gangs.hook.store.trials.get(live.trial_id).state == "running"
    finally:
        gangs.hook.store.control.kill(live.trial_id, "test")
        thread.join(120)


def test_what_a_host_that_is_away_keeps_is_removed_by_gc(world: World, gangs: Gangs) -> None:
    ticket = ended(gangs, "facts 4")
    folder, number = folder_of(world, gangs, ticket), ticket.experiment_id
    gangs.hook.store.hosts.set_state("local", "unreachable", "the network is cut")
    try:
        done = world("experiments", "delete", str(number), "--yes")
        assert (done.code, "Host 'local' is unreachable" in done.err, "airflow dtrain gc" in done.err) == (
            0,
            True,
            True,
        )
        assert number not in ids(world, "--archived", "all")
        assert gangs.hook.store.deletions.pending() == [number]
    finally:
        gangs.hook.store.hosts.set_state("local", "ready")
    assert f"deletion of experiment {number} is not complete" in world("gc", "--dry-run").err
    assert folder.is_dir()
    collected = world("gc")
    assert (collected.code, f"Experiment {number} is deleted" in collected.err) == (0, True)
    assert (folder.exists(), gangs.hook.store.deletions.pending()) == (False, [])


@pytest.mark.parametrize("step", ["_remove_checkpoints", "_remove_runs", "rmtree"])
def test_a_process_that_is_killed_in_a_deletion_leaves_it_to_the_next_one(
    gangs: Gangs, world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ticket = ended(gangs, f"facts {step}")
    folder, copies = folder_of(world, gangs, ticket), copies_of(gangs.hook.settings.checkpoint_dir, ticket)
    gangs.hook.store.deletions.begin(ticket.experiment_id, "ann")

    def killed(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deletion.shutil if step == "rmtree" else deletion, step, killed)
        with pytest.raises(KeyboardInterrupt):
            remove_marked(gangs.hook)
    assert gangs.hook.store.deletions.pending() == [ticket.experiment_id]
    (found,) = remove_marked(gangs.hook)
    assert found.problems == []
    assert (folder.exists(), copies.exists(), gangs.hook.store.deletions.pending()) == (False, False, [])


@pytest.mark.nightly
def test_the_dag_for_operations_removes_what_a_user_of_the_api_has_deleted(gangs: Gangs, world: World) -> None:
    ticket = ended(gangs, "facts 5")
    folder, store = folder_of(world, gangs, ticket), gangs.hook.store
    store.deletions.begin(ticket.experiment_id, "ann")
    arguments = {"trials": [], "experiments": [ticket.experiment_id], "command": "gc"}
    number = store.operations.request(OperationKind.CONTROL, None, arguments, by="ann", through=Through.DAG)
    serve(gangs.hook, store.operations.get(number))
    found = store.operations.get(number)
    assert (found.state, found.error) == ("done", None)
    assert f"Experiment {ticket.experiment_id} is deleted" in found.result["deleted"][0]
    assert (folder.exists(), store.deletions.pending()) == (False, [])
