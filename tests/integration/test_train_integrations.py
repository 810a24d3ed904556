"""Other frameworks inside a trial, against the real libraries, where they are installed."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.nightly]

TRANSFORMERS = """
    import os
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
    from airflow_provider_dtrain.train.integrations.transformers import DtrainCallback

    class Net(PreTrainedModel):
        config_class = PretrainedConfig
        def __init__(self, config):
            super().__init__(config)
            self.layer = torch.nn.Linear(4, 1)
            self.post_init()
        def _init_weights(self, module): pass
        def forward(self, x, labels=None):
            found = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    torch.manual_seed(0)
    xs = torch.randn(64, 4)
    data = [{"x": x, "labels": x.sum().reshape(1)} for x in xs]
    with dtrain.init() as ctx:
        args = TrainingArguments(
            "out", per_device_train_batch_size=4, num_train_epochs=4, eval_strategy="steps", eval_steps=4, save_steps=4,
            logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_total_limit=1, ddp_backend="gloo",
        )
        callback = DtrainCallback(ctx)
        if LAST:
            class Ask(DtrainCallback):
                def on_step_end(self, args, state, control, **more):
                    if state.global_step == 6:
                        open("stop_requested", "w").close()
                        ctx.sync(6)
                    return super().on_step_end(args, state, control, **more)
            callback = Ask(ctx)
        sets = {"train_dataset": data, "eval_dataset": data[:8]}
        trainer = Trainer(Net(PretrainedConfig()), args, callbacks=[callback], **sets)
        latest = callback.latest()
        trainer.train(resume_from_checkpoint=latest)
        print("ended", trainer.state.global_step, latest is not None, float(trainer.model.layer.weight.sum()))
"""


def test_the_trainer_of_hugging_face_stops_resumes_and_ends_as_an_unbroken_one(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    stopped = run_ranks(script(tmp_path, TRANSFORMERS.replace("LAST", "True")), tmp_path / "run", 2)
    assert [rank.exit_code for rank in stopped] == [0, 0], stopped[0].output + stopped[1].output
    assert stopped[0].said(r"ended (\d+) (\w+)") == stopped[1].said(r"ended (\d+) (\w+)") == [("6", "False")]
    saved = [event for event in stopped[0].events if event["kind"] == "checkpoint"]
    assert [event["step"] for event in saved] == [4, 6]
    names = json.loads((tmp_path / "run" / saved[-1]["path"] / "metadata.json").read_text())["files"]
    assert {"trainer_state.json", "rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"} <= set(names)
    kinds = {event["kind"] for event in stopped[0].events}
    assert {"report", "validation", "stopped", "result"} <= kinds
    validation = next(event for event in stopped[0].events if event["kind"] == "validation")
    assert "eval_loss" in validation["metrics"]
    named = [event.get("epoch") for event in stopped[0].events if event["kind"] in ("report", "validation")]
    assert None not in named
    assert named == sorted(named)
    assert any(epoch % 1 for epoch in named), "a report inside an epoch names its share"
    (tmp_path / "run" / "stop_requested").unlink()
    text = TRANSFORMERS.replace("LAST", "False")
    again = run_ranks(script(tmp_path, text), tmp_path / "run", 2)
    whole = run_ranks(script(tmp_path, text), tmp_path / "unbroken", 2)
    assert [rank.exit_code for rank in again + whole] == [0] * 4, again[0].output + whole[0].output
    end = again[0].said(r"ended (\d+) (\w+) (\S+)")[0]
    reference = whole[0].said(r"ended (\d+) (\w+) (\S+)")[0]
    assert end[:2] == ("32", "True")
    assert reference[:2] == ("32", "False")
    assert float(end[2]) == pytest.approx(float(reference[2]), abs=1e-6)


#: The ranks look for a stop in each step.
QUICK = {"config": {"scheduling_unit": 1}}

LIGHTNING = """
    import warnings; warnings.filterwarnings("ignore")
    import lightning.pytorch as pl
    from airflow_provider_dtrain.train.integrations.lightning import DtrainCallback, DtrainLogger

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            loss = torch.nn.functional.mse_loss(self.layer(batch), batch.sum(1, keepdim=True))
            self.log("train_loss", loss)
            if LAST and self.global_step == 7:
                open("stop_requested", "w").close()
            return loss
        def validation_step(self, batch, index):
            error = torch.nn.functional.mse_loss(self.layer(batch), batch.sum(1, keepdim=True))
            self.log("error", error, sync_dist=True)
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    torch.manual_seed(0)
    xs = torch.randn(64, 4)
    with dtrain.init() as ctx:
        callback = DtrainCallback(ctx)
        latest = callback.latest()
        trainer = pl.Trainer(
            max_epochs=6, accelerator="cpu", strategy="ddp", devices=ctx.distributed.local_size,
            logger=DtrainLogger(ctx),
            num_nodes=ctx.distributed.num_agents, callbacks=[callback], enable_progress_bar=False, log_every_n_steps=2,
            enable_checkpointing=False, enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(xs, batch_size=8)
        model = Net()
        trainer.fit(model, loader, loader, ckpt_path=latest)
        print("ended", trainer.global_step, latest is not None, float(model.layer.weight.sum()))
"""


def test_a_lightning_trainer_stops_resumes_and_ends_as_an_unbroken_one(tmp_path):
    pytest.importorskip("lightning")
    stopped = run_ranks(script(tmp_path, LIGHTNING.replace("LAST", "True")), tmp_path / "run", 2, context=QUICK)
    assert [rank.exit_code for rank in stopped] == [0, 0], stopped[0].output + stopped[1].output
    ((steps, _),) = stopped[0].said(r"ended (\d+) (\w+)")
    assert stopped[1].said(r"ended (\d+)") == [steps]
    assert steps == "8", "the end of an epoch: Lightning resumes a plain loader in the middle of one at its start"
    assert {"report", "validation", "checkpoint", "stopped"} <= {event["kind"] for event in stopped[0].events}
    reports = [event for event in stopped[0].events if event["kind"] == "report"]
    # Four batches per epoch, whose steps Lightning counts from 0.
    assert [event["epoch"] for event in reports] == [(event["step"] + 1) / 4 for event in reports]
    assert [event["epoch"] for event in stopped[0].events if event["kind"] == "validation"] == [1, 2]
    (tmp_path / "run" / "stop_requested").unlink()
    text = LIGHTNING.replace("LAST", "False")
    again = run_ranks(script(tmp_path, text), tmp_path / "run", 2)
    whole = run_ranks(script(tmp_path, text), tmp_path / "unbroken", 2)
    assert [rank.exit_code for rank in again + whole] == [0] * 4, again[0].output + whole[0].output
    end, reference = (ranks[0].said(r"ended (\d+) (\w+) (\S+)")[0] for ranks in (again, whole))
    assert (end[:2], reference[:2]) == (("24", "True"), ("24", "False"))
    assert float(end[2]) == pytest.approx(float(reference[2]), abs=1e-6)


ACCELERATE = """
    import os
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from accelerate import Accelerator
    from airflow_provider_dtrain.train.integrations.accelerate import DtrainTracker

    with dtrain.init() as ctx:
        accelerator = Accelerator(log_with=DtrainTracker(ctx))
        accelerator.init_trackers("example")
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model, optimizer = accelerator.prepare(model, optimizer)
        latest = ctx.latest_checkpoint()
        if latest:
            accelerator.load_state(latest.path)
        step = latest.step if latest else 0
        torch.manual_seed(ctx.rank)
        while step < 40:
            step += 1
            loss = model(torch.ones(2, 4)).pow(2).mean()
            accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()
            accelerator.log({"loss": loss.item(), "name": "text"}, step=step)
            if LAST and step == 3 and ctx.is_chief:
                open("stop_requested", "w").close()
            if ctx.should_stop(step):
                with ctx.checkpoint(step) as folder:
                    accelerator.save_state(folder)
                break
        print("ended", step, accelerator.num_processes)
"""


def test_an_accelerate_script_reports_stops_and_resumes(tmp_path):
    pytest.importorskip("accelerate")
    stopped = run_ranks(script(tmp_path, ACCELERATE.replace("LAST", "True")), tmp_path / "run", 2, context=QUICK)
    assert [rank.exit_code for rank in stopped] == [0, 0], stopped[0].output + stopped[1].output
    assert {rank.said(r"ended (\d+) 2")[0] for rank in stopped} < {str(step) for step in range(3, 40)}
    assert any(event["kind"] == "report" and event["metrics"].keys() == {"loss"} for event in stopped[0].events)
    (tmp_path / "run" / "stop_requested").unlink()
    again = run_ranks(script(tmp_path, ACCELERATE.replace("LAST", "False")), tmp_path / "run", 2)
    assert [rank.said(r"ended (\d+)") for rank in again] == [["40"], ["40"]], again[0].output


def test_scalars_of_a_tensorboard_writer_are_metrics_and_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    body = """
        from airflow_provider_dtrain.train.integrations.tensorboard import SummaryWriter
        with dtrain.init() as ctx, SummaryWriter(ctx) as writer:
            writer.add_scalar("loss", torch.tensor(0.5), 3)
            writer.add_scalars("errors", {"a": 1, "b": 2}, 4)
            writer.add_histogram("weights", torch.arange(4.0), 4)
            writer.add_scalar("later", 1.0)
    """
    rank = run_ranks(script(tmp_path, body), tmp_path / "run", 1)[0]
    assert rank.exit_code == 0, rank.output
    reports = [(event["step"], event["metrics"]) for event in rank.events if event["kind"] == "report"]
    assert reports == [(3, {"loss": 0.5}), (4, {"errors/a": 1.0, "errors/b": 2.0}), (4, {"later": 1.0})]
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.*"))


LOGGED = """
    with dtrain.init() as ctx:
        for step in (1, 2):
            ctx.report(step, {"loss": 1.0 / step, "bad": float("inf")})
        ctx.report_validation(2, {"error": 0.25})
"""


def test_mlflow_gets_the_metrics_of_the_trial(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    context = {"config": {"name": "digits", "loggers": ["mlflow"]}, "hparams": {"lr": 0.1, "net": {"depth": 2}}}
    environment = {"MLFLOW_TRACKING_URI": store}
    rank = run_ranks(script(tmp_path, LOGGED), tmp_path / "run", 1, context=context, env=environment)[0]
    assert rank.exit_code == 0, rank.output
    client = mlflow.MlflowClient(store)
    run = client.search_runs([client.get_experiment_by_name("digits").experiment_id])[0]
    assert run.data.params == {"lr": "0.1", "net.depth": "2"}
    assert run.data.metrics == {"loss": 0.5, "validation/error": 0.25}
    assert run.info.status == "FINISHED"


def test_weights_and_biases_gets_the_metrics_of_the_trial_offline(tmp_path):
    pytest.importorskip("wandb")
    context = {"config": {"name": "digits", "loggers": ["wandb"]}}
    environment = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    rank = run_ranks(script(tmp_path, LOGGED), tmp_path / "run", 1, context=context, env=environment)[0]
    assert rank.exit_code == 0, rank.output
    assert "cannot be opened" not in rank.output
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    content = files[0].read_bytes()
    assert b"validation/error" in content
    assert b"0.25" in content


#: Replaces each file that a framework reads by pickle with one that would create "executed", and resumes from it.
MALICIOUS = """
    import os, pathlib, shutil, warnings
    warnings.filterwarnings("ignore")
    os.environ["ACCELERATE_USE_CPU"], os.environ["HF_HUB_OFFLINE"] = "true", "1"

    class Evil:
        def __reduce__(self):
            return os.system, ("touch executed",)

    def resumes(make, read):
        make("good")
        pickled = (".pt", ".pth", ".pkl", ".bin", ".ckpt")
        for path in [path for path in pathlib.Path("good").rglob("*") if path.suffix in pickled]:
            shutil.rmtree("bad", ignore_errors=True)
            shutil.copytree("good", "bad")
            torch.save(Evil(), "bad" / path.relative_to("good"))
            try:
                read("bad")
            except Exception as error:
                print("refused", path.name, type(error).__name__)
            print("tried", path.name, os.path.exists("executed"))

    FRAMEWORK
"""
READERS = {
    "accelerate": """
        from accelerate import Accelerator
        accelerator = Accelerator()
        model = torch.nn.Linear(2, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
        resumes(accelerator.save_state, accelerator.load_state)
    """,
    "lightning": """
        import lightning.pytorch as pl

        class Net(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, index): return self.layer(batch).mean()
            def configure_optimizers(self): return torch.optim.Adam(self.parameters(), 0.01)

        data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
        off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

        def fit(epochs, **options):
            trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **off)
            trainer.fit(Net(), data, **options)
            return trainer

        def read(folder):
            fit(2, ckpt_path=f"{folder}/trainer.ckpt", weights_only=True)

        resumes(lambda folder: fit(1).save_checkpoint(f"{folder}/trainer.ckpt"), read)
        read("good")
    """,
    "transformers": """
        from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

        class Net(PreTrainedModel):
            config_class = PretrainedConfig
            def __init__(self, config):
                super().__init__(config)
                self.layer = torch.nn.Linear(4, 1)
                self.post_init()
            def _init_weights(self, module): pass
            def forward(self, x, labels=None):
                found = self.layer(x)
                return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

        data = [{"x": x, "labels": x.sum().reshape(1)} for x in torch.randn(8, 4)]

        def train(folder, **options):
            args = TrainingArguments(folder, per_device_train_batch_size=4, num_train_epochs=2, save_steps=2,
                                     report_to=[], use_cpu=True, disable_tqdm=True)
            Trainer(Net(PretrainedConfig()), args, train_dataset=data).train(**options)

        resumes(train, lambda folder: train("again", resume_from_checkpoint=f"{folder}/checkpoint-2"))
    """,
}


@pytest.mark.parametrize("library", READERS)
def test_a_framework_executes_nothing_of_a_malicious_checkpoint(tmp_path, library):
    """Reading is the framework's own, so this holds for the versions that are installed."""
    pytest.importorskip(library)
    body = textwrap.dedent(MALICIOUS).replace("FRAMEWORK", textwrap.dedent(READERS[library]))
    (rank,) = run_ranks(script(tmp_path, body), tmp_path / "run", 1)
    assert rank.exit_code == 0, rank.output
    tried = dict(rank.said(r"tried (\S+) (\w+)"))
    assert tried
    assert set(tried.values()) == {"False"}
    assert rank.said(r"refused (\S+) UnpicklingError")
