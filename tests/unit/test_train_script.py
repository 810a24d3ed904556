"""A plain script in one process: `with dtrain.init() as ctx`."""

from __future__ import annotations

import json
import os
import random
import sys

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.process import seeding, stacks
from airflow_provider_dtrain.train.reports import failure
from airflow_provider_dtrain.train.search.stop_answer import AgreementPace
from tests.support.event_lines import lines_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HPARAMS = {"global_batch_size": 8, "lr": 0.1}


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(failure, "_state", {"installed": False, "failed": False})
    monkeypatch.setattr("airflow_provider_dtrain.train.process.fast_exit._registered", [True])


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return a function that makes this process a trial's only rank, with a configuration."""

    def become(config=None, **context):
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        document = {"trial_id": 1, "attempt": 1, "hparams": HPARAMS, "seed": 3, "config": config or {}, **context}
        (run_dir / "context.json").write_text(json.dumps(document))
        for name, value in {
            "RUN": "t1.1.7", "RUN_DIR": run_dir, "EVENTS": run_dir / "events", "CONTEXT": run_dir / "context.json",
        }.items():  # fmt: skip
            monkeypatch.setenv(f"DTRAIN_{name}", str(value))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(run_dir / "error.json"))
        return run_dir

    return become


def data(count=20):
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(torch.randn(count, 4, generator=generator), torch.arange(count) % 2)


def make(ctx):
    """Return a prepared model with dropout, its optimizer with momentum, and a scheduler."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=ctx.hparams["lr"], momentum=0.9)
    return ctx.prepare(model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))


def train(ctx, *, epochs=3, save_every=None, stop_at=None):
    """Return the digest of the parameters after training, or at step ``stop_at``."""
    model, optimizer, _ = make(ctx)
    step = ctx.restore_checkpoint()
    for _ in ctx.epochs(epochs):
        for inputs, labels in ctx.loader(data()):
            # Augmentation with Python's own generator, whose state must be in the checkpoint, too.
            loss = torch.nn.functional.cross_entropy(model(inputs + random.random()), labels)
            ctx.backward(loss)
            ctx.step(optimizer, clip_grad_norm=1.0)
            step += 1
            ctx.report(step, {"loss": loss})
            if save_every and step % save_every == 0:
                ctx.save_checkpoint(step)
            if step == stop_at:
                return dtrain.parameters_sha256(model)
    return dtrain.parameters_sha256(model)


def test_a_rank_writes_its_stacks_on_the_hosts_signal(cluster, monkeypatch):
    run_dir = cluster()
    monkeypatch.setattr(stacks, "_open", [])
    # Python writes at most 100 threads, the newest first. A fork has only this one, whatever other tests have started.
    pid = os.fork()
    if pid == 0:
        try:
            with dtrain.init():
                for _ in range(2):
                    os.kill(os.getpid(), stacks.STACK_SIGNAL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    text = (run_dir / "stacks").read_text()
    assert text.count("in test_a_rank_writes_its_stacks_on_the_hosts_signal") == 2


def test_off_cluster_a_script_runs_alone_and_starts_anew_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digests = []
    for _ in range(2):
        with dtrain.init(hparams=HPARAMS, seed=3) as ctx:
            assert (ctx.distributed.get_rank(), ctx.distributed.get_size(), str(ctx.device)) == (0, 1, "cpu")
            digests.append(train(ctx, save_every=2))
    assert digests[0] == digests[1]
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("stop_at", [2, 3, 4, 6])
def test_a_resumed_run_gives_the_same_weights_as_an_unbroken_one(tmp_path, stop_at):
    with dtrain.init(hparams=HPARAMS, seed=3, checkpoint_dir=tmp_path / "unbroken") as ctx:
        unbroken = train(ctx, save_every=2)
    with dtrain.init(hparams=HPARAMS, seed=3, checkpoint_dir=tmp_path / "broken") as ctx:
        assert train(ctx, save_every=2, stop_at=stop_at) != unbroken
    with dtrain.init(hparams=HPARAMS, seed=3, checkpoint_dir=tmp_path / "broken") as ctx:
        assert train(ctx, save_every=2) == unbroken


def test_a_resumed_run_that_forgets_random_states_would_differ(tmp_path, monkeypatch):
    with dtrain.init(hparams=HPARAMS, seed=3, checkpoint_dir=tmp_path) as ctx:
        unbroken = train(ctx, save_every=2)
    with dtrain.init(hparams=HPARAMS, seed=3, checkpoint_dir=tmp_path / "b") as ctx:
        train(ctx, save_every=2, stop_at=4)
    monkeypatch.setattr(seeding, "apply", lambda state: None)
    with dtrain.init(hparams=HPARAMS, seed=3, checkpoint_dir=tmp_path / "b") as ctx:
        assert train(ctx, save_every=2) != unbroken


def test_a_trial_writes_its_events_in_order(cluster):
    run_dir = cluster({"searcher": {"metric": "accuracy", "smaller_is_better": False}})
    with dtrain.init() as ctx:
        train(ctx, epochs=1)
        assert ctx.report_validation(3, {"accuracy": 0.5}) == "continue"
        ctx.save_checkpoint(3)
    events = lines_of(run_dir / "events")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events] == [
        "init", "first_step", "report", "report", "report", "validation", "weights", "checkpoint",
        "timings", "result",
    ]  # fmt: skip
    by_kind = {event["kind"]: event for event in events}
    assert {key: by_kind["init"][key] for key in ("device", "backend")} == {"device": "cpu", "backend": "gloo"}
    assert by_kind["validation"]["metrics"] == by_kind["checkpoint"]["metrics"] == {"accuracy": 0.5}
    assert by_kind["checkpoint"]["path"] == "checkpoints/step-00000003"
    assert by_kind["result"]["value"] == {
        "step": 3, "metrics": {"accuracy": 0.5}, "checkpoint": "checkpoints/step-00000003",
    }  # fmt: skip
    assert [event["epoch"] for event in events if event["kind"] == "report"] == [0.333333, 0.666667, 1]


def test_a_result_of_the_script_replaces_the_default(cluster):
    run_dir = cluster()
    with dtrain.init() as ctx:
        ctx.set_result({"answer": 42})
    assert lines_of(run_dir / "events")[-1]["value"] == {"answer": 42}


def test_what_the_trial_was_given_wins_over_defaults_of_the_script(cluster):
    cluster(hparams={"lr": 0.5}, seed=9)
    with dtrain.init(hparams={"lr": 0.1, "width": 7}, seed=1) as ctx:
        assert (ctx.hparams, ctx.seed) == ({"lr": 0.5, "width": 7}, 9)


def test_the_policy_keeps_best_and_latest_and_tells_what_went(cluster):
    run_dir = cluster({"searcher": {"metric": "accuracy", "smaller_is_better": False}})
    with dtrain.init() as ctx:
        make(ctx)
        for step, accuracy in enumerate([0.1, 0.9, 0.5, 0.4], start=1):
            ctx.report_validation(step, {"accuracy": accuracy})
            ctx.save_checkpoint(step)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    removed = [event["removed"] for event in lines_of(run_dir / "events") if event["kind"] == "checkpoint"]
    assert removed == [[], ["checkpoints/step-00000001"], [], ["checkpoints/step-00000003"]]


@pytest.mark.parametrize(("policy", "count"), [("all", 3), ("none", 0)])
def test_the_other_policies_keep_all_or_none(cluster, policy, count):
    run_dir = cluster({"checkpoint_policy": policy})
    with dtrain.init() as ctx:
        make(ctx)
        saved = [ctx.save_checkpoint(step) for step in (1, 2, 3)]
    assert sum(path is not None for path in saved) == count
    assert len(list(run_dir.glob("checkpoints/step-*"))) == count


@pytest.mark.parametrize(
    ("unit", "step_s", "seen_at"),
    [
        pytest.param(100, 0.1, 20, id="after-a-second"),
        pytest.param(100, 7.0, 15, id="in-the-next-step-if-it-is-long"),
        pytest.param(16, 0.001, 16, id="at-the-next-boundary-if-steps-are-short"),
    ],
)
def test_a_stop_is_seen_about_a_second_later_and_at_the_next_boundary_at_last(cluster, unit, step_s, seen_at):
    run_dir, now = cluster({"scheduling_unit": unit}), [0.0]
    with dtrain.init() as ctx:
        ctx._stop_pace = AgreementPace(unit, lambda: now[0])
        model, optimizer, _ = make(ctx)
        step = 0
        while not ctx.should_stop:
            step += 1
            if step == 15:
                (run_dir / "stop_requested").touch()
            ctx.backward(model(torch.randn(2, 4)).sum())
            now[0] += step_s
            ctx.step(optimizer)
    assert 0 <= step - seen_at <= 3


def test_a_loop_without_steps_agrees_on_a_stop_in_sync(cluster):
    run_dir = cluster()
    with dtrain.init() as ctx:
        (run_dir / "stop_requested").touch()
        ctx.report(1, {"loss": 1.0})
        assert not ctx.should_stop, "reading it does not communicate"
        ctx.sync(1)
        assert ctx.should_stop
        kinds = [line["kind"] for line in lines_of(run_dir / "events")]
        assert "report" in kinds


def test_a_script_should_stop_once_it_has_trained_long_enough(cluster):
    cluster({"searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 4}}})
    with dtrain.init() as ctx:
        seen = []
        for step in (2, 4):
            ctx.report_validation(step, {"loss": 1.0})
            seen.append(ctx.should_stop)
    assert seen == [False, True]


def test_a_context_names_its_rank(cluster):
    cluster()
    with dtrain.init() as ctx:
        assert (ctx.rank, ctx.local_rank, ctx.world_size, ctx.is_chief) == (0, 0, 1, True)


@pytest.mark.parametrize(("asked_at", "leaves", "marked"), [(2, True, True), (None, False, False), (4, False, False)])
def test_a_script_that_leaves_because_it_was_asked_to_says_so(cluster, asked_at, leaves, marked):
    run_dir = cluster({"scheduling_unit": 1})
    with dtrain.init() as ctx:
        model, optimizer, _ = make(ctx)
        for batch in range(1, 5):
            if leaves and ctx.should_stop:
                break
            if batch == asked_at:
                (run_dir / "stop_requested").touch()
            ctx.backward(model(torch.randn(2, 4)).sum())
            ctx.step(optimizer)
    kinds = [line["kind"] for line in lines_of(run_dir / "events")]
    assert ("stopped" in kinds) is marked
    assert kinds[-1] == "result"


@pytest.mark.parametrize("asked_at", [3, 4, 5])
def test_a_script_of_epochs_saves_and_leaves_when_it_is_asked_to_and_goes_on_as_if_it_had_not(
    cluster, tmp_path, monkeypatch, asked_at
):
    run_dir, seen, samples = cluster({"scheduling_unit": 1}), [], data(32)

    def train(ask: int | None) -> dict[str, object]:
        with dtrain.init() as ctx:
            model, optimizer, _ = make(ctx)
            step = ctx.restore_checkpoint()
            for _ in ctx.epochs(3):
                for inputs, _labels in ctx.loader(samples):
                    ctx.backward(model(inputs).square().mean())
                    ctx.step(optimizer)
                    step += 1
                    seen.append(step)
                    if step == ask:
                        (run_dir / "stop_requested").touch()
                ctx.save_checkpoint(step)
            return {name: value.clone() for name, value in dtrain.unwrap(model).state_dict().items()}

    train(asked_at)
    # The file is polled in the step after it appeared; the last batch of an epoch ends the epoch anyway.
    assert seen == list(range(1, seen[-1] + 1))
    assert seen[-1] in {asked_at, asked_at + 1}
    assert "stopped" in [line["kind"] for line in lines_of(run_dir / "events")]
    (run_dir / "stop_requested").unlink()
    cluster(latest_checkpoint=str(max((run_dir / "checkpoints").glob("step-*"))))
    resumed = train(None)
    assert seen == list(range(1, 13))
    cluster(checkpoint_dir=str(tmp_path / "unbroken"))
    unbroken = train(None)
    assert all(torch.equal(resumed[name], unbroken[name]) for name in unbroken)


def test_schedulers_advance_per_batch_per_epoch_or_by_hand(tmp_path):
    rates = {}
    for kind in ("batch", "epoch", "manual"):
        with dtrain.init(hparams=HPARAMS, checkpoint_dir=tmp_path / kind) as ctx:
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler, scheduler_step=kind)
            for _ in ctx.epochs(3):
                for inputs, _labels in ctx.loader(data(16)):
                    ctx.backward(model(inputs).sum())
                    ctx.step(optimizer)
            rates[kind] = optimizer.param_groups[0]["lr"]
    assert rates == {"batch": 0.5**6, "epoch": 0.5**2, "manual": 1.0}


def test_the_initial_weights_come_from_the_seed_and_dropout_from_a_stream_of_the_rank():
    drawn = []
    for seed in (3, 3, 4):
        with dtrain.init(hparams=HPARAMS, seed=seed) as ctx:
            before = torch.rand(1).item()
            ctx.prepare(torch.nn.Linear(1, 1))
            drawn.append((before, torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 4


def test_an_exception_in_the_block_is_in_the_error_file_with_its_traceback(cluster):
    run_dir = cluster()
    with pytest.raises(ZeroDivisionError), dtrain.init():
        print(1 / 0)
    error = json.loads((run_dir / "error.json").read_text())
    assert error["message"] == "ZeroDivisionError: division by zero"
    assert "1 / 0" in error["traceback"]
    assert "result" not in [event["kind"] for event in lines_of(run_dir / "events")]


def test_reports_before_an_exception_are_not_lost(cluster):
    run_dir = cluster()

    def report_all():
        with dtrain.init() as ctx:
            for step, loss in enumerate([1.0, 2.0, float("nan")], start=1):
                ctx.report(step, {"loss": loss})

    with pytest.raises(dtrain.NonFiniteLossError, match="step 3 on rank 0"):
        report_all()
    assert [event["step"] for event in lines_of(run_dir / "events") if event["kind"] == "report"] == [1, 2]


def test_a_checkpoint_of_another_program_is_refused_by_name(tmp_path):
    with dtrain.init(hparams=HPARAMS, checkpoint_dir=tmp_path) as ctx:
        make(ctx)
        ctx.save_checkpoint(1)
    with dtrain.init(hparams=HPARAMS, checkpoint_dir=tmp_path) as ctx:
        ctx.prepare(torch.nn.Linear(4, 3))
        with pytest.raises(dtrain.CheckpointError, match=r"of another model: models\[0\] \(Linear\), parameter"):
            ctx.restore_checkpoint()


def test_prepare_refuses_what_it_cannot_prepare():
    with dtrain.init(hparams=HPARAMS) as ctx, pytest.raises(dtrain.SetupError, match="load_state_dict, got list"):
        ctx.prepare([1, 2])


def test_a_second_context_beside_a_living_one_is_refused():
    with dtrain.init(hparams=HPARAMS), pytest.raises(dtrain.SetupError, match="called before"):
        dtrain.init(hparams=HPARAMS)
