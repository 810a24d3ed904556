"""The searcher's decisions as ranks see them: real ranks over gloo, a file in the run's folder as the answer."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest

from tests.support.decisions import questions, searcher, tell
from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.torch]

RUNGS = [2, 4, 8]
SEARCHER = {"name": "async_halving", "metric": "accuracy", "smaller_is_better": False, "max_length": {"batches": 8}}

#: Trains to batch 8, validates each batch, and prints each decision and stop request.
LOOP = """
    import os, pathlib, sys, time
    {before}
    with dtrain.init() as ctx:
        model = torch.nn.Linear(1, 1)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step = ctx.restore_checkpoint()
        print("from", step)
        while step < {last} and not ctx.should_stop:
            ctx.backward(model(torch.ones(1, 1)).sum())
            ctx.step(optimizer)
            step += 1
            told = ctx.report_validation(step, {{"accuracy": float("{metric}")}}, average={average})
            print("told", step, told, flush=True)
            ctx.save_checkpoint(step)
            if told == "stop":
                break
            {after}
        print("left at", step, ctx.should_stop, flush=True)
"""
#: Each rank is on a separate host, with its own run folder.
HOSTS = """
    own = pathlib.Path(f"host{os.environ['RANK']}")
    own.mkdir(exist_ok=True)
    os.environ["DTRAIN_RUN_DIR"] = str(own)
"""


def loop(tmp_path, *, last=8, metric="0.5", average=True, before="", after="pass"):
    return script(tmp_path, LOOP.format(last=last, metric=metric, average=average, before=before, after=after))


def context(**more):
    config = {"searcher": SEARCHER, "decision_timeout": 30, "scheduling_unit": 1, **more.pop("config", {})}
    return {"rungs": RUNGS, "config": config, **more}


@pytest.mark.each_change
def test_two_hosts_stop_at_the_same_step_when_the_searcher_says_so(tmp_path):
    run = tmp_path / "run"
    with searcher(run, {0: "continue", 1: "stop"}, folder=run / "host0"):
        ranks = run_ranks(loop(tmp_path, before=HOSTS), run, 2, context=context())
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    for rank in ranks:
        assert rank.said(r"told (\d) (\w+)") == [("1", "continue"), ("2", "continue"), ("3", "continue"), ("4", "stop")]
        assert rank.said(r"left at (\d) (\w+)") == [("4", "True")]
    asked = [(event["rung"], event["units"], event["metric"], event["step"]) for event in questions(ranks[0])]
    assert asked == [(0, 2, 0.5, 2), (1, 4, 0.5, 4)]
    assert questions(ranks[1]) == [], "rank 0 asks for all"
    kinds = [event["kind"] for event in ranks[0].events]
    assert kinds[-2:] == ["stopped", "result"]
    assert "checkpoint" in kinds[kinds.index("rung", kinds.index("rung") + 1) :], "it saved what it had"


def test_without_an_average_the_answer_is_agreed_at_the_next_boundary(tmp_path):
    run = tmp_path / "run"
    with searcher(run, {0: "stop"}):
        ranks = run_ranks(loop(tmp_path, average=False), run, 2, context=context())
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    for rank in ranks:
        assert rank.said(r"told (\d) (\w+)") == [("1", "continue"), ("2", "continue")]
        assert rank.said(r"left at (\d) (\w+)") == [("2", "True")]


def test_a_late_answer_is_applied_at_a_later_boundary(tmp_path):
    """It comes after decision_timeout, when the ranks are in step 6 already."""
    run = tmp_path / "run"
    waits = "while step == 6 and not os.path.exists('decisions.json'): time.sleep(0.01)"
    go = threading.Event()

    def answer():
        while not go.is_set():
            time.sleep(0.01)
            with contextlib.suppress(OSError):
                if '"step":6' in (run / "rank0" / "events").read_text():
                    tell(run, {"0": "stop"})
                    return

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        script_path = loop(tmp_path, last=100, after=waits)
        ranks = run_ranks(script_path, run, 2, context=context(rungs=[2, 200], config={"decision_timeout": 0.3}))
    finally:
        go.set()
        thread.join()
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert "has not answered about rung 0 within 0.3 s" in ranks[0].output
    ends = [rank.said(r"told (\d+) stop") + rank.said(r"left at (\d+) True")[-1:] for rank in ranks]
    assert ends[0] == ends[1]
    assert ends[0][-1] in ("6", "7"), "at the first boundary after the answer"


def test_a_searcher_that_says_nothing_does_not_end_training(tmp_path):
    ranks = run_ranks(loop(tmp_path), tmp_path / "run", 2, context=context(config={"decision_timeout": 0.2}))
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert [event["rung"] for event in questions(ranks[0])] == [0, 1, 2]
    for rank in ranks:
        assert rank.said(r"told (\d) (\w+)")[-1] == ("8", "stop"), "max_length"
    assert ranks[0].output.count("has not answered") == 2, "at the top there is nothing to wait for"


@pytest.mark.each_change
def test_a_restart_below_the_asked_rung_asks_again_and_takes_the_stored_answer(tmp_path):
    first = run_ranks(loop(tmp_path, last=1), tmp_path / "first", 1, context=context())
    assert first[0].exit_code == 0, first[0].output
    saved = tmp_path / "first" / "checkpoints" / "step-00000001"
    run = tmp_path / "second"
    # What the control side knows of the attempt before it sends as soon as it follows.
    tell(run, {"0": "continue", "1": "stop"})
    (rank,) = run_ranks(loop(tmp_path), run, 1, context=context(latest_checkpoint=str(saved)))
    assert rank.exit_code == 0, rank.output
    assert rank.said(r"from (\d)") == ["1"]
    assert [event["rung"] for event in questions(rank)] == [0, 1]
    assert rank.said(r"told (\d) (\w+)")[-1] == ("4", "stop")


def test_a_validation_beyond_several_rungs_asks_for_the_highest_and_obeys_a_stop_below_it(tmp_path):
    run = tmp_path / "run"
    jump = "step = 5 if step == 1 else step"
    tell(run, {"0": "stop"})
    (rank,) = run_ranks(loop(tmp_path, after=jump), run, 1, context=context())
    assert rank.exit_code == 0, rank.output
    assert [(event["rung"], event["units"]) for event in questions(rank)] == [(1, 6)]
    assert rank.said(r"told (\d) stop") == ["6"]


@pytest.mark.parametrize("metric", ["nan", "inf"])
def test_a_metric_that_is_not_finite_is_asked_about_as_null(tmp_path, metric):
    run = tmp_path / "run"
    tell(run, {"0": "stop"})
    (rank,) = run_ranks(loop(tmp_path, metric=metric), run, 1, context=context())
    assert rank.exit_code == 0, rank.output
    assert [event["metric"] for event in questions(rank)] == [None]


def test_nonsense_in_the_answer_is_no_answer(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "decisions.json").write_text('["stop"')
    (rank,) = run_ranks(loop(tmp_path), run, 1, context=context(config={"decision_timeout": 0.1}))
    assert rank.exit_code == 0, rank.output
    assert rank.said(r"left at (\d)") == ["8"]


def test_while_rank_0_waits_its_page_says_so_and_a_pause_ends_the_wait(tmp_path):
    """The watchdog raises no alarm about a place of kind ``wait``."""
    run, seen = tmp_path / "run", []
    over = threading.Event()

    def look():
        while not over.wait(0.05):
            with contextlib.suppress(OSError, ValueError):
                page = json.loads((run / "progress" / "0").read_text())
                if page["what"] == "the searcher's decision":
                    seen.append(page["phase"])
                    (run / "stop_requested").touch()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        ranks = run_ranks(loop(tmp_path), run, 2, context=context(config={"decision_timeout": 100}))
    finally:
        over.set()
        thread.join()
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert set(seen) == {"wait"}
    for rank in ranks:
        assert rank.said(r"told (\d) (\w+)") == [("1", "continue"), ("2", "continue")]
        assert rank.said(r"left at (\d) (\w+)") == [("2", "True")]


TRIAL = """
    import os, time
    from airflow_provider_dtrain.train.trial.run import train
    from tests.support.small_trial import Small

    class Slow(Small):
        samples = 64

        def train_batch(self, batch, epoch_idx, batch_idx):
            {before}
            return super().train_batch(batch, epoch_idx, batch_idx)

    with dtrain.init() as ctx:
        train(Slow, ctx)
        print("ended at", ctx._last_step, flush=True)
"""


def trial_context(unit, rungs, **config):
    length = {"metric": "accuracy", "smaller_is_better": False, "max_length": {unit: rungs[-1]}}
    return {
        "rungs": rungs, "hparams": {"lr": 0.1, "global_batch_size": 8},
        "config": {"searcher": {**SEARCHER, **length}, "scheduling_unit": 3, "checkpoint_policy": "all", **config},
    }  # fmt: skip


@pytest.mark.each_change("epochs-rungs2-steps2")
@pytest.mark.parametrize(("unit", "rungs", "steps"), [
    ("batches", [3, 7, 20], [3, 7]), ("records", [24, 60, 200], [3, 8]), ("epochs", [1, 2, 5], [8, 16]),
])  # fmt: skip
def test_a_trial_class_validates_at_its_rungs_and_ends_with_a_checkpoint(tmp_path, unit, rungs, steps):
    """Also where no other validation is due."""
    run = tmp_path / "run"
    with searcher(run, {0: "continue", 1: "stop"}):
        ranks = run_ranks(script(tmp_path, TRIAL.format(before="pass")), run, 2, context=trial_context(unit, rungs))
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert [event["step"] for event in questions(ranks[0])] == steps
    assert [rank.said(r"ended at (\d+)") for rank in ranks] == [[str(steps[1])]] * 2
    saved = [event["step"] for event in ranks[0].events if event["kind"] == "checkpoint"]
    assert saved[-1] == steps[1]


def test_a_trial_class_obeys_a_late_answer_at_a_scheduling_unit_and_saves(tmp_path):
    run = tmp_path / "run"
    waits = "while batch_idx == 8 and not os.path.exists('decisions.json'): time.sleep(0.01)"
    with searcher(run, {0: "stop"}, after_s=1.0):
        ranks = run_ranks(
            script(tmp_path, TRIAL.format(before=waits)), run, 2,
            context=trial_context("batches", [2, 50], decision_timeout=0.1),
        )  # fmt: skip
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert [rank.said(r"ended at (\d+)") for rank in ranks] == [["9"], ["9"]], "the next unit after the answer"
    assert [event["step"] for event in ranks[0].events if event["kind"] == "checkpoint"][-1] == 9


def test_a_trial_class_at_its_full_length_waits_for_nobody(tmp_path):
    run = tmp_path / "run"
    wanted = trial_context("batches", [4], decision_timeout=100)
    (rank,) = run_ranks(script(tmp_path, TRIAL.format(before="pass")), run, 1, context=wanted)
    assert rank.exit_code == 0, rank.output
    assert [(event["rung"], event["step"]) for event in questions(rank)] == [(0, 4)]
    assert "has not answered" not in rank.output
