"""Measurements of a run on this machine, from its ranks and its supervisor to what the command shows."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from airflow_provider_dtrain.cli import trials_profile
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.database.tables import events, telemetry_chunks, telemetry_hosts
from tests.support.api_world import Api
from tests.support.engines import Engine, config


def measured(**profiling: Any) -> dict[str, Any]:
    return {**config("", slots=2), "entrypoint": "python measured.py", "profiling": profiling}


async def test_timings_and_system_metrics_reach_the_command(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    ticket = engine.submit(measured(sampling_interval_s=0.2))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    view = engine.hook.store.attempts.get(ticket.attempt_id)

    timings = trials_profile._timings(engine.hook.store, view)
    assert [(row["rank"], row["timing"]) for row in timings] == [
        (rank, name) for rank in (0, 1) for name in ("dataloader_next", "train_batch", "backward")
    ]
    assert all(row["count"] == 12 for row in timings)
    # The batch sleeps 0.1 s. At high load it takes longer, but never less.
    assert 0.1 <= timings[1]["mean_s"] < 1.0
    assert timings[2]["total_s"] == pytest.approx(0.6)

    store = engine.hook.store.telemetry
    cpu, *_ = store.series(ticket.trial_id, metrics=["cpu_util"])
    assert (cpu.host, cpu.unit, cpu.rank) == ("local", "%", None)
    assert 2 <= len(cpu.at_s) <= 30
    assert view.started_at is not None
    assert abs(cpu.at_s[0] - view.started_at.timestamp()) < 5
    found = store.timings(ticket.trial_id)
    whole = {one.rank: one for one in found.totals if one.name == "train_batch"}
    assert {rank: one.count for rank, one in whole.items()} == {0: 12, 1: 12}
    assert {part.name for part in found.parts} == {"dataloader_next", "forward", "backward"}
    assert [rank.rank for rank in store.step_times(ticket.trial_id).ranks] == [0, 1]
    assert store.gaps(ticket.trial_id) == {}
    assert [line.device for line in store.sparklines(["local"], view.started_at)] == [""]

    system = trials_profile._system(engine.hook, view)
    rows = {row["metric"]: row for row in system}
    assert {"cpu_util", "memory_available", "net_sent", "net_recv"} <= set(rows)
    assert rows["cpu_util"]["count"] >= 4
    for row in rows.values():
        assert row["host"] == "local"
        assert 0 <= row["min"] <= row["mean"] <= row["max"]

    # A host whose telemetry is not in the store is asked itself.
    with engine.hook.store.db.engine.begin() as connection:
        connection.execute(telemetry_hosts.delete())
        connection.execute(telemetry_chunks.delete())
    read = {row["metric"]: row for row in trials_profile._system(engine.hook, view)}
    assert set(read) == set(rows)
    assert read["cpu_util"]["max"] == pytest.approx(rows["cpu_util"]["max"], rel=0.001)

    command = trials_profile.profile.__wrapped__  # type: ignore[attr-defined]
    capsys.readouterr()
    command(argparse.Namespace(output="table", trial_id=ticket.trial_id, attempt=None))
    shown, explained = capsys.readouterr()
    assert "train_batch contains backward" in explained
    assert "gradient_exchange" not in explained
    assert "train_batch" in shown
    assert "memory_available" in shown
    assert "GiB" in shown
    command(argparse.Namespace(output="json", trial_id=ticket.trial_id, attempt=1))
    document = json.loads(capsys.readouterr().out)
    assert len(document["timings"]) == 6
    assert {row["host"] for row in document["system"]} == {"local"}
    with pytest.raises(NotFoundError, match="no attempt 2"):
        command(argparse.Namespace(output="json", trial_id=ticket.trial_id, attempt=2))


async def test_the_command_opens_no_connection_for_what_is_in_the_store(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    ticket = engine.submit(measured(sampling_interval_s=0.2))
    await engine.carry(ticket)
    monkeypatch.setattr(engine.hook, "link", lambda *_: pytest.fail("a connection was opened"))
    with engine.hook.store.db.engine.begin() as connection:
        connection.execute(events.delete())
    command = trials_profile.profile.__wrapped__  # type: ignore[attr-defined]
    command(argparse.Namespace(output="json", trial_id=ticket.trial_id, attempt=None))
    document = json.loads(capsys.readouterr().out)
    assert {row["timing"] for row in document["timings"]} == {"dataloader_next", "train_batch", "forward", "backward"}
    assert {row["count"] for row in document["timings"]} == {12}
    assert {"cpu_util", "memory_available"} <= {row["metric"] for row in document["system"]}


def test_what_is_sampled_has_a_mean_and_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"count": 2, "total_s": 0.5, "max_s": 0.3}
    rows = trials_profile._rank_timings(0, [{"names": {"backward": found, "gradient_exchange": found}}])
    assert [(row["timing"], row["total_s"], row["mean_s"], row["sampled"]) for row in rows] == [
        ("backward", 0.5, 0.25, False),
        ("gradient_exchange", None, 0.25, True),
    ]
    assert [trials_profile._timing_row(row)["total"] for row in rows] == ["0.500 s", "sampled"]
    trials_profile._explain(rows)
    assert "gradient_exchange is sampled" in capsys.readouterr().err


@pytest.mark.nightly("profiling1")
@pytest.mark.parametrize("profiling", [{"enabled": False}, {"enabled": False, "sampling_interval_s": 0.2}])
async def test_without_profiling_the_supervisor_samples_nothing(
    engine: Engine, profiling: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = engine.submit({**measured(**profiling), "entrypoint": "python ranks.py facts"})
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert trials_profile._system(engine.hook, engine.hook.store.attempts.get(ticket.attempt_id)) == []
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.torch
async def test_a_slow_rank_of_two_is_named_although_its_exchanges_are_the_shortest(engine: Engine) -> None:
    pytest.importorskip("torch")
    document = {**config("", slots=2), "entrypoint": "python slow_rank.py", "hyperparameters": {"global_batch_size": 8}}
    ticket = engine.submit(document)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    found = Api(engine.hook.store).get(f"/trials/{ticket.trial_id}/step_times")
    fast, slow = found["ranks"]
    assert [one["rank"] for one in (fast, slow)] == [0, 1]
    assert [one["rank"] for one in found["slow_ranks"]] == [1]
    steps = engine.hook.store.telemetry.step_times(ticket.trial_id).ranks
    assert steps[0].median_step_s == pytest.approx(steps[1].median_step_s, rel=0.3), "the fast rank waits in each step"
    assert slow["ratio"] > 2 * fast["ratio"], "the strip has two clearly different colours"
