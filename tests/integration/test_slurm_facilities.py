"""Nodes of a job have what any host has: environments, containers, stacks and complete logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli import trials_stack
from airflow_provider_dtrain.core.launch.containers import ContainerRules
from testbed.slurm.cluster import SlurmCluster
from testbed.wheels import make_wheel
from tests.support.engines import Engine, config, held
from tests.support.slurm_pools import set_pool
from tests.support.stand_in_runtime import docker

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="gangs of several nodes need a network of their own for each node"),
]


def in_pool(document: dict[str, Any], slots: int = 4) -> dict[str, Any]:
    return {**document, "resources": {"slots_per_trial": slots, "pool": "hpc"}}


@pytest.fixture
def pool(engine: Engine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine with the pool ``hpc``, whose nodes have two CPUs for gangs."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    set_pool(engine)
    yield engine
    slurm_cluster.run("scancel", "--user=root")


@pytest.mark.nightly
async def test_an_environment_is_built_by_the_first_job(
    pool: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import os, sys, demo; print('found', demo.VERSION, os.environ['VIRTUAL_ENV'] == sys.prefix)\n"
    )
    (folder / "requirements.lock").write_text("demo==1.0\n")
    make_wheel(folder / "wheels", "demo")
    environment = {"requirements": "requirements.lock", "wheels": "wheels"}
    document = {
        "entrypoint": "python train.py",
        "model_dir": ".",
        "max_restarts": 0,
        "environment": environment,
    }
    for is_first in (True, False):
        caplog.clear()
        outcome = await pool.carry(pool.submit(in_pool(document), folder=folder))
        assert outcome is not None
        assert outcome.state == "completed", outcome.failure
        assert "found 1.0 True" in caplog.text
        assert ("is built on host" in caplog.text) is is_first


@pytest.mark.nightly
async def test_ranks_run_in_a_container_of_the_runtime_that_setup_lines_bring(
    pool: Engine, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    with docker(tmp_path / "runtime", slurm_cluster.nodes["n2"].enter) as folder:
        set_pool(pool, setup=f"export PATH={folder}:$PATH\n", sbatch_options=["--nodelist=n2"])
        pool.hook.store.pools.set("hpc", containers=ContainerRules(runtime="docker"))
        environment = {"image": "train:1", "container": "required"}
        outcome = await pool.carry(pool.submit(in_pool(config("facts", environment=environment), 2)))
        assert outcome is not None
        assert outcome.state == "completed", outcome.failure
        calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    assert "pull" in [call[0] for call in calls]
    assert held(pool) == []


async def test_the_log_of_a_gang_that_fails_is_complete(
    pool: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "sent").mkdir()
    # Only rank 0 fails: the failure of another one would end it in the middle of its lines.
    (tmp_path / "sent/train.py").write_text(
        "import os, time\nif os.environ['RANK'] != '0':\n    time.sleep(60)\n"
        "for line in range(2000):\n    print('line', line)\nraise SystemExit('wrong')\n"
    )
    document = {"entrypoint": "python train.py", "model_dir": ".", "max_restarts": 0}
    outcome = await pool.carry(pool.submit(in_pool(document), folder=tmp_path / "sent"))
    assert outcome is not None
    assert outcome.state == "errored"
    lines = re.findall(r"\[rank 0\] (line \d+|wrong)$", caplog.text, re.MULTILINE)
    assert lines == [*(f"line {number}" for number in range(2000)), "wrong"]


@pytest.mark.nightly
async def test_stacks_of_ranks_on_all_nodes_are_shown(
    pool: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: pool.hook)
    ticket = pool.submit(in_pool({**config(""), "entrypoint": "python stacked.py"}))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    async with asyncio.timeout(120):
        while len(pool.hook.store.events.ranks(ticket.attempt_id)) < 4:
            assert not carrying.done(), carrying.result()
            await asyncio.sleep(0.1)
    args = Namespace(trial_id=ticket.trial_id, rank=None, output="json", verbose=False)
    async with asyncio.timeout(60):
        rows: list[dict[str, str]] = []
        while len(rows) < 4 or any("in the_place_to_find" not in row["text"] for row in rows):
            with contextlib.suppress(SystemExit):
                await asyncio.to_thread(trials_stack.stack, args)
            rows = json.loads(capsys.readouterr().out or "[]")
    nodes = {row["host"].partition(".")[0] for row in rows}
    assert len(nodes) == 2
    pool.hook.store.control.kill(ticket.trial_id, "ann")
    assert (outcome := await carrying) is not None
    assert outcome.state == "killed"
