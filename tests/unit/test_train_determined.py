"""Scripts of Determined's Core API: what runs after a change of the import line, and what is refused. No torch."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.train import determined as det
from airflow_provider_dtrain.train.determined.checkpoints import CheckpointContext
from airflow_provider_dtrain.train.errors import (
    CheckpointError,
    InvalidHP,
    MetricError,
    NotOfferedError,
    SetupError,
    TrainError,
)
from airflow_provider_dtrain.train.reports import failure
from tests.support.core_api_scripts import DISTRIBUTED, IMPORT, SEARCHED
from tests.support.decisions import tell
from tests.support.event_lines import lines_of
from tests.support.plain_programs import outputs, start


def events(run: Path, kind: str) -> list[dict]:
    return [line for line in lines_of(run / "events0") if line["kind"] == kind]


def steps(run: Path, kind: str) -> list[int]:
    return [line["step"] for line in events(run, kind)]


# -- whole scripts -----------------------------------------------------------------------------------------------------


def test_a_script_of_two_ranks_reports_stops_and_resumes_from_the_latest_checkpoint(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    script = DISTRIBUTED.replace("CRASH_AT", "-1")
    (run / "stop_requested").touch()
    stopped = outputs(start(run, script, 2, hparams={"increment_by": 3}))
    assert [re.findall(r"preempted at (\d+)", output) for output in stopped] == [["10"], ["10"]]
    assert [line["metrics"] for line in events(run, "report")] == [{"x": 60.0}]
    assert [line["metrics"] for line in events(run, "validation")] == [{"x": 60.0, "batches": 10.0}]
    assert events(run, "stopped")[0]["step"] == 10
    assert "The script has done 10 % (step 10)" in stopped[0]
    (saved,) = events(run, "checkpoint")
    assert saved["metrics"] == {"x": 60.0, "batches": 10.0}, "the policy compares the validation of its step"
    (run / "stop_requested").unlink()
    again = outputs(start(run, script, 2, hparams={"increment_by": 3}, latest_checkpoint=str(run / saved["path"])))
    assert ["starts at 10 with 60" in output for output in again] == [True, True], again
    assert ["ends with 600" in output for output in again] == [True, True]
    assert events(run, "result")[-1]["value"]["step"] == 100
    assert events(run, "result")[-1]["value"]["metrics"] == {"x": 600.0, "batches": 100.0}
    assert steps(run, "checkpoint") == list(range(10, 101, 10))


def test_the_searcher_ends_a_script_at_the_validation_of_a_rung_on_all_ranks(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    tell(run, {"0": "continue", "1": "stop"})
    searcher = {"name": "async_halving", "metric": "x", "time_metric": "batches", "max_time": 80}
    program = DISTRIBUTED.replace("CRASH_AT", "-1")
    launch = {"hparams": {"increment_by": 1}, "config": {"searcher": searcher}, "rungs": [20, 40, 80]}
    ended = outputs(start(run, program, 2, **launch))
    assert [re.findall(r"preempted at (\d+)", output) for output in ended] == [["40"], ["40"]]
    assert [(line["rung"], line["units"], line["metric"]) for line in events(run, "rung")] == [
        (0, 20, 40.0),
        (1, 40, 80.0),
    ]
    assert steps(run, "checkpoint")[-1] == 40


@pytest.mark.parametrize(("unit", "batches"), [("batches", 1), ("epochs", 5)])
def test_a_loop_over_operations_has_one_for_each_rung_until_the_searcher_ends_the_trial(tmp_path, unit, batches):
    run = tmp_path / "run"
    run.mkdir()
    tell(run, {"0": "continue", "1": "stop"})
    searcher = {"name": "async_halving", "metric": "x", "max_length": {unit: 16}}
    config, script = {"searcher": searcher}, SEARCHED.replace("BATCHES_PER_UNIT", str(batches))
    ended = outputs(start(run, script, 2, hparams={"increment_by": 2}, config=config, rungs=[4, 8, 16]))
    for output in ended:
        assert re.findall(r"did (\d+)", output) == ["4", "8"], output
        assert "ends at 8" in output
    assert [(line["rung"], line["units"], line["metric"]) for line in events(run, "rung")] == [
        (0, 4, 8.0),
        (1, 8, 16.0),
    ]
    assert [line["metrics"] for line in events(run, "validation")] == [{"x": 8.0}, {"x": 16.0}]
    # The script has told these numbers before each report, in the unit of the search.
    told = {kind: [line.get("epoch") for line in events(run, kind)] for kind in ("report", "validation")}
    reported = {"report": [0, 2, 4, 6], "validation": [4, 8]} if unit == "epochs" else {"report": [None] * 4}
    assert told == {"validation": [None] * 2, **reported}


EPOCHS = (
    IMPORT
    + """
with det.core.init() as core_context:
    train = core_context.train
    train.report_training_metrics(1, {"loss": 1.0})
    train.report_progress(0.25)
    train.report_training_metrics(2, {"loss": 1.0})
    train.report_training_metrics(3, {"loss": 1.0, "epoch": 3})
    train.report_training_metrics(4, {"loss": 1.0, "epoch": float("nan")})
    train.report_validation_metrics(5, {"loss": 1.0, "epochs": 4})
"""
)


@pytest.mark.parametrize(("unit", "told"), [("epochs", [None, 2, 3, 3]), ("batches", [None, None, 3, 3])])
def test_reports_name_the_epoch_of_their_metrics_or_of_the_progress(tmp_path, unit, told):
    searcher = {"name": "single", "metric": "loss", "max_length": {unit: 8}}
    (ended,) = (start(tmp_path / "run", EPOCHS, 1, hparams={}, config={"searcher": searcher}),)
    outputs(ended)
    assert [line.get("epoch") for line in events(tmp_path / "run", "report")] == told
    kinds = [line["kind"] for line in lines_of(tmp_path / "run" / "events0")]
    assert kinds.count("first_step") == 1
    assert kinds.index("first_step") < kinds.index("report"), "the first report tells that the script trains"
    assert [line["epoch"] for line in events(tmp_path / "run", "validation")] == [4]


def test_a_resumed_attempt_has_no_operation_for_a_rung_at_which_the_searcher_has_decided(tmp_path):
    searcher = {"name": "async_halving", "metric": "x", "max_length": {"epochs": 16}}
    (tmp_path / "run").mkdir()
    tell(tmp_path / "run", {"0": "continue", "1": "stop"})
    context = {"config": {"searcher": searcher}, "rungs": [4, 8, 16], "rungs_decided": 1}
    (output,) = outputs(
        start(tmp_path / "run", SEARCHED.replace("BATCHES_PER_UNIT", "1"), 1, hparams={"increment_by": 2}, **context)
    )
    assert re.findall(r"did (\d+)", output) == ["8"]


def test_without_rungs_there_is_one_operation_of_the_whole_length(tmp_path):
    searcher = {"name": "random", "metric": "x", "max_length": {"records": 6}}
    script = SEARCHED.replace("BATCHES_PER_UNIT", "1")
    hparams = {"increment_by": 2, "global_batch_size": 1}
    (output,) = outputs(start(tmp_path / "run", script, 1, hparams=hparams, config={"searcher": searcher}))
    assert re.findall(r"did (\d+)", output) == ["6"]
    assert "ends at 6" in output


SHARDS = (
    IMPORT
    + """
import pathlib, sys
info = det.get_cluster_info()
with det.core.init() as core_context:
    rank = core_context.distributed.rank
    store = core_context.checkpoint
    metadata = {"steps_completed": 1, "parts": {f"rank{rank}": rank}}
    with store.store_path(metadata, shard=True) as (path, first):
        (path / "deep").mkdir(exist_ok=True)
        (path / "deep" / f"part{rank}").write_text(f"one {rank}")
        (path / "metadata.json").write_text("of the script, and replaced")
    mine = pathlib.Path(f"mine{rank}"); mine.mkdir()
    (mine / f"part{rank}").write_text(f"two {rank}")
    second = store.upload(mine if rank else None, {"steps_completed": 2}, shard=True)
    assert store.upload("mine1", {"steps_completed": 3}) if rank == 0 else True
    core_context.distributed.broadcast(None)
    with store.restore_path(first) as path:
        read = sorted(item.relative_to(path).as_posix() for item in path.rglob("*") if item.is_file())
        texts = [(path / name).read_text() for name in read]
    print("first", first, read, texts[:2], flush=True)
    print("gone", path.exists(), flush=True)
    store.download(second, "all")
    store.download(first, f"some{rank}", selector=lambda name: rank == 1 and name.endswith("part1"))
    if rank == 0:
        print("all", sorted(item.name for item in pathlib.Path("all").iterdir()), flush=True)
        print("some", [str(p) for p in sorted(pathlib.Path("some0").rglob("*")) if p.is_file()], flush=True)
        print("metadata", store.get_metadata(first), flush=True)
        mode = det.core.DownloadMode.NoSharedDownload
        with store.restore_path(second, download_mode=mode) as path:
            print("alone", (path / "part1").read_text(), flush=True)
    print("torch" in sys.modules, flush=True)
"""
)


def test_files_and_metadata_of_all_ranks_are_one_checkpoint_that_each_rank_reads_by_its_id(tmp_path):
    zero, one = outputs(start(tmp_path / "run", SHARDS, 2, config={"checkpoint_policy": "all"}))
    first = re.findall(r"first (\S+) (\[.*?\]) (\[.*?\])", zero)
    assert first == re.findall(r"first (\S+) (\[.*?\]) (\[.*?\])", one)
    ((where, read, texts),) = first
    assert Path(where) == tmp_path / "run" / "checkpoints" / "step-00000001"
    assert read == "['deep/part0', 'deep/part1', 'metadata.json']"
    assert texts == "['one 0', 'one 1']"
    assert "gone False" in zero
    assert "all ['metadata.json', 'part1']" in zero
    assert "some ['some0/deep/part1', 'some0/metadata.json']" in zero, "what any rank of the host selects"
    assert f"metadata { ({'steps_completed': 1, 'parts': {'rank0': 0, 'rank1': 1}}) }" in zero
    assert "alone two 1" in zero
    assert zero.splitlines()[-1] == one.splitlines()[-1] == "False"


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return a function that sets the environment of a trial of one rank."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(failure, "_state", {"installed": False, "failed": False})
    monkeypatch.setattr("airflow_provider_dtrain.train.process.fast_exit._registered", [True])
    monkeypatch.setattr("airflow_provider_dtrain.train.initialization._live", [])
    monkeypatch.chdir(tmp_path)

    def begin(**context):
        document = {"trial_id": 4, "experiment_id": 2, "hparams": {"lr": 0.1}, "seed": 3, "config": {}, **context}
        (tmp_path / "context.json").write_text(json.dumps(document))
        for name, value in {
            "DTRAIN_RUN": "t4.1.7",
            "DTRAIN_RUN_DIR": tmp_path,
            "DTRAIN_EVENTS": tmp_path / "events0",
            "DTRAIN_CONTEXT": tmp_path / "context.json",
        }.items():
            monkeypatch.setenv(name, str(value))

    return begin


def test_the_facts_of_a_trial_have_the_names_of_determined(trial):
    assert det.get_cluster_info() is None
    trial(config={"data": {"place": "here"}}, latest_checkpoint="/saved/step-00000004")
    info = det.get_cluster_info()
    assert (info.task_type, info.task_id, info.allocation_id) == ("TRIAL", "trial-4", "t4.1.7")
    assert (info.trial.trial_id, info.trial.experiment_id, info.trial.trial_seed) == (4, 2, 3)
    assert info.trial.hparams == {"lr": 0.1}
    assert info.user_data == {"place": "here"}
    assert info.latest_checkpoint == "/saved/step-00000004"
    assert (len(info.slot_ids), info.container_rank) == (1, 0)
    trial(source_checkpoint="s3://bucket/trial-1/step-00000009")
    assert det.get_cluster_info().latest_checkpoint == "s3://bucket/trial-1/step-00000009"


def test_groups_of_metrics_and_values_that_are_no_number(trial, tmp_path, caplog):
    trial()
    with det.core.init() as core_context:
        train = core_context.train
        train.report_metrics("training", 1, {"loss": 0.5, "nan_loss": float("nan")})
        train.report_metrics("inference", 2, {"seconds": 3, "words": "many"})
        train.report_metrics("validation", 3, {"error": 1, "table": [1, 2]})
        train.report_metrics("validation", 4, {"error": 2, "table": [1, 2]})
        train.set_status("training")
        with pytest.raises(MetricError, match="Metric 'error' of a validation must be a number, got None"):
            train.report_validation_metrics(5, {"error": None})
    assert [(line["step"], line["metrics"]) for line in events(tmp_path, "report")] == [
        (1, {"loss": 0.5, "nan_loss": None}),
        (2, {"inference/seconds": 3.0}),
    ]
    assert [(line["step"], line["metrics"]) for line in events(tmp_path, "validation")] == [
        (3, {"error": 1.0}),
        (4, {"error": 2.0}),
    ]
    left_out = [record.args for record in caplog.records if "left out" in record.message]
    assert left_out == [("words", "str"), ("table", "list")], "once per metric"


def test_an_operation_is_completed_once_and_reports_its_metric_if_the_script_has_not(trial, tmp_path):
    trial(config={"searcher": {"name": "single", "metric": "error", "max_length": {"batches": 3}}})
    with det.core.init() as core_context:
        assert core_context.searcher.get_configured_units() is det.core.Unit.BATCHES
        for op in core_context.searcher.operations():
            core_context.train.report_training_metrics(3, {"loss": 1})
            op.report_completed(0.25)
            with pytest.raises(SetupError, match="called once"):
                op.report_completed(0.25)
    assert [(line["step"], line["metrics"]) for line in events(tmp_path, "validation")] == [(3, {"error": 0.25})]
    trial(config={"searcher": {"name": "single", "metric": "error", "max_length": {"batches": 3}}})
    with pytest.raises(SetupError, match="operation of length 3 was not completed"), det.core.init() as core_context:
        list(core_context.searcher.operations())


def test_validations_inside_an_operation_need_not_count_epochs(trial, tmp_path):
    searcher = {"name": "async_halving", "metric": "error", "max_length": {"epochs": 2}}
    tell(tmp_path, {"0": "continue"})
    trial(config={"searcher": searcher}, rungs=[1, 2])
    with det.core.init() as core_context:
        for op in core_context.searcher.operations():
            core_context.train.report_validation_metrics(10 * op.length - 5, {"error": 2})
            core_context.train.report_validation_metrics(10 * op.length, {"error": 1})
            op.report_completed(1)
    asked = [(line["rung"], line["units"], line["step"]) for line in events(tmp_path, "rung")]
    assert asked == [(0, 1, 10), (1, 2, 20)]
    trial(config={"searcher": searcher}, rungs=[1, 2])
    with pytest.raises(SetupError, match="searcher.max_length counts epochs"), det.core.init() as core_context:
        core_context.train.report_validation_metrics(10, {"error": 1})


def test_a_script_sees_the_end_of_its_length_as_a_stop_request(trial, tmp_path):
    trial(config={"searcher": {"name": "single", "metric": "error", "max_length": {"epochs": 2}}})
    with det.core.init() as core_context:
        seen = []
        for epoch in (1, 2):
            core_context.train.report_validation_metrics(10 * epoch, {"error": 1, "epochs": epoch})
            seen.append(core_context.preempt.should_preempt())
    assert seen == [False, True]
    assert events(tmp_path, "stopped") == [], "the trial is complete"


def test_a_damaged_latest_checkpoint_is_replaced_by_the_one_before_it_and_any_other_is_named(trial, tmp_path, caplog):
    trial(config={"checkpoint_policy": "all"})
    with det.core.init() as core_context:
        ids = []
        for step in (1, 2):
            with core_context.checkpoint.store_path({"steps_completed": step}) as (path, storage_id):
                (path / "state").write_text(str(step))
            ids.append(storage_id)
    Path(ids[1], "state").write_text("X")
    trial(config={"checkpoint_policy": "all"}, latest_checkpoint=ids[1])
    with det.core.init() as core_context:
        with core_context.checkpoint.restore_path(det.get_cluster_info().latest_checkpoint) as path:
            assert (path / "state").read_text() == "1"
        assert "step-00000002 is damaged" in caplog.text
        with pytest.raises(CheckpointError, match="step-00000009 cannot be read"):
            core_context.checkpoint.get_metadata(str(tmp_path / "checkpoints" / "step-00000009"))
        with pytest.raises(CheckpointError, match="must have 'steps_completed' with a whole number"):
            core_context.checkpoint.upload(tmp_path, {"step": 1})


REFUSED = {
    "det.experimental": lambda _: det.experimental,
    "train.get_tensorboard_path": lambda core: core.train.get_tensorboard_path(),
    "train.get_experiment_best_validation": lambda core: core.train.get_experiment_best_validation(),
    "batch_metrics": lambda core: core.train.report_training_metrics(1, {}, [{"loss": 1}]),
    "USER_REQUESTED_STOP": lambda core: core.train.report_early_exit(det.core.EarlyExitReason.USER_REQUESTED_STOP),
    "checkpoint.delete": lambda core: core.checkpoint.delete("id"),
    "auto_ack=False": lambda core: core.preempt.should_preempt(auto_ack=False),
    "core_context.alert": lambda core: core.alert("a title"),
    "info.container_addrs": lambda core: core.info.container_addrs,
    "info.master_url": lambda core: core.info.master_url,
    "from_horovod": lambda _: det.core.DistributedContext.from_horovod(None),
    "operations without a length": lambda core: list(core.searcher.operations()),
    "profiling": lambda core: core.profiler.on(),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_has_no_equal_is_refused_with_the_remedy(trial, call):
    trial(config={"profiling": {"enabled": False}})
    with det.core.init() as core_context, pytest.raises(NotOfferedError, match=r"[.] [A-Z\d'].*[.]$|needs searcher"):
        call(core_context)


def test_arguments_without_an_equal_are_refused(trial):
    trial()
    with pytest.raises(NotOfferedError, match="Set checkpoint_storage in the configuration"):
        det.core.init(checkpoint_storage="/elsewhere")
    with pytest.raises(NotOfferedError, match=r"MANUAL is not offered\. Set tensorboard: true"):
        det.core.init(tensorboard_mode=det.core.TensorboardMode.MANUAL)
    with pytest.raises(SetupError, match=r"this process is \(0, 1, 0, 1, 0, 1\)"):
        det.core.DistributedContext(rank=1, size=2, local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    with pytest.raises(KeyError):
        det.core.DistributedContext.from_torch_distributed()
    with pytest.raises(AttributeError):
        _ = det.nonsense


def test_invalid_hyperparameters_end_the_script_as_in_any_other(trial, tmp_path):
    trial()
    with pytest.raises(InvalidHP), det.core.init() as core_context:
        core_context.train.report_early_exit(det.core.EarlyExitReason.INVALID_HP)
    assert "INVALID_HP" in events(tmp_path, "invalid_hp")[0]["reason"]


CHIEF_ONLY = (
    IMPORT
    + """
import os
with det.core.init(preempt_mode=det.core.PreemptMode.ChiefOnly) as core_context:
    ranks = core_context.distributed
    if ranks.rank == 0:
        open("stop_requested", "w").close()
    else:
        for call in (
            core_context.preempt.should_preempt,
            lambda: core_context.train.report_training_metrics(1, {}),
            lambda: core_context.checkpoint.upload(".", {"steps_completed": 1}),
            lambda: core_context.train.report_progress(0.5),
        ):
            try:
                call()
            except Exception as error:
                print(type(error).__name__, error, flush=True)
    answer = ranks.broadcast(core_context.preempt.should_preempt() if ranks.rank == 0 else None)
    print("answer", answer, ranks.gather_local(ranks.get_local_rank()), flush=True)
"""
)


def test_rank_0_alone_asks_and_reports_and_other_ranks_are_refused(tmp_path):
    zero, one = outputs(start(tmp_path / "run", CHIEF_ONLY, 2))
    assert "answer True [0, 1]" in zero
    assert "answer True None" in one
    refused = re.findall(r"SetupError (.*) is for rank 0, and rank 1 called it", one)
    assert refused == [
        "preempt.should_preempt() with PreemptMode.ChiefOnly",
        "train.report_metrics('training')",
        "checkpoint.store_path(shard=False)",
        "train.report_progress",
    ]
    assert events(tmp_path / "run", "stopped")


def test_outside_a_trial_the_script_runs_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("airflow_provider_dtrain.train.initialization._live", [])
    caplog.set_level(logging.INFO)
    with det.core.init(checkpoint_storage=str(tmp_path / "kept")) as core_context:
        assert core_context.info is None
        for op in core_context.searcher.operations():
            assert op.length == 1
            op.report_completed(1.0)
        with core_context.checkpoint.store_path({"steps_completed": 1}) as (path, storage_id):
            (path / "state").write_text("x")
        assert core_context.checkpoint.get_metadata(storage_id) == {"steps_completed": 1}
        core_context.profiler.on()
        core_context.profiler.off()
    assert "profiler.off() has no effect" in caplog.text
    assert (tmp_path / "kept" / "step-00000001" / "state").read_text() == "x"


def test_every_refusal_is_an_error_of_the_library():
    assert issubclass(NotOfferedError, TrainError)
    assert not hasattr(CheckpointContext, "delete")
