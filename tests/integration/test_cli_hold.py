"""``airflow dtrain maintenance``: runs outlive a control side that is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.upkeep.maintenance import live_runs, notify_hosts
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.cli_world import World
from tests.support.gangs import Gangs, until

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]

ORPHAN_TIMEOUT_S = 6.0


@pytest.fixture
def gangs(world: World, tmp_path: Path) -> Iterator[Gangs]:
    world.add_local_host()
    gangs = Gangs(world, orphan_timeout_s=ORPHAN_TIMEOUT_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(world.folder))
        yield gangs
    gangs.hook.links.close_all()
    world("hosts", "remove", "local", "--force", "-y")


def on_host(gangs: Gangs, run: str) -> dict[str, Any]:
    link = gangs.hook.link(gangs.hook.store.hosts.get("local"))
    return link.call("status").result(60)["runs"][run]


def left_alone(gangs: Gangs, what: str) -> tuple[Ticket, str]:
    """Return the ticket and run of a trial whose ranks run and whose follower has left."""
    ticket = gangs.submit(what, 1)
    thread = gangs.carry(ticket)
    until(lambda: gangs.hook.store.attempts.get(ticket.attempt_id).state == "running")
    gangs.leave(ticket)
    thread.join(60)
    assert not thread.is_alive()
    return ticket, str(gangs.hook.store.attempts.get(ticket.attempt_id).run)


def test_a_run_outlives_its_usual_lease_while_leases_are_held(world: World, gangs: Gangs) -> None:
    _, run = left_alone(gangs, "sleep 311")
    done = world("maintenance", "start", "--for", "1h", "--reason", "new database", "-o", "json")
    assert done.code == 0, done.err
    assert [(row["host"], row["runs"], row["notified"]) for row in done.json] == [("local", [run], True)]
    shown = world.rows("maintenance", "show")
    assert shown["reason"] == "new database"
    until(lambda: on_host(gangs, run)["unrenewed_s"] > 3 * ORPHAN_TIMEOUT_S)
    assert on_host(gangs, run)["state"] == "running"
    # Without the hold the same silence ends it.
    assert world("maintenance", "end").code == 0
    assert [one.problem for one in notify_hosts(gangs.hook, live_runs(gangs.hook), 1.0)] == [None]
    until(lambda: on_host(gangs, run)["state"] == "ended")


def test_a_follower_keeps_the_long_lease(world: World, gangs: Gangs) -> None:
    ticket = gangs.submit("sleep 312", 1)
    thread = gangs.carry(ticket)
    try:
        until(lambda: gangs.hook.store.attempts.get(ticket.attempt_id).state == "running")
        assert world("maintenance", "start", "--for", "2h").code == 0
        run = str(gangs.hook.store.attempts.get(ticket.attempt_id).run)
        # It renews with every beat, and its lease is still the long one afterwards.
        until(lambda: on_host(gangs, run)["unrenewed_s"] < 3)
        gangs.leave(ticket)
        thread.join(60)
        until(lambda: on_host(gangs, run)["unrenewed_s"] > 2 * ORPHAN_TIMEOUT_S)
        assert on_host(gangs, run)["state"] == "running"
    finally:
        world("maintenance", "end")
        notify_hosts(gangs.hook, live_runs(gangs.hook), 0.5)
        thread.join(60)


def test_a_host_that_cannot_be_told_is_named(world: World, gangs: Gangs) -> None:
    left_alone(gangs, "sleep 313")
    python = world.folder / "python-gone"
    gangs.hook.store.hosts.update_facts("local", {}, python=str(python))
    done = world("maintenance", "start", "--for", "5m")
    assert done.code == 1
    assert "Not notified: local" in done.err
    assert world.rows("maintenance", "show")["until"]
    world("maintenance", "end")


def test_without_a_hold_there_is_nothing_to_show_or_to_end(world: World) -> None:
    assert world.rows("maintenance", "show") == {"until": None, "by": None, "reason": None, "hosts": []}
    assert "There is no maintenance" in world("maintenance", "end").err


@pytest.mark.each_change
@pytest.mark.parametrize(
    "arguments",
    [("start",), ("start", "--for", "1s"), ("start", "--for", "900d"), ("start", "--for", "x"), ("end", "x")],
)
def test_a_maintenance_that_makes_no_sense_is_a_usage_error(world: World, arguments: tuple[str, ...]) -> None:
    assert world("maintenance", *arguments).code == 2
