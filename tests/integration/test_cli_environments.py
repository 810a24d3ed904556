"""``airflow dtrain environments`` on a host that really builds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.operations.host_environments import use_text
from airflow_provider_dtrain.supervisor.environments.folder import EnvironmentFolder
from airflow_provider_dtrain.supervisor.files.layout import Layout
from testbed.wheels import make_wheel
from tests.support.cli_world import World

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]

CONFIG = """
name: packages
entrypoint: python train.py
model_dir: code
environment: {requirements: requirements.lock, wheels: wheels}
"""


@pytest.fixture(scope="module")
def config(world: World) -> Iterator[str]:
    """A configuration whose environment the host ``local`` can build without an index."""
    world.add_local_host()
    code = world.folder / "code"
    make_wheel(code / "wheels", "demo")
    (code / "train.py").write_text("")
    (code / "requirements.lock").write_text("demo==1.0\n")
    return world.file("config.yaml", CONFIG)


def held(world: World, digest: str) -> int:
    lock = EnvironmentFolder(Layout(str(world.folder / "remote")), digest).share()
    assert lock is not None
    return lock


@pytest.mark.nightly
def test_an_environment_is_built_listed_shown_and_removed(world: World, config: str) -> None:
    assert world.rows("environments", "list") == []
    built = world("environments", "build", config, "-o", "json")
    assert built.code == 0, built.err
    assert "Environment requirements.lock is built on host 'local': 1 package(s) for Python 3." in built.err
    assert "Environment requirements.lock is ready on host 'local' after" in built.err
    [row] = built.json
    digest = row["digest"]
    assert Path(row["python"]) == world.folder / "remote" / "environments" / digest / "bin" / "python"
    again = world("environments", "build", config, "--host", "local")
    assert (again.code, "is built" in again.err) == (0, False)

    [listed] = world.rows("environments", "list", "--pool", "local")
    assert (listed["host"], listed["digest"], listed["packages"], listed["in_use_by"]) == ("local", digest, 1, None)
    assert listed["bytes"] > 1000
    assert listed["built_at"] <= listed["last_used"]
    assert world("hosts", "probe").code == 0
    [host] = world.rows("hosts", "list")
    assert (host["environments"], host["environments_bytes"]) == (1, listed["bytes"])
    assert "1 (" in world("hosts", "list").out
    heading = world("environments", "list").out.splitlines()[0]
    assert heading.split() == [
        "host",
        "digest",
        "python",
        "packages",
        "size",
        "built",
        "last",
        "used",
        "in",
        "use",
        "by",
    ]
    shown = world.rows("environments", "show", digest[:6])
    assert (shown["digest"], shown["packages"], list(shown["hosts"])) == (digest, ["demo==1.0"], ["local"])
    assert len(shown["lock"]) == 64

    lock = held(world, digest)
    try:
        kept = world("environments", "remove", digest[:6], "-y")
        assert (kept.code, "stays on host 'local': a run on another host with the same folder uses it" in kept.err) == (
            3,
            True,
        )
    finally:
        os.close(lock)
    dry = world("environments", "remove", digest[:6], "--dry-run", "-o", "json")
    assert (dry.code, dry.json[0]["digest"], "Nothing was removed" in dry.err) == (0, digest, True)
    assert len(world.rows("environments", "list")) == 1
    assert world("environments", "remove", digest[:6]).code == 2, "it asks, and there is no terminal"
    assert world("environments", "remove", digest[:6], "-y").code == 0
    assert world.rows("environments", "list") == []
    missing = world("environments", "remove", digest[:6], "-y")
    assert (missing.code, f"No host has an environment {digest[:6]}" in missing.err) == (1, True)


def test_a_build_that_fails_is_named_with_its_host(world: World, config: str) -> None:
    text = CONFIG.replace("wheels: wheels", "wheels: /nowhere")
    (world.folder / "code" / "requirements.lock").write_text(f"demo==1.0 --hash=sha256:{'0' * 64}\n")
    failed = world("environments", "build", world.file("other.yaml", text), "-o", "json")
    assert failed.code == 1
    assert "Host 'local' cannot build the environment: environment.wheels: folder" in failed.json[0]["problem"]
    bare = world("environments", "build", world.file("bare.yaml", "name: x\nentrypoint: python train.py\n"))
    assert (bare.code, "has no environment.requirements" in bare.err) == (2, True)


@pytest.mark.parametrize("digest", ["abc", "../..", "A" * 64, "a" * 65, "zzzz"])
def test_a_digest_that_is_none_is_a_usage_error(world: World, digest: str) -> None:
    assert world("environments", "show", digest).code == 2


def test_users_of_an_environment_are_named_by_their_trials() -> None:
    store = "0123456789abcdef"
    runs = ["01234567-t7.1.18", "01234567-t9.2.19", "ffffffff-t7.1.1"]
    assert use_text(store, "run", runs) == "trials 7, 9 and 1 run(s) of another store"
    assert use_text(store, "run", []) == "a run on another host with the same folder"
    assert use_text(store, "change", [], "downloads torch: 1 of 2") == "a build, which downloads torch: 1 of 2"
    assert use_text(store, "free", []) is None
