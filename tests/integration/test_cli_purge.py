"""``airflow dtrain hosts remove --purge`` on a host that really ran something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.files.layout import Layout
from tests.support.cli_world import World
from tests.support.gangs import Gangs, until
from tests.support.lock_dirs import new_lock_dir

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture
def gangs(world: World) -> Iterator[Gangs]:
    added = world(
        "hosts",
        "add",
        "local",
        "--slots",
        "cpu:2",
        "--state-dir",
        str(world.folder / "host-state"),
        "--lock-dir",
        new_lock_dir(world.folder),
        "--remote-dir",
        str(world.folder / "remote"),
    )
    assert added.code == 0, added.err
    gangs = Gangs(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(world.folder))
        yield gangs
    gangs.hook.links.close_all()


def there(world: World) -> set[Path]:
    return {path for name in ("remote", "host-state") for path in (world.folder / name).rglob("*")}


def names(world: World) -> list[str]:
    return [row["name"] for row in world.rows("hosts", "list")]


def test_a_host_is_purged_once_nothing_runs_there(world: World, gangs: Gangs) -> None:
    done, live = gangs.submit("facts", 1), gangs.submit("sleep 321", 1)
    gangs.carry(done).join(120)
    thread = gangs.carry(live)
    until(lambda: gangs.hook.store.attempts.get(live.attempt_id).state == "running")
    refused = world("hosts", "remove", "local", "--purge", "-y")
    assert (refused.code, f"held by trial {live.trial_id}" in refused.err) == (3, True)
    gangs.hook.store.control.kill(live.trial_id, "test")
    thread.join(120)

    before = there(world)
    tried = world("hosts", "remove", "local", "--purge", "--dry-run")
    assert (tried.code, "Nothing was removed: --dry-run." in tried.err) == (0, True)
    assert "local: 2 runs, " in tried.err
    assert f"{world.folder}/remote and {world.folder}/host-state" in tried.err
    unsure = world("hosts", "remove", "local", "--purge", given=b"n\n")
    assert unsure.code == 2, "without a terminal, only -y agrees"
    assert (there(world), names(world)) == (before, ["local"])

    removed = world("hosts", "remove", "local", "--purge", "-y", "-o", "json")
    assert removed.code == 0, removed.err
    assert removed.json["removed"] == "local"
    assert removed.json["bytes"] > 100_000
    assert (there(world), names(world)) == (set(), [])


def test_force_kills_the_trials_first(world: World, gangs: Gangs) -> None:
    live = gangs.submit("sleep 322", 1)
    thread = gangs.carry(live)
    until(lambda: gangs.hook.store.attempts.get(live.attempt_id).state == "running")
    removed = world("hosts", "remove", "local", "--purge", "--force", "-y", "-o", "json")
    thread.join(120)
    assert removed.code == 0, removed.err
    assert [one["trial"] for one in removed.json["ended"]] == [live.trial_id]
    assert gangs.hook.store.trials.get(live.trial_id).state == "killed"
    assert (there(world), names(world)) == (set(), [])


def test_runs_of_another_store_are_named_and_stay(world: World, gangs: Gangs) -> None:
    layout = Layout(str(world.folder / "remote"), str(world.folder / "host-state"), "none").ensure()
    other = Path(layout.run("0badcafe-t1.1.7").path)
    other.mkdir()
    (other / "ended").write_text("{}")
    refused = world("hosts", "remove", "local", "--purge", "-y")
    assert refused.code == 3
    assert "has 1 run(s) of other stores, e.g. 0badcafe-t1.1.7. Nothing was removed." in refused.err
    assert other.exists()
    assert world("hosts", "remove", "local", "--purge", "--force", "-y").code == 0
    assert (there(world), names(world)) == (set(), [])


def test_a_part_that_cannot_be_removed_keeps_the_host_registered(world: World, gangs: Gangs) -> None:
    elsewhere = world.folder / "elsewhere"
    (elsewhere / ("0" * 64)).mkdir(parents=True)
    link = world.folder / "remote" / "environments"
    link.symlink_to(elsewhere)
    refused = world("hosts", "remove", "local", "--purge", "-y")
    assert refused.code == 1
    assert f"it stays registered: {link}: it is a link to {elsewhere}, and links are not followed." in refused.err
    assert names(world) == ["local"]
    assert [path.name for path in elsewhere.iterdir()] == ["0" * 64]
    link.unlink()
    assert world("hosts", "remove", "local", "--purge", "-y").code == 0
    assert (there(world), names(world)) == (set(), [])
