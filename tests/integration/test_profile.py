"""Measurements of a run on this machine, from its ranks and its supervisor to what the command shows."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.core.series.slow_causes import SlowCause
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.telemetry import NamedStraggler, Profile, SlowRank, TimingTotal
from airflow_provider_dtrain.terminal.profile import profile as command
from tests.support.api_world import Api
from tests.support.engines import Engine, config


def measured(**profiling: Any) -> dict[str, Any]:
    return {**config("", slots=2), "entrypoint": "python measured.py", "profiling": profiling}


async def test_timings_and_system_metrics_reach_the_command(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    ticket = engine.submit(measured(sampling_interval_s=0.2))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    view = engine.hook.store.attempts.get(ticket.attempt_id)

    profile = StoreSource(engine.hook.store).profile(ticket.trial_id, attempt=None)
    assert {(one.rank, one.name) for one in profile.timings} == {
        (rank, name) for rank in (0, 1) for name in ("dataloader_next", "train_batch", "forward", "backward")
    }
    assert all(one.count == 12 for one in profile.timings)
    whole = {one.rank: one for one in profile.timings if one.name == "train_batch"}
    # The batch sleeps 0.1 s. At high load it takes longer, but never less.
    assert 0.1 <= whole[0].mean_s < 1.0
    assert [one.total_s for one in profile.timings if one.name == "backward"] == pytest.approx([0.6, 0.6], rel=0.01)

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

    rows = {one.metric: one for one in profile.system}
    assert {"cpu_util", "memory_available", "net_sent", "net_recv"} <= set(rows)
    assert rows["cpu_util"].count >= 4
    assert {(one.host, one.device) for one in profile.system} == {("local", None)}
    assert all(0 <= one.minimum <= one.mean <= one.maximum for one in profile.system)

    show_profile = partial(shown, StoreSource(engine.hook.store), trial_id=ticket.trial_id)
    capsys.readouterr()
    show_profile(output="table", attempt=None)
    table, explained = capsys.readouterr()
    assert "train_batch contains backward" in explained
    assert "gradient_exchange" not in explained
    assert all(word in table for word in ("train_batch", "memory_available", "GiB"))
    show_profile(output="json", attempt=1)
    document = json.loads(capsys.readouterr().out)
    assert (document["trial_id"], document["attempt"], len(document["timings"])) == (ticket.trial_id, 1, 8)
    assert {row["host"] for row in document["system"]} == {"local"}
    with pytest.raises(NotFoundError, match="no attempt 2"):
        show_profile(output="json", attempt=2)


def shown(source: StoreSource, **args: Any) -> None:
    command(argparse.Namespace(**args), source)


def test_what_is_sampled_has_a_mean_and_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"rank": 0, "count": 2, "mean_s": 0.25, "max_s": 0.3}
    timings = [
        TimingTotal(name="backward", total_s=0.5, **found),
        TimingTotal(name="gradient_exchange", total_s=None, **found),
    ]
    slow = SlowRank(rank=1, host="b", busy_s=0.2, ratio=1.5)
    at = datetime(2026, 1, 31, 14, 2, tzinfo=UTC)
    named = NamedStraggler(
        attempt=1, rank=1, host="b", since=at, until=None, ratio=1.5, cost=0.3, cause=SlowCause.CPU_QUOTA,
        text="Rank 1 on b is slow.", advice="Raise the quota.",
    )  # fmt: skip
    one = Profile(attempt=1, timings=timings, system=[], slow_ranks=[slow], stragglers=[named])
    command(argparse.Namespace(output="plain", trial_id=1, attempt=None), SimpleNamespace(profile=lambda *_, **__: one))
    table, explained = capsys.readouterr()
    assert [line.split()[-1] for line in table.splitlines() if line.startswith("0 ")] == ["s", "sampled"]
    assert "gradient_exchange is sampled" in explained
    assert "Rank 1 on host 'b' is slow: it needs 0.2 s per step, 1.50 times the median" in explained
    assert "to now: Rank 1 on b is slow. Raise the quota." in explained


@pytest.mark.nightly("profiling1")
@pytest.mark.parametrize("profiling", [{"enabled": False}, {"enabled": False, "sampling_interval_s": 0.2}])
async def test_without_profiling_the_supervisor_samples_nothing(engine: Engine, profiling: dict[str, Any]) -> None:
    ticket = engine.submit({**measured(**profiling), "entrypoint": "python ranks.py facts"})
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert StoreSource(engine.hook.store).profile(ticket.trial_id, attempt=None).system == []
    assert not list(Path(engine.hook.store.hosts.get("local").state_dir).rglob("samples*"))


@pytest.mark.nightly
@pytest.mark.torch
async def test_a_slow_rank_of_two_is_named_although_its_exchanges_are_the_shortest(engine: Engine) -> None:
    pytest.importorskip("torch")
    document = {
        **config("", slots=2), "entrypoint": "python slow_rank.py", "hyperparameters": {"global_batch_size": 8},
        "profiling": {"straggler_after": 30},
    }  # fmt: skip
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
