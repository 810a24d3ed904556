"""Provenance of trials that really ran: what is recorded is what their ranks were made of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.resources.provenance import DagBundle, TrialProvenance
from testbed.wheels import make_wheel
from tests.support.engines import Engine

PROGRAM = """
import sys
import airflow_provider_dtrain.train as dtrain
with dtrain.init({options}) as ctx:
    ctx.report(1, {{"loss": 0.5}})
    print("ran", sys.executable)
"""


def document(**more: Any) -> dict[str, Any]:
    return {
        "name": "made",
        "entrypoint": "python train.py",
        "model_dir": "code",
        "max_restarts": 0,
        "resources": {"slots_per_trial": 2},
        **more,
    }


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True, timeout=60)
    return done.stdout.decode().strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a DAG file in a repository, with code and a lock file."""
    root = tmp_path / "dags"
    code = root / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(PROGRAM.format(options='backend="sockets"'))
    (code / "requirements.lock").write_text("demo==1.0\n")
    make_wheel(code / "wheels", "demo")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    return root


async def ran(engine: Engine, folder: Path, **more: Any) -> TrialProvenance:
    """Run a trial to its end, and return its provenance."""
    bundle = DagBundle(name="dags-folder", version="7")
    ticket = engine.submit(document(**more), folder=folder, bundle=bundle)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    return StoreSource(engine.hook.store).provenance(ticket.trial_id)


async def test_a_trial_with_a_lock_file_has_the_packages_of_its_environment(
    engine: Engine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = await ran(engine, folder, environment={"requirements": "requirements.lock", "wheels": "wheels"})
    assert (found.git.commit, found.git.is_clean) == (git(folder, "rev-parse", "HEAD"), True)
    assert found.bundle == DagBundle(name="dags-folder", version="7")
    assert found.files is not None
    assert found.files["train.py"] == hashlib.sha256((folder / "code" / "train.py").read_bytes()).hexdigest()
    assert found.lock is not None
    assert found.lock.path == "requirements.lock"
    (host,) = found.hosts
    assert found.packages[host.packages or ""] == {"demo": "1.0"}
    assert f"ran {host.executable}" in caplog.text
    assert (host.devices, host.driver, host.image, host.other_interpreter) == ({"0": None, "1": None}, None, None, None)
    assert [(one.ranks, one.executable, one.torch) for one in found.runtimes] == [([0, 1], host.executable, None)]


@pytest.mark.nightly
@pytest.mark.torch
async def test_trials_are_compared_by_what_they_ran_with(engine: Engine, folder: Path) -> None:
    first = await ran(engine, folder, environment={"requirements": "requirements.lock", "wheels": "wheels"})
    shutil.rmtree(folder / "code" / "wheels")
    (folder / "code" / "train.py").write_text(PROGRAM.format(options=""))
    second = await ran(engine, folder)
    assert (second.git.commit, second.git.is_clean, second.lock) == (first.git.commit, False, None)
    (host,) = second.hosts
    assert (host.executable, host.other_interpreter) == (sys.executable, None)
    torch = importlib.metadata.version("torch")
    assert second.packages[host.packages or ""]["torch"] == torch
    # The module names its build as well: 2.13.0+cu130.
    (runtime,) = second.runtimes
    assert runtime.ranks == [0, 1]
    assert (runtime.torch or "").partition("+")[0] == torch.partition("+")[0]
    found = StoreSource(engine.hook.store).trial_differences([first.trial_id, second.trial_id])
    rows = {f"{one.subject} {one.name}".strip(): one for one in found.rows}
    assert rows["packages demo"].values == ["1.0", None]
    assert rows["packages torch"].values == [None, torch]
    assert rows["PyTorch"].values == ["none", runtime.torch]
    assert rows["git state"].values == ["clean", "dirty"]
    assert rows["files wheels/demo-1.0-py3-none-any.whl"].values[1] is None
    assert rows["interpreter path"].values == [first.hosts[0].executable, sys.executable]
    assert rows["data"].is_unknown
    assert {"bundle", "image", "driver", "devices", "hosts"} <= {*found.same}


@pytest.mark.nightly
async def test_packages_of_an_interpreter_that_the_program_chooses_itself_are_unknown(
    engine: Engine, folder: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "own")], check=True, timeout=100)
    own = tmp_path / "own" / "bin" / "python"
    found = await ran(engine, folder, entrypoint=f"{own} train.py")
    (host,) = found.hosts
    assert (host.executable, host.other_interpreter) == (sys.executable, str(own))
