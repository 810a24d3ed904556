"""The profiler records the batches of its schedule, within bounds, and never ends a training."""

from __future__ import annotations

import gzip
import json
import logging
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.core.config import ExperimentConfig  # noqa: E402
from airflow_provider_dtrain.core.event_log import EventSource, read_lines  # noqa: E402
from airflow_provider_dtrain.train import pytorch  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402
from airflow_provider_dtrain.train.reports import profiler as module  # noqa: E402
from airflow_provider_dtrain.train.reports.events import EventWriter  # noqa: E402
from tests.support.small_trial import Small  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def context(**profiling):
    config = {"profiling": profiling} if profiling else {}
    return dtrain.init(hparams={"global_batch_size": 4, "lr": 0.1}, config=config, checkpoint_dir="checkpoints")


def train(ctx, batches):
    model = torch.nn.Linear(4, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(batches):
        ctx.backward(model(torch.ones(4, 4)).sum())
        ctx.step(optimizer)


def traces(tmp_path):
    return sorted(path.name for path in (tmp_path / "traces").glob("*"))


def recorded(path):
    """Return the numbers of the batches in a trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    assert any(name.startswith("aten::") for name in names)
    return sorted(int(name.split("#")[1]) for name in names if name.startswith("ProfilerStep#"))


def test_a_script_writes_a_trace_of_the_batches_of_its_schedule(tmp_path):
    with context() as ctx:
        ctx.profiler.start(wait=1, warmup=1, active=2, repeat=2)
        train(ctx, 12)
        assert not ctx.profiler.running
    first, second = (f"rank0-attempt1-batch{batch}.pt.trace.json.gz" for batch in (4, 8))
    assert traces(tmp_path) == [first, second]
    assert recorded(tmp_path / "traces" / first) == [2, 3]
    assert recorded(tmp_path / "traces" / second) == [6, 7]


def test_the_configuration_traces_any_script_from_its_first_batch_on(tmp_path):
    with context(trace={"wait": 0, "warmup": 1, "active": 1, "record_shapes": True}) as ctx:
        train(ctx, 5)
    assert traces(tmp_path) == ["rank0-attempt1-batch3.pt.trace.json.gz"]
    assert "Input Dims" in gzip.decompress((tmp_path / "traces" / traces(tmp_path)[0]).read_bytes()).decode()


def test_a_loop_without_steps_is_traced_by_its_questions_for_a_stop(tmp_path):
    with context(trace={"wait": 0, "warmup": 0, "active": 1}) as ctx:
        for step in range(4):
            torch.ones(2).add(1)
            ctx.should_stop(step)
    assert len(traces(tmp_path)) == 1


@pytest.mark.parametrize("profiling", [{"enabled": False}, {"trace": None}, {"trace": {"ranks": [1]}}])
def test_nothing_is_recorded_where_it_is_not_asked_for(tmp_path, profiling):
    with context(**{"trace": {"wait": 0, "warmup": 0}, **profiling}) as ctx:
        assert not ctx.profiler.running
        train(ctx, 5)
    assert traces(tmp_path) == []


def request(tmp_path, **changes):
    """Write the file that the supervisor writes."""
    document = {"at": 1.0, "ranks": [0], "batches": 2, "with_stack": False, **changes}
    partial = tmp_path / "partial"
    partial.write_text(json.dumps(document))
    partial.rename(tmp_path / module.REQUEST)


def asked(tmp_path, monkeypatch):
    """Return the profiler of rank 0 of a run whose folder is that of the test."""
    monkeypatch.setattr(module, "POLL_S", 0.0)
    return module.Profiler(RankEnvironment(run_dir=tmp_path), EventWriter(None))


def loop(profiler, batches):
    for _ in range(batches):
        torch.ones(2).add(1)
        profiler.step()


def test_a_running_rank_records_its_next_batches_each_time_that_a_user_requests_it(tmp_path, monkeypatch):
    profiler = asked(tmp_path, monkeypatch)
    loop(profiler, 3)
    for count in (1, 2):
        request(tmp_path)
        loop(profiler, 8)
        assert not profiler.running
        found = sorted((tmp_path / "work" / "traces").iterdir())
        assert len(found) == count
        assert len(recorded(found[-1])) == 2


def test_a_rank_that_is_not_asked_and_a_request_that_is_no_request_record_nothing(tmp_path, monkeypatch, caplog):
    profiler = asked(tmp_path, monkeypatch)
    for changes in (
        {"ranks": [1]},
        {"ranks": 7},
        {"batches": 0},
        {"batches": 10**9},
        {"batches": "x"},
        {"ranks": None},
    ):
        request(tmp_path, **changes)
        loop(profiler, 4)
        assert not profiler.running
    (tmp_path / module.REQUEST).write_bytes(b"[" * 60_000)
    loop(profiler, 2)
    (tmp_path / module.REQUEST).write_bytes(b" " * (module.REQUEST_BYTES + 1))
    loop(profiler, 2)
    assert not (tmp_path / "work").exists()
    assert sum("training continues" in one for one in caplog.messages) == 6


def test_a_request_during_a_trace_waits_for_its_end(tmp_path, monkeypatch):
    profiler = asked(tmp_path, monkeypatch)
    request(tmp_path, batches=3)
    loop(profiler, 2)
    assert profiler.running
    request(tmp_path, batches=1)
    loop(profiler, 10)
    assert len(list((tmp_path / "work" / "traces").iterdir())) == 2


def test_a_rank_reads_requests_once_a_second(tmp_path, monkeypatch):
    profiler = module.Profiler(RankEnvironment(run_dir=tmp_path), EventWriter(None))
    profiler.step()
    request(tmp_path)
    profiler.step()
    assert not profiler.running
    now = module.time.monotonic() + module.POLL_S
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    profiler.step()
    assert profiler.running
    profiler.stop()


def test_what_is_recorded_when_training_ends_becomes_a_trace(tmp_path):
    with context() as ctx:
        ctx.profiler.start(wait=0, warmup=0, active=50, ranks="all")
        train(ctx, 2)
    assert len(traces(tmp_path)) == 1


def test_a_disk_that_is_full_ends_the_recording_and_not_the_training(tmp_path, caplog):
    (tmp_path / "traces").write_text("a file where the folder should be")
    with context() as ctx, caplog.at_level(logging.WARNING, "airflow_provider_dtrain.train"):
        ctx.profiler.start(wait=0, warmup=0, active=1, repeat=3)
        train(ctx, 6)
        assert not ctx.profiler.running
    assert [one for one in caplog.messages if "is off from now on, training continues: FileExistsError" in one]


def test_a_profiler_that_does_not_start_does_not_end_the_training(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(torch.profiler.profile, "start", lambda _: 1 / 0)
    with context(trace={"wait": 0}) as ctx, caplog.at_level(logging.WARNING, "airflow_provider_dtrain.train"):
        train(ctx, 3)
    assert "training continues: ZeroDivisionError" in caplog.text


def test_traces_are_bounded_in_bytes(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with context() as ctx, caplog.at_level(logging.WARNING, "airflow_provider_dtrain.train"):
        ctx.profiler.start(wait=0, warmup=0, active=1, repeat=3)
        train(ctx, 6)
    assert traces(tmp_path) == []
    assert "exceed" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"active": 0}, "active must be a whole number from 1 to 100, got 0."),
        ({"active": 10**9}, "from 1 to 100"),
        ({"repeat": 0}, "repeat must be a whole number from 1 to 20, got 0."),
        ({"wait": -1}, "wait must be"),
        ({"warmup": float("nan")}, "got nan"),
        ({"active": True}, "got True"),
        ({"ranks": "some"}, "ranks of the profiler must be 'all' or a list"),
        ({"ranks": [-1]}, "from 0 on"),
        ({"shapes": True}, "shapes is no option of the profiler. Options: activities, record_shapes"),
    ],
)
def test_wrong_settings_are_named_before_the_training(settings, words):
    with context() as ctx:
        with pytest.raises(SetupError, match=words.replace(".", r"\.")):
            ctx.profiler.start(**settings)
        with pytest.raises(SetupError):
            ctx.profiler.configure(settings)


def test_the_configuration_accepts_what_the_library_accepts():
    document = {"name": "x", "entrypoint": "python a.py", "profiling": {"trace": {"active": 5, "ranks": "all"}}}
    found = ExperimentConfig.model_validate(document).profiling.trace
    assert found is not None
    with context() as ctx:
        ctx.profiler.configure(found.model_dump())
        assert ctx.profiler.running


def test_a_second_profiler_is_refused():
    with context() as ctx:
        with ctx.profiler.start(), pytest.raises(SetupError, match="running already"):
            ctx.profiler.start()
        assert not ctx.profiler.running


def test_the_control_side_reads_the_event_of_a_trace(tmp_path):
    with context() as ctx:
        path = tmp_path / "events"
        ctx.profiler._env = replace(ctx.profiler._env, run_dir=tmp_path)
        ctx.profiler._writer = module.EventWriter(path)
        ctx.profiler.start(wait=0, warmup=0, active=1)
        train(ctx, 2)
        ctx.profiler._writer.close()
    (line,) = read_lines(path.read_bytes(), EventSource(0, frozenset({0})))
    assert line.event is not None
    assert line.event["kind"] == "trace"
    assert (tmp_path / line.event["path"]).stat().st_size == line.event["size_bytes"]


class Profiled(Small):
    """A trial with Determined's call."""

    options: dict = {}

    def __init__(self, context):
        super().__init__(context)
        context.set_profiler(**self.options)


def fit(options, batches=8):
    Profiled.options = options
    with pytorch.init(hparams={"lr": 0.1, "global_batch_size": 8}) as context:
        pytorch.Trainer(Profiled(context), context).fit(max_length=pytorch.Batch(batches))


def test_set_profiler_of_a_trial_writes_traces(tmp_path):
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    fit({"activities": [torch.profiler.ProfilerActivity.CPU], "schedule": schedule})
    (name,) = traces(tmp_path)
    assert recorded(tmp_path / "traces" / name) == [2, 3]


def test_a_schedule_that_never_saves_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BATCHES", 3)
    monkeypatch.setattr(module, "MOST_TRACES", 2)
    fit({"schedule": lambda step: torch.profiler.ProfilerAction.RECORD}, batches=10)
    assert [len(recorded(tmp_path / "traces" / name)) for name in traces(tmp_path)] == [3, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"on_trace_ready": print}, "writes traces itself"), ({"colour": 1}, "does not take these arguments: .*colour")],
)
def test_arguments_that_set_profiler_does_not_take_are_named(options, words):
    with pytest.raises(SetupError, match=words):
        fit(options)


def test_configure_profiler_takes_determineds_positional_arguments(caplog):
    with pytorch.init(hparams={"lr": 0.1, "global_batch_size": 8}) as context, caplog.at_level(logging.WARNING):
        pytorch.Trainer(Small(context), context).configure_profiler(True, True, 0, 10)
    assert "configure_profiler has no effect" in caplog.text
