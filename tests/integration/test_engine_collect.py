"""A batch inference whose results Airflow's machine fetches, with real ranks that see no output folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from airflow_provider_dtrain.core.lifecycle import after_failure  # noqa: E402
from airflow_provider_dtrain.engine.copies.collected_results import CollectedResults  # noqa: E402
from tests.support.counting import until  # noqa: E402
from tests.support.engines import Engine, held  # noqa: E402
from tests.support.inference import PROCESSOR, rows, rows_of_a_loop, write_input  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_looks")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_input(tmp_path)
    (tmp_path / "code").mkdir()
    text = PROCESSOR.replace('"../died"', repr(str(tmp_path / "died")))
    (tmp_path / "code" / "processors.py").write_text(text)
    monkeypatch.setattr(after_failure, "BACK_OFF_FIRST_S", 0.1)
    return tmp_path


def document(place: Path, *, slots: int = 2, **section: Any) -> dict[str, Any]:
    inference = {
        "processor": "processors:Model",
        "inputs": {"path": str(place / "in"), "shard_rows": 50},
        "outputs": {"path": str(place / "out"), "columns": ["id"], "row_id": "row"},
        "batch_size": 16,
        "collect": True,
        **section,
    }
    resources = {"slots_per_trial": slots}
    return {"inference": inference, "model_dir": "code", "max_restarts": 0, "resources": resources}


def entries(place: Path) -> list[str]:
    return sorted(os.listdir(place / "out" / "_dtrain" / "done"))


async def test_the_results_arrive_and_a_second_run_computes_nothing(engine: Engine, place: Path) -> None:
    ticket = engine.submit(document(place), folder=place)
    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert rows(place) == rows_of_a_loop()
    written = json.loads((place / "out" / "_manifest.json").read_text())
    assert outcome.result is not None
    assert outcome.result["manifest"]["rows"] == written["rows"] == 1000
    assert outcome.result["metrics"] == written["metrics"]
    assert not list((place / "out" / "_dtrain" / "parts").iterdir())
    before = entries(place)

    again = engine.submit(document(place, slots=1), folder=place)
    outcome = await engine.carry(again)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert entries(place) == before
    assert outcome.result is not None
    assert outcome.result["manifest"]["rows"] == 1000
    assert rows(place) == rows_of_a_loop()


@pytest.mark.nightly
async def test_a_rank_that_dies_costs_only_shards_that_had_not_arrived(engine: Engine, place: Path) -> None:
    ticket = engine.submit(document(place, processor="processors:DiesOnce"), folder=place)

    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 2
    runs = {name.split(".", 1)[1] for name in entries(place)}
    assert len(runs) == 2
    assert len(entries(place)) == 20
    assert rows(place) == rows_of_a_loop()
    assert held(engine) == []


@pytest.mark.nightly
async def test_the_next_follower_fetches_what_its_predecessor_left(engine: Engine, place: Path) -> None:
    ticket = engine.submit(document(place, processor="processors:Slow"), folder=place)
    store = engine.hook.store
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until(lambda: store.events.of_attempt(ticket.attempt_id, kinds=("shard_done",)), carrying)
    assert engine.runtime is not None
    engine.runtime.hand_over()
    assert await carrying is None

    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert store.trials.get(ticket.trial_id).attempts == 1
    assert rows(place) == rows_of_a_loop()


@pytest.mark.nightly
async def test_other_inputs_are_refused_with_both_names_and_overwrite_replaces_the_results(
    engine: Engine, place: Path
) -> None:
    assert (await engine.carry(engine.submit(document(place), folder=place))).state == "completed"
    shutil.copy(place / "in" / "a.parquet", place / "in" / "c.parquet")

    outcome = await engine.carry(engine.submit(document(place, slots=1), folder=place))

    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert f"The output folder {place / 'out'} holds results that depend on other inputs" in outcome.failure.message
    assert "c.parquet is new" in outcome.failure.message
    assert rows(place) == rows_of_a_loop()

    outputs = {"path": str(place / "out"), "columns": ["id"], "row_id": "row", "overwrite": True}
    outcome = await engine.carry(engine.submit(document(place, outputs=outputs), folder=place))

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert len(rows(place)) == 1600


@pytest.mark.nightly
async def test_a_part_that_arrives_damaged_costs_only_its_shard(
    engine: Engine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = CollectedResults.take

    def cut(results: CollectedResults, link: Any, shard: int, **reported: Any) -> None:
        take(results, link, shard, **{**reported, "sha256": "0" * 64} if shard == 7 else reported)

    with monkeypatch.context() as patch:
        patch.setattr(CollectedResults, "take", cut)
        outcome = await engine.carry(engine.submit(document(place), folder=place))

    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert "the part of shard 7 differs from its size or checksum" in outcome.failure.message
    assert held(engine) == []
    before = entries(place)
    assert len(before) == 19

    outcome = await engine.carry(engine.submit(document(place), folder=place))

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert set(before) < set(entries(place))
    assert rows(place) == rows_of_a_loop()
