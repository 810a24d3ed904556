"""Diagnoses on this machine: the engine, a held gang, and real ranks whose bottleneck is built in."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.diagnosis.runs import Limits
from airflow_provider_dtrain.engine.diagnosis import Diagnosis, DiagnosisRequest
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.store.records.trials import TrialKey
from tests.support.engines import Engine, held

pytestmark = pytest.mark.torch

SCRIPT = textwrap.dedent(
    """
    import time

    import torch

    import airflow_provider_dtrain.train as dtrain


    class Data(torch.utils.data.Dataset):
        def __init__(self, wait_s):
            self.wait_s = wait_s

        def __len__(self):
            return 64

        def __getitem__(self, index):
            time.sleep(self.wait_s)
            return torch.full((32,), float(index % 7))


    def main():
        with dtrain.init() as ctx:
            torch.set_num_threads(1)
            model = torch.nn.Linear(32, 8)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
            saved = ctx.restore_checkpoint()
            for epoch in ctx.epochs(1000):
                for batch in ctx.loader(Data(ctx.hparams.get("load_s", 0))):
                    time.sleep(ctx.hparams.get("compute_s", 0))
                    if ctx.rank == ctx.hparams.get("slow_rank"):
                        time.sleep(ctx.hparams["slow_s"])
                    ctx.backward(model(batch).square().mean())
                    ctx.step(optimizer)
                    print("batch", ctx.world_size, len(batch), flush=True)
                ctx.report_validation(epoch, {"loss": 1.0})
                ctx.save_checkpoint(epoch)


    main()
    """
)
LIMITS = Limits(steps=15, warm_up=2, most_s=60)


def config(**hyperparameters: Any) -> dict[str, Any]:
    return {
        "name": "case",
        "entrypoint": "python train.py",
        "hyperparameters": {"global_batch_size": 8, **hyperparameters},
        "resources": {"slots_per_trial": 2},
    }


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def diagnosis(engine: Engine, code: Path, document: dict[str, Any], **options: Any) -> Diagnosis:
    options = {"is_confirming": False, "limits": LIMITS, **options}
    request = DiagnosisRequest(
        key=TrialKey(dag_id="dag", run_id="run", task_id="diagnose"), config=document, template=None, folder=code,
        **options,
    )  # fmt: skip
    log = TaskLog(logging.getLogger("engine"), 10**6)
    return Diagnosis(engine.hook, request, log, logging.getLogger("engine").info, watcher="test")


async def diagnose(engine: Engine, code: Path, document: dict[str, Any], **options: Any) -> dict[str, Any]:
    return await asyncio.wait_for(diagnosis(engine, code, document, **options).run(), 280)


async def test_slow_data_is_the_limit_and_the_runs_leave_nothing_but_their_figures(
    engine: Engine, code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = await diagnose(engine, code, config(load_s=0.02))
    print(found)
    assert found["limit"] == "input", found
    assert held(engine) == []
