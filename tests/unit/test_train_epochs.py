"""The number of trained epochs that reports name."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import pytorch  # noqa: E402
from airflow_provider_dtrain.train.errors import MetricError  # noqa: E402
from tests.support.event_lines import lines_of  # noqa: E402
from tests.support.small_trial import HPARAMS, Small  # noqa: E402


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    """Make this process the only rank of a trial, and return its folder."""
    (tmp_path / "context.json").write_text(
        json.dumps({"trial_id": 1, "attempt": 1, "hparams": {"global_batch_size": 5}, "seed": 3, "config": {}})
    )
    names = {"RUN_DIR": ".", "EVENTS": "events", "CONTEXT": "context.json", "CHECKPOINT_DIR": "checkpoints"}
    for name, value in names.items():
        monkeypatch.setenv(f"DTRAIN_{name}", str(tmp_path / value))
    monkeypatch.setenv("DTRAIN_RUN", "t1.1.7")
    return tmp_path


def named(run, kind="report"):
    """Return steps and epochs of the reports."""
    return [(line["step"], line.get("epoch")) for line in lines_of(run / "events") if line["kind"] == kind]


def data(batches):
    return torch.utils.data.TensorDataset(torch.zeros(5 * batches, 1))


def test_a_loop_over_epochs_and_a_loader_names_the_share_of_each_epoch(run):
    with dtrain.init() as ctx:
        step = 0
        for _ in ctx.epochs(2):
            for _ in ctx.loader(data(4)):
                step += 1
                ctx.report(step, {"loss": 1.0})
                if step == 6:
                    ctx.report_validation(step, {"error": 1.0})
            ctx.report_validation(step, {"error": 1.0})
    assert named(run) == [(step, step / 4) for step in range(1, 9)]
    assert named(run, "validation") == [(4, 1), (6, 1.5), (8, 2)]


def test_a_resumed_run_goes_on_inside_the_epoch(run):
    def trained(until):
        with dtrain.init() as ctx:
            step = ctx.restore_checkpoint()
            for _ in ctx.epochs(2):
                for _ in ctx.loader(data(4)):
                    step += 1
                    ctx.report(step, {"loss": 1.0})
                    if step == until:
                        ctx.save_checkpoint(step)
                        return

    trained(until=6)
    (saved,) = (line["path"] for line in lines_of(run / "events") if line["kind"] == "checkpoint")
    context = json.loads((run / "context.json").read_text())
    (run / "context.json").write_text(json.dumps({**context, "latest_checkpoint": str(run / saved)}))
    trained(until=8)
    assert named(run) == [(step, step / 4) for step in range(1, 9)]


def test_of_several_loaders_the_first_one_counts_and_an_epoch_is_complete_when_all_are(run):
    with dtrain.init() as ctx:
        step = 0
        for _ in ctx.epochs(1):
            for _ in zip(ctx.loader(data(4)), ctx.loader(data(2)), strict=False):
                step += 1
                ctx.report(step, {"loss": 1.0})
    assert named(run) == [(1, 0.25), (2, 0.5)]


def test_without_the_librarys_loader_an_epoch_counts_once_it_has_validated(run):
    with dtrain.init() as ctx:
        for epoch in ctx.epochs(2):
            ctx.report(epoch, {"loss": 1.0})
            ctx.report_validation(epoch, {"error": 1.0})
    assert named(run) == [(0, 0), (1, 1)]
    assert named(run, "validation") == [(0, 1), (1, 2)]


def test_a_loop_of_the_scripts_own_tells_the_epoch_with_a_report_or_before_it(run):
    with dtrain.init() as ctx:
        ctx.report(1, {"loss": 1.0})
        ctx.report(2, {"loss": 1.0}, epoch=0.5)
        ctx.report(3, {"loss": 1.0})
        ctx.set_epoch(0.75)
        ctx.report(4, {"loss": 1.0})
        ctx.report_validation(5, {"error": 1.0}, epoch=1)
        ctx.report_validation(6, {"error": 1.0})
    assert named(run) == [(1, None), (2, 0.5), (3, 0.5), (4, 0.75)]
    assert named(run, "validation") == [(5, 1), (6, 1)]


@pytest.mark.parametrize("epoch", [-1, float("nan"), float("inf"), "two"])
def test_an_epoch_that_is_no_number_of_at_least_0_is_an_error(epoch):
    with dtrain.init() as ctx, pytest.raises(MetricError, match="epoch"):
        ctx.set_epoch(epoch)


def test_a_sum_of_fractions_slightly_below_a_whole_number_of_epochs_reaches_a_length(run):
    context = json.loads((run / "context.json").read_text())
    searcher = {"name": "single", "metric": "error", "max_length": {"epochs": 3}}
    (run / "context.json").write_text(json.dumps({**context, "config": {"searcher": searcher}}))
    with dtrain.init() as ctx:
        assert ctx.report_validation(1, {"error": 1.0}, epoch=2.5) == "continue"
        assert ctx.report_validation(2, {"error": 1.0}, epoch=2.9999999) == "stop"


def test_a_trial_class_names_the_share_of_each_epoch(run):
    context = json.loads((run / "context.json").read_text())
    (run / "context.json").write_text(json.dumps({**context, "hparams": HPARAMS, "config": {"scheduling_unit": 1}}))
    with pytorch.init() as train_context:
        trial = Small(train_context)
        pytorch.Trainer(trial, train_context).fit(max_length=pytorch.Epoch(2), validation_period=pytorch.Epoch(1))
    reports = named(run)
    batches = len(reports) // 2
    assert batches > 1
    assert reports == [(step, round(step / batches, 6)) for step in range(1, 2 * batches + 1)]
    assert named(run, "validation") == [(batches, 1), (2 * batches, 2)]
