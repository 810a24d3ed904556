"""``airflow dtrain gc`` on a host that really ran something."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import attempts, trials
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.cli_world import World
from tests.support.gangs import Gangs, until

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]

OLD = datetime.now(UTC) - timedelta(days=40)


@pytest.fixture(scope="module")
def gangs(world: World) -> Iterator[Gangs]:
    world.add_local_host()
    gangs = Gangs(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(world.folder))
        yield gangs
    gangs.hook.links.close_all()


def grow_old(world: World, gangs: Gangs, ticket: Ticket) -> Path:
    """Set the end of a trial to 40 days ago, and return its folder on the host."""
    with gangs.hook.store.db.engine.begin() as connection:
        for table, key in ((trials, ticket.trial_id), (attempts, ticket.attempt_id)):
            connection.execute(table.update().where(table.c.id == key).values(ended_at=OLD))
        connection.execute(sa.text("UPDATE payloads SET created_at = '2020-01-01 00:00:00.000000'"))
    folder = world.folder / "state" / "runs" / str(gangs.hook.store.attempts.get(ticket.attempt_id).run)
    os.utime(folder / "ended", (OLD.timestamp(), OLD.timestamp()))
    return folder


def table(rows: list[dict[str, object]], where: str) -> dict[object, object]:
    return {row["what"]: row["count"] for row in rows if row["where"] == where}


@pytest.mark.nightly
def test_what_an_old_trial_left_goes_and_what_runs_stays(world: World, gangs: Gangs) -> None:
    old, recent, live = gangs.submit("facts", 1), gangs.submit("facts 2", 1), gangs.submit("sleep 321", 1)
    for ticket in (old, recent):
        gangs.carry(ticket).join(120)
        assert gangs.hook.store.trials.get(ticket.trial_id).state == "completed"
    thread = gangs.carry(live)
    try:
        until(lambda: gangs.hook.store.attempts.get(live.attempt_id).state == "running")
        folder = grow_old(world, gangs, old)
        runs = world.folder / "state" / "runs"
        before = {path.name for path in runs.iterdir()}
        tried = world("gc", "--dry-run", "-o", "json")
        assert (tried.code, "Nothing was removed" in tried.err) == (0, True)
        assert {path.name for path in runs.iterdir()} == before
        assert table(tried.json, "local")["runs"] == 1
        assert table(tried.json, "store")["events"] > 0
        assert next(row["bytes"] for row in tried.json if row["what"] == "runs") > 0

        heading = world("gc", "--dry-run").out.splitlines()[0].split()
        assert heading == ["where", "what", "count", "size", "skipped"]
        done = world.rows("gc")
        assert [(row["where"], row["what"], row["count"]) for row in done] == [
            (row["where"], row["what"], row["count"]) for row in tried.json
        ]
        assert {path.name for path in runs.iterdir()} == before - {folder.name}
        assert gangs.hook.store.events.of_attempt(old.attempt_id) == []
        assert gangs.hook.store.events.of_attempt(recent.attempt_id) != []
        assert gangs.hook.store.trials.get(old.trial_id).state == "completed"
        assert {row["count"] for row in world.rows("gc")} == {0}
        assert gangs.hook.store.attempts.get(live.attempt_id).state == "running"
        assert world("trials", "describe", str(old.trial_id)).code == 0
    finally:
        gangs.hook.store.control.kill(live.trial_id, "test")
        thread.join(120)


def test_archives_that_nobody_used_for_long_go_and_those_in_use_stay(world: World, gangs: Gangs) -> None:
    live = gangs.submit("sleep 322", 1)
    thread = gangs.carry(live)
    try:
        until(lambda: gangs.hook.store.attempts.get(live.attempt_id).state == "running")
        remote = world.folder / "remote"
        unused, fresh = remote / "payloads" / f"{'a' * 64}.tar.gz", remote / "payloads" / f"{'b' * 64}.tar.gz"
        library = remote / "libraries" / ("c" * 64)
        library.mkdir(parents=True)
        (library / "x.py").write_text("")
        for path in (unused, fresh):
            path.write_bytes(b"x" * 5000)
        in_use = [path for kind in ("payloads", "libraries") for path in (remote / kind).iterdir() if path != fresh]
        for path in in_use:
            os.utime(path, (OLD.timestamp(), OLD.timestamp()))
        assert table(world.rows("gc"), "local")["archives"] == 2
        assert (unused.exists(), library.exists(), fresh.exists()) == (False, False, True)
        assert [path for path in in_use if path not in (unused, library) and not path.exists()] == []
    finally:
        gangs.hook.store.control.kill(live.trial_id, "test")
        thread.join(120)


def test_a_host_that_is_away_is_named_and_skipped(world: World, gangs: Gangs) -> None:
    gangs.hook.store.hosts.set_state("local", "unreachable", "the network is cut")
    try:
        done = world("gc")
        assert (done.code, "Host 'local' was skipped: it is unreachable" in done.err) == (0, True)
        assert "store" in done.out
    finally:
        gangs.hook.store.hosts.set_state("local", "ready")
    assert {row["where"] for row in world.rows("gc", "--no-hosts")} == {"store", "this machine"}


@pytest.mark.parametrize("days", ["-1", "x", "99999999", "1.5"])
def test_an_age_that_is_none_is_a_usage_error(world: World, days: str) -> None:
    assert world("gc", "--older-than", days).code == 2
