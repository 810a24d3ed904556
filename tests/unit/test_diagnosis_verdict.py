"""Verdicts of diagnoses: figures of runs go in, shares, limit and advice come out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.diagnosis.report import html_report
from airflow_provider_dtrain.core.diagnosis.runs import AGAIN, ALONE, INDEPENDENT, REAL, SYNTHETIC
from airflow_provider_dtrain.core.diagnosis.verdict import (
    TEXT_CHARS,
    RankFigures,
    RunFigures,
    as_data,
    effect_text,
    rank_figures,
    summary,
    verdict,
    with_try,
)


def settings(**optimizations: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"entrypoint": "python train.py", "optimizations": optimizations})


def run(name: str, *steps_s: float, loading: tuple[float, ...] = (), optimizer_s: float = 0.0) -> RunFigures:
    """Return a run in which each rank has a step time, and a part of it for loading."""
    parts = loading or (0.0,) * len(steps_s)
    return RunFigures(
        name=name,
        title=name,
        trial_id=1,
        ranks=tuple(
            RankFigures(rank=rank, host=f"h{rank}", steps=50, step_s=step_s, loading_s=load_s, optimizer_s=optimizer_s)
            for rank, (step_s, load_s) in enumerate(zip(steps_s, parts, strict=True))
        ),
    )


def runs(
    real: float, synthetic: float, independent: tuple[float, ...], alone: float, loading: tuple[float, ...] = ()
) -> list[RunFigures]:
    ranks = len(independent)
    return [
        run(REAL, *[real] * ranks), run(SYNTHETIC, *[synthetic] * ranks),
        run(INDEPENDENT, *independent, loading=loading), run(ALONE, alone), run(AGAIN, *[real] * ranks),
    ]  # fmt: skip


CASES = {
    # real, synthetic, each rank without exchange, alone, loading -> limit, (communication, input, imbalance, compute)
    "input": ((1.0, 0.3, (0.95, 0.95), 0.9, (0.7, 0.7)), "input", (0.05, 0.7, 0.0, 0.25)),
    "communication": ((1.0, 1.0, (0.4, 0.4), 0.4), "communication", (0.6, 0.0, 0.0, 0.4)),
    "compute": ((1.0, 0.98, (0.97, 0.95), 0.95), "compute", (0.03, 0.02, 0.02, 0.93)),
    "a rank that computes slowly": ((1.0, 1.0, (0.5, 0.95, 0.5), 0.5), "imbalance", (0.05, 0.0, 0.45, 0.5)),
    "a rank that loads slowly": (
        (1.0, 0.5, (0.5, 1.0, 0.5), 0.5, (0.1, 0.6, 0.1)), "imbalance", (0.0, 0.0, 0.5, 0.5),
    ),
    "two ranks, one slow": ((1.0, 1.0, (0.4, 1.0), 0.4), "imbalance", (0.0, 0.0, 0.6, 0.4)),
    "balanced": ((1.0, 0.85, (0.85, 0.83), 0.8), "balanced", (0.15, 0.15, 0.02, 0.68)),
    "an exchange that overlaps with loading": ((1.0, 0.5, (0.3, 0.3), 0.3), "communication", (0.7, 0.3, 0.0, 0.0)),
    "faster with an exchange than without": ((1.0, 1.1, (1.2, 1.2), 1.0), "compute", (0.0, 0.0, 0.0, 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_shares_follow_from_the_differences_of_the_runs_and_add_up_to_1(case: str) -> None:
    figures, limit, shares = CASES[case]
    found = verdict(runs(*figures), settings())  # type: ignore[arg-type]
    assert found.limit == limit
    assert tuple(found.shares.values()) == pytest.approx(shares)
    assert sum(share or 0 for share in found.shares.values()) == pytest.approx(1)


def test_a_slow_rank_is_named_with_its_host_and_what_it_is_slow_at() -> None:
    computing = verdict(runs(1.0, 1.0, (0.5, 0.95, 0.5), 0.5), settings())
    assert computing.slow == ("rank 1 on host 'h1' needs 1.9 times the time of the other ranks, for computing",)
    loading = verdict(runs(1.0, 0.5, (0.5, 1.0, 0.5), 0.5, (0.1, 0.6, 0.1)), settings())
    assert loading.slow == ("rank 1 on host 'h1' needs 2.0 times the time of the other ranks, for loading its data",)
    assert any("host 'h1'" in one.text for one in loading.suggestions)


def test_the_optimizer_step_that_a_run_without_exchange_leaves_out_is_no_communication() -> None:
    figures = runs(1.0, 1.0, (0.6, 0.6), 1.0)
    assert verdict(figures, settings()).shares["communication"] == pytest.approx(0.4)
    figures[0] = run(REAL, 1.0, 1.0, optimizer_s=0.4)
    assert verdict(figures, settings()).shares["communication"] == pytest.approx(0)


def test_a_gang_of_one_slot_has_no_communication_and_no_imbalance() -> None:
    found = verdict([run(REAL, 1.0), run(SYNTHETIC, 0.4), run(AGAIN, 1.0)], settings())
    assert found.shares == pytest.approx({"communication": 0, "input": 0.6, "imbalance": 0, "compute": 0.4})
    assert found.efficiency is None


def test_what_could_not_be_measured_is_unknown_and_its_cause_is_shown() -> None:
    figures = runs(1.0, 0.4, (0.9, 0.9), 0.9)
    figures[1] = replace(figures[1], ranks=(), problem="the program has no loader.")
    figures[2] = replace(figures[2], ranks=(), problem="ctx.backward was never called.")
    found = verdict(figures, settings())
    assert found.shares["communication"] is found.shares["imbalance"] is found.shares["input"] is None
    assert found.sentences[-2:] == (
        "Not measured (synthetic): the program has no loader.",
        "Not measured (independent): ctx.backward was never called.",
    )
    assert found.limit == "unknown"
    assert "input not measured" in found.sentences[0]


def test_efficiency_compares_a_step_of_the_gang_with_that_of_one_rank() -> None:
    assert verdict(runs(1.0, 1.0, (0.5, 0.5), 0.5), settings()).efficiency == pytest.approx(0.5)
    assert verdict(runs(1.0, 1.0, (1.0, 1.0), 1.4), settings()).efficiency == 1
    assert verdict(runs(1.0, 1.0, (1.0, 1.0), 0.5), settings()).contention == pytest.approx(0.5)


def test_a_difference_below_the_noise_is_no_limit() -> None:
    figures = runs(1.0, 0.7, (1.0, 1.0), 1.0)
    assert verdict(figures, settings()).limit == "input"
    figures[-1] = run(AGAIN, 1.6, 1.6)
    figures[1] = run(SYNTHETIC, 0.95, 0.95)
    found = verdict(figures, settings())
    assert found.noise == pytest.approx(0.6 / 1.3)
    assert found.limit == "unknown"
    assert any("differ by 46 %" in text for text in found.sentences)


def test_communication_is_tried_with_the_settings_that_are_not_set_already() -> None:
    figures = runs(1.0, 1.0, (0.4, 0.4), 0.4)
    plain = verdict(figures, settings())
    assert {one.run.name: dict(one.run.changes) for one in plain.suggestions if one.run is not None} == {
        "aggregation": {"optimizations.aggregation_frequency": 4},
        "fp16": {"optimizations.gradient_compression": "fp16"},
        "powersgd": {"optimizations.gradient_compression": "powersgd"},
    }
    tuned = verdict(figures, settings(aggregation_frequency=8, gradient_compression="fp16"))
    assert [dict(one.run.changes) for one in tuned.suggestions if one.run is not None] == [
        {"optimizations.aggregation_frequency": 32}
    ]


def test_a_suggestion_shows_what_its_run_saved() -> None:
    found = verdict(runs(1.0, 1.0, (0.4, 0.4), 0.4), settings())
    one = found.suggestions[0]
    assert effect_text(with_try(one, run("aggregation", 0.55, 0.55), 1.0)) == (
        "should save 45 % of a step; measured: saves 45 %"
    )
    assert effect_text(with_try(one, run("aggregation", 1.25, 1.25), 1.0)).endswith("measured: costs 25 % more")
    failed = RunFigures(name="aggregation", title="a", trial_id=3, problem="out of memory")
    assert effect_text(with_try(one, failed, 1.0)).endswith("not measured: out of memory")


def test_the_report_escapes_every_text_and_loads_nothing() -> None:
    hostile = "<script>alert('x')</script>\"&"
    figures = runs(1.0, 0.5, (0.5, 1.0, 0.5), 0.5)
    figures[2] = replace(
        figures[2], title=hostile, ranks=tuple(replace(rank, host=hostile) for rank in figures[2].ranks)
    )
    figures[1] = replace(figures[1], ranks=(), problem=hostile)
    found = verdict(figures, settings())
    suggestions = tuple(with_try(one, figures[1], 1.0) for one in found.suggestions)
    page = html_report(as_data(replace(found, suggestions=suggestions), figures), hostile, hostile)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
    assert not [word for word in ("http", "src=", "url(", "@import", "<link") if word in page]


def test_the_text_of_a_verdict_fits_into_a_description() -> None:
    figures = runs(1.0, 1.0, (0.4, 0.4), 0.4)
    figures[1] = replace(figures[1], ranks=(), problem="x" * 20_000)
    assert len(summary(verdict(figures, settings()))) == TEXT_CHARS


def test_the_step_of_a_rank_leaves_out_waits_for_the_other_ranks() -> None:
    totals = {
        "dataloader_next": (10, 1.0), "forward": (10, 2.0), "backward": (10, 3.0), "step_optimizer": (10, 0.5),
        "from_device": (1, 1.5), "train_batch": (10, 5.5), "reduce_metrics": (2, 40.0), "checkpoint": (1, 7.0),
    }  # fmt: skip
    found = rank_figures(3, "h", totals)
    assert found == RankFigures(rank=3, host="h", steps=10, step_s=0.8, loading_s=0.1, optimizer_s=0.05)
    whole = rank_figures(0, "h", {"step": (10, 4.0), "backward": (10, 3.0)})
    assert whole == RankFigures(rank=0, host="h", steps=10, step_s=0.4, loading_s=None, optimizer_s=0.0)
    assert rank_figures(0, "h", {"reduce_metrics": (1, 1.0)}) is None
