"""A batch inference under the engine: weights of a trained trial, crashes, and a pause, with real ranks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from airflow_provider_dtrain.core.lifecycle import after_failure  # noqa: E402
from tests.support.counting import until  # noqa: E402
from tests.support.engines import Engine, held  # noqa: E402
from tests.support.inference import PROCESSOR, rows, rows_of_a_loop, write_input  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_looks")]

TRAINING = """
import torch
import airflow_provider_dtrain.train as dtrain

with dtrain.init() as ctx:
    torch.manual_seed(1)
    model = ctx.prepare(torch.nn.Linear(2, 3))
    ctx.save_checkpoint(1)
"""
WITH_WEIGHTS = """
class Loaded(Model):
    def setup(self, ctx):
        self.ctx = ctx
        torch.manual_seed(2)
        self.model = ctx.prepare_model(ctx.load_weights(torch.nn.Linear(2, 3)))
"""
#: No exit handler and no guard of Python's own functions sees this end.
QUITS = """
class Quits(Model):
    def process_batch(self, batch, batch_idx):
        import ctypes
        ctypes.CDLL(None)._exit(0)
"""
DIED = "../died"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_input(tmp_path)
    (tmp_path / "code").mkdir()
    died = str(tmp_path / "died")
    text = PROCESSOR.replace(f'"{DIED}"', repr(died)) + WITH_WEIGHTS
    (tmp_path / "code" / "processors.py").write_text(text)
    (tmp_path / "code" / "training.py").write_text(TRAINING)
    return tmp_path


def document(place: Path, *, slots: int = 2, **section: Any) -> dict[str, Any]:
    inference = {
        "processor": "processors:Model",
        "inputs": {"path": str(place / "in"), "shard_rows": 50},
        "outputs": {"path": str(place / "out"), "columns": ["id"], "row_id": "row"},
        "batch_size": 16,
        **section,
    }
    resources = {"slots_per_trial": slots}
    return {"inference": inference, "model_dir": "code", "max_restarts": 0, "resources": resources}


@pytest.mark.nightly
async def test_ranks_use_the_weights_of_a_trained_trial(engine: Engine, place: Path) -> None:
    training = {"entrypoint": "python training.py", "model_dir": "code", "resources": {"slots_per_trial": 1}}
    ticket = engine.submit(training, folder=place)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure

    weights = {"trial": ticket.trial_id, "which": "latest"}
    outcome = await engine.carry(
        engine.submit(document(place, processor="processors:Loaded", weights=weights), folder=place)
    )

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert rows(place) == rows_of_a_loop()
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_rank_that_dies_in_a_shard_costs_no_restart_and_no_row(
    engine: Engine, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(after_failure, "BACK_OFF_FIRST_S", 0.1)
    ticket = engine.submit(document(place, processor="processors:DiesOnce"), folder=place)

    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    assert "It was processing shard 9 (a.parquet rows 450-499)." in caplog.text
    assert rows(place) == rows_of_a_loop()


@pytest.mark.nightly
async def test_a_paused_run_gives_way_between_shards_and_computes_the_rest(engine: Engine, place: Path) -> None:
    ticket = engine.submit(document(place, processor="processors:Slow"), folder=place)
    carrying = asyncio.ensure_future(engine.carry(ticket))
    store = engine.hook.store
    await until(lambda: store.events.of_attempt(ticket.attempt_id, kinds=("shard_done",)), carrying)
    store.control.pause(ticket.trial_id, by="ann")
    await until(lambda: store.trials.get(ticket.trial_id).state == "paused", carrying)
    assert held(engine) == []
    assert not (place / "out" / "_manifest.json").exists()
    store.control.activate(ticket.trial_id, by="ann")

    outcome = await carrying

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert rows(place) == rows_of_a_loop()


@pytest.mark.nightly
async def test_an_input_that_no_restart_can_mend_ends_the_trial_at_once_with_the_error_of_rank_0(
    engine: Engine, place: Path
) -> None:
    (place / "in" / "b.parquet").write_bytes(b"PAR1 is no table")
    wanted = {**document(place), "max_restarts": 3}
    ticket = engine.submit(wanted, folder=place)

    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.error, outcome.failure.rank) == ("errored", "TrainingRefusedError", 0)
    assert f"InputError: {place / 'in' / 'b.parquet'} cannot be read as Parquet" in outcome.failure.cause
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (1, 0)
    assert held(engine) == []


async def test_a_trial_whose_rank_ends_with_success_before_the_end_has_not_completed(
    engine: Engine, place: Path
) -> None:
    with (place / "code" / "processors.py").open("a") as file:
        file.write(QUITS)
    ticket = engine.submit(document(place, slots=1, processor="processors:Quits"), folder=place)

    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.state, outcome.failure.error) == ("errored", "ShardFailedError")
    assert "It ended with exit code 0 before the results were published" in outcome.failure.cause
    assert not (place / "out" / "_manifest.json").exists()
    assert held(engine) == []
