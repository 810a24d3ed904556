"""A batch inference whose results Airflow's machine fetches, with real ranks that see no output folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from airflow_provider_dtrain.core.lifecycle import after_failure  # noqa: E402
from airflow_provider_dtrain.engine.copies.collected_results import CollectedResults  # noqa: E402
from airflow_provider_dtrain.store import attempts  # noqa: E402
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
    monkeypatch.setattr(attempts, "AWAY_FOR", timedelta(seconds=0.3))
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


@pytest.mark.nightly
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
async def test_a_part_that_arrives_damaged_is_computed_again_and_costs_no_restart(
    engine: Engine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, runs = CollectedResults.take, set()

    def cut(results: CollectedResults, link: Any, shard: int, **reported: Any) -> None:
        runs.add(results._run)
        is_cut = shard == 7 and len(runs) == 1
        take(results, link, shard, **{**reported, "sha256": "0" * 64} if is_cut else reported)

    monkeypatch.setattr(CollectedResults, "take", cut)
    ticket = engine.submit(document(place), folder=place)
    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    (first, _) = sorted(engine.hook.store.attempts.of_trial(ticket.trial_id), key=lambda one: one.number)
    assert first.failure is not None
    assert (first.failure["error"], first.failure["kind"]) == ("ResultsLostError", "infra")
    assert "the part of shard 7 differs from its size or checksum" in first.failure["message"]
    runs_of = {name.split(".")[0]: name.split(".", 1)[1] for name in entries(place)}
    assert [shard for shard, run in runs_of.items() if run != runs_of["00000"]] == ["00007"]
    assert rows(place) == rows_of_a_loop()
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_host_that_loses_its_disk_after_its_ranks_have_succeeded_computes_only_what_had_not_arrived(
    engine: Engine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, store, arrived = CollectedResults.take, engine.hook.store, list[int]()
    ticket = engine.submit(document(place), folder=place)

    def wiped(results: CollectedResults, link: Any, shard: int, **reported: Any) -> None:
        if len(arrived) == 5:
            while len(store.events.of_attempt(ticket.attempt_id, kinds=("exit",))) < 2:
                threading.Event().wait(0.05)
            for folder in [*Path.home().rglob("collect"), *place.rglob("collect")]:
                shutil.rmtree(folder, ignore_errors=True)
        arrived.append(shard)
        take(results, link, shard, **reported)

    monkeypatch.setattr(CollectedResults, "take", wiped)
    outcome = await engine.carry(ticket)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    trial = store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    (first, _) = sorted(store.attempts.of_trial(ticket.trial_id), key=lambda one: one.number)
    assert first.failure is not None
    assert first.failure["error"] == "ResultsLostError"
    assert "15 of 20 shards have not arrived from host 'local'" in first.failure["message"]
    assert sorted(int(name[:5]) for name in entries(place) if f".{first.run}." in name) == sorted(arrived[:5])
    assert rows(place) == rows_of_a_loop()
