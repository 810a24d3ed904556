"""GPUs of Slurm jobs: each rank sees the device that Slurm gave to its job. The driver's library is a stand-in."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.slurm.cluster import SlurmCluster
from tests.support.engines import Engine, config, held
from tests.support.nvml import build_library
from tests.support.slurm_pools import ended_jobs, in_pool, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
PROGRAM = "import os, time; print('sees', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(3)"


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_looks")
async def test_two_jobs_on_one_node_have_different_gpus(
    engine: Engine,
    slurm_clusters: Callable[..., SlurmCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cluster = slurm_clusters(nodes=1, gpus_per_node=2, node_prefix="gpu")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    build_library(tmp_path)
    setup = f"export LD_LIBRARY_PATH={tmp_path} FAKE_NVML_DEVICES=GPU-first,GPU-second\n"
    set_pool(engine, slots="gpu", setup=setup, slots_per_node=None)
    document = in_pool({**config("", slots=1), "entrypoint": ["python", "-c", PROGRAM]})
    tickets = [engine.submit(document) for _ in range(2)]
    outcomes = await asyncio.gather(*(engine.carry(ticket, most_s=90) for ticket in tickets))
    assert [outcome and outcome.state for outcome in outcomes] == ["completed", "completed"]
    assert sorted(re.findall(r"\[rank 0\] sees (\S+)", caplog.text)) == ["GPU-first", "GPU-second"]
    assert held(engine) == []
    for ticket in tickets:
        await ended_jobs(engine, ticket)
