"""Environments of trials: built before the ranks start, shared by gangs, and held while they are used."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind
from airflow_provider_dtrain.core.lock_files.platform import Platform
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.engine.upkeep.held_gangs import GangWaiter, HeldGang, as_xcom, ask_for_gang
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.hosts import uv_program as uv_program_module
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.trials import trial_detail
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.wheels import index_server, locked, make_wheel, uv_program
from tests.support.engines import Engine, held

UV = uv_program()
#: Prints what the ranks see of their environment, and imports the training library.
PROGRAM = """
import os, sys, demo
import airflow_provider_dtrain.train as dtrain
with dtrain.init(backend="sockets") as ctx:
    ctx.report(1, {"loss": 0.5})
    print("found", demo.VERSION, sys.prefix == os.environ["VIRTUAL_ENV"], os.environ["PATH"].startswith(sys.prefix))
"""


def code_folder(root: Path, lock: str, program: str = PROGRAM) -> Path:
    code = root / "code"
    code.mkdir(parents=True, exist_ok=True)
    (code / "train.py").write_text(program)
    (code / "requirements.lock").write_text(lock)
    return code


def document(**environment: Any) -> dict[str, Any]:
    return {
        "name": "packages",
        "entrypoint": "python train.py",
        "model_dir": "code",
        "max_restarts": 0,
        "resources": {"slots_per_trial": 2},
        "environment": {"requirements": "requirements.lock", **environment},
    }


def use_index(patch: pytest.MonkeyPatch, url: str, **more: Any) -> None:
    """Let Airflow have a connection of the name ``wheels`` for an index."""
    patch.setenv("AIRFLOW_CONN_WHEELS", json.dumps({"conn_type": "http", "host": url, **more}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The code with a lock file and its wheel."""
    code = code_folder(tmp_path, "demo==1.0\n")
    make_wheel(code / "wheels", "demo")
    return tmp_path


def builds_of(engine: Engine, trial_id: int) -> list[TimelineEntry]:
    entries = engine.hook.store.timeline.of_trial(trial_id)
    return [entry for entry in entries if entry.kind is TimelineKind.ENVIRONMENT]


async def test_ranks_run_in_an_environment_that_is_built_once(
    engine: Engine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = engine.submit(document(wheels="wheels"), folder=folder)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert "found 1.0 True True" in caplog.text
    assert "Environment requirements.lock is built on host 'local': 1 package(s) for Python 3." in caplog.text
    assert "Environment requirements.lock is ready on host 'local' after" in caplog.text
    plan = engine.hook.store.attempts.get(ticket.attempt_id).plan
    assert plan is not None
    digest = plan["plans"]["local"]["environment"]
    assert plan["plans"]["local"]["python"].endswith(f"/environments/{digest}/bin/python")
    [build] = builds_of(engine, ticket.trial_id)
    assert build.host == "local"
    assert build.until is not None
    assert build.text.startswith("The environment was built on local: 1 package(s) in ")
    caplog.clear()
    again = engine.submit(document(wheels="wheels"), folder=folder)
    outcome = await engine.carry(again)
    assert outcome is not None
    assert outcome.state == "completed"
    assert "is built" not in caplog.text
    assert builds_of(engine, again.trial_id) == []


@pytest.mark.nightly
async def test_trials_that_start_together_share_one_environment(
    engine: Engine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wanted = {**document(wheels="wheels"), "resources": {"slots_per_trial": 1}}
    tickets = [engine.submit(wanted, folder=folder) for _ in range(2)]
    outcomes = await asyncio.gather(*(engine.carry(ticket) for ticket in tickets))
    assert [outcome is not None and outcome.state for outcome in outcomes] == ["completed", "completed"]
    assert caplog.text.count("found 1.0 True True") == 2
    assert len(list(folder.glob(".dtrain/environments/*/bin"))) == 1


@pytest.mark.nightly
async def test_a_task_on_a_held_gang_runs_in_its_environment(
    engine: Engine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys = [TrialKey(dag_id="dag", run_id="run", task_id=name, max_tries=0) for name in ("gang", "train")]
    asked = ask_for_gang(engine.hook, GangSubmission(key=keys[0], pool="local", slots=2))
    log = TaskLog(logging.getLogger("gang"), 10**6)
    gang = await asyncio.wait_for(GangWaiter(engine.hook, asked.allocation_id, log, watcher="test").run(), 60)
    assert gang is not None
    stored = render(engine.hook, document(wheels="wheels"), None, folder, pool=gang.pool)
    ticket = submit(engine.hook, stored, key=keys[1], folder=folder, gang=HeldGang.parse(as_xcom(gang)))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert "found 1.0 True True" in caplog.text


@pytest.mark.nightly
async def test_a_package_that_cannot_be_installed_ends_the_trial_with_its_name_before_any_rank_starts(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "index"
    lock = locked(make_wheel(wheels, "demo", tag="cp311-cp311-macosx_11_0_arm64"))
    code_folder(tmp_path, lock)
    with index_server(wheels) as server:
        use_index(monkeypatch, server.url)
        outcome = await engine.carry(engine.submit(document(index_conn_id="wheels"), folder=tmp_path))
    assert outcome is not None
    assert (outcome.state, outcome.failure.error if outcome.failure else "") == ("errored", "EnvironmentBuildError")
    assert outcome.failure is not None
    assert outcome.failure.kind == "user"
    message = outcome.failure.message
    assert message.startswith("Host 'local' cannot build the environment: No wheel of demo 1.0 that the lock file")
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_build_that_takes_longer_than_its_limit_has_an_error_of_its_own(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "index"
    code_folder(tmp_path, locked(make_wheel(wheels, "demo")))
    with index_server(wheels, stalls=True) as server:
        use_index(monkeypatch, server.url)
        ticket = engine.submit(document(index_conn_id="wheels", build_timeout=1), folder=tmp_path)
        outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.error) == ("errored", "EnvironmentTimeoutError")
    assert "it was not ready after 1 s. The download did not end" in outcome.failure.message
    assert "Set environment.build_timeout to more" in outcome.failure.message
    [build] = builds_of(engine, ticket.trial_id)
    assert build.text.startswith("The environment could not be built on local: Host 'local' cannot build")
    assert held(engine) == []


@pytest.fixture
def path_without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.mark.nightly
async def test_a_host_of_another_platform_gets_uv_from_the_index_of_the_connection(
    path_without_uv: None,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    if UV is None:
        pytest.skip("uv is not installed")
    wheels, runs = tmp_path / "index", tmp_path / "runs"
    script = f'#!/bin/sh\necho "$1" >> {runs}\nexec {UV} "$@"\n'
    code_folder(tmp_path, locked(make_wheel(wheels, "demo")))
    machine = f"linux_{platform.machine()}"
    make_wheel(wheels, "uv", "0.9.1", tag="py3-none-linux_s390x")
    monkeypatch.setattr(uv_program_module, "_version", lambda: "0.9.1")
    monkeypatch.setattr(
        uv_program_module, "this_platform", lambda: Platform(python="3", machine="s390x", libc="glibc 2")
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with index_server(wheels) as server:
        use_index(monkeypatch, server.url)
        outcome = await engine.carry(engine.submit(document(index_conn_id="wheels"), folder=tmp_path))
        assert outcome is not None
        assert outcome.state == "completed", outcome.failure
        message = f"uv 0.9.1 for Python {platform.python_version()} on Linux {platform.machine()} with glibc"
        assert message in caplog.text
        assert f"cannot be fetched: {server.url} has no wheel of it. Host 'local' uses pip." in caplog.text
        make_wheel(wheels, "uv", "0.9.1", tag=f"py3-none-{machine}", files={"uv-0.9.1.data/scripts/uv": script})
        (tmp_path / "code" / "requirements.lock").write_text("# again\n" + locked(wheels / "demo-1.0-py3-none-any.whl"))
        caplog.clear()
        outcome = await engine.carry(engine.submit(document(index_conn_id="wheels"), folder=tmp_path))
        assert outcome is not None
        assert outcome.state == "completed", outcome.failure
    assert "cannot be fetched" not in caplog.text
    assert {"venv", "pip"} <= set(runs.read_text().split())


@pytest.mark.nightly
async def test_a_lock_file_that_cannot_be_used_is_refused_before_anything_is_stored(
    engine: Engine, tmp_path: Path
) -> None:
    code_folder(tmp_path, "demo\n--index-url=index\n")
    with pytest.raises(ConfigError) as refused:
        engine.submit(document(), folder=tmp_path)
    assert [problem.path for problem in refused.value.problems] == ["environment.requirements"] * 2
    assert "'demo' has no exact version" in str(refused.value)
    assert "--index-url is not accepted" in str(refused.value)
    with pytest.raises(ConfigError, match="the code has no wheels in 'wheels'"):
        engine.submit(document(wheels="wheels"), folder=tmp_path)
    (tmp_path / "code" / ".env").write_text("PASSWORD=s3cret\n")
    with pytest.raises(ConfigError, match=r"the code has no file '\.env'") as hidden:
        engine.submit(document(requirements=".env"), folder=tmp_path)
    assert "s3cret" not in str(hidden.value)


@pytest.mark.nightly
async def test_a_setup_script_runs_before_the_ranks_and_its_failure_is_the_error_of_the_trial(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    code = code_folder(tmp_path, "", "import os; print('found', os.environ['TOOLS'], os.environ['RANK'])\n")
    (code / "setup.sh").write_text("export TOOLS=/opt/tools RANK=9 PATH=" + f"{Path(sys.executable).parent}:$PATH\n")
    environment = {"setup": "setup.sh", "requirements": None}
    outcome = await engine.carry(engine.submit(document(**environment), folder=tmp_path))
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert "found /opt/tools 0" in caplog.text
    assert "setup.sh sets RANK, which the launch sets for each rank; it has no effect" in caplog.text
    (code / "setup.sh").write_text("echo no module cuda; exit 3\n")
    outcome = await engine.carry(engine.submit(document(**environment), folder=tmp_path))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "EnvironmentBuildError"
    assert "setup.sh ended with status 3." in outcome.failure.message
    assert "no module cuda" in outcome.failure.message


@pytest.mark.nightly
async def test_a_module_that_the_lock_file_lacks_is_named_with_the_file(engine: Engine, folder: Path) -> None:
    code_folder(folder, "demo==1.0\n", "import torch\n")
    outcome = await engine.carry(engine.submit(document(wheels="wheels"), folder=folder))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == "EnvironmentMissingError"
    assert "the environment of requirements.lock lacks torch. Add torch to requirements.lock" in outcome.failure.message


@pytest.mark.nightly
async def test_credentials_of_an_index_reach_neither_the_store_nor_files_nor_logs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wheels = tmp_path / "index"
    code_folder(tmp_path, locked(make_wheel(wheels, "demo")))
    with index_server(wheels, login="me:s3cret-text") as server:
        use_index(monkeypatch, server.url, login="me", password="s3cret-text")  # noqa: S106 - of this test
        ticket = engine.submit(document(index_conn_id="wheels"), folder=tmp_path)
        outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert "s3cret-text" not in caplog.text
    assert "s3cret-text" not in str(engine.hook.store.attempts.get(ticket.attempt_id).plan)
    folders = [Path.home() / ".dtrain" / "environments", *tmp_path.iterdir()]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert [file for file in files if b"s3cret-text" in file.read_bytes()] == []


@pytest.mark.nightly
async def test_a_kill_while_an_environment_is_built_ends_the_trial_at_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "index"
    code_folder(tmp_path, locked(make_wheel(wheels, "demo")))
    with index_server(wheels, stalls=True) as server:
        use_index(monkeypatch, server.url)
        ticket = engine.submit(document(index_conn_id="wheels"), folder=tmp_path)
        carrying = asyncio.ensure_future(engine.carry(ticket))
        while not server.requests:
            assert not carrying.done(), carrying.result()
            await asyncio.sleep(0.05)
        assert engine.runtime is not None
        reason = trial_detail(engine.hook.store, AllRights(), ticket.trial_id).reason
        assert reason is not None
        assert reason.startswith("Host local builds the environment: begins")
        assert builds_of(engine, ticket.trial_id)[0].until is None
        engine.runtime.kill()
        outcome = await asyncio.wait_for(carrying, 60)
    assert outcome is not None
    assert outcome.state == "killed"
    assert builds_of(engine, ticket.trial_id)[0].until is not None
    assert held(engine) == []
