"""Samples that a training of a framework sees in an epoch with a pause, and what it resumes with."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from tests.support.ranks import ROOT, run_ranks, script

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.nightly]

ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
#: A request to stop is seen in each step.
QUICK = {"config": {"scheduling_unit": 1}, "hparams": {"lr": 0.05, "epochs": 3, "global_batch_size": 32}}


def run(path, folder, size=2):
    ranks = run_ranks(path, folder, size, context=QUICK, env=ENVIRONMENT)
    assert [rank.exit_code for rank in ranks] == [0] * size, "".join(rank.output for rank in ranks)
    return ranks


def paused(tmp_path, text, *, size=2):
    """Return what the ranks print of a run that is paused and resumed, and of an unbroken one.

    :param text: a script; PAUSE_AT stands for the step at which it is asked to pause, or for -1
    """
    found = []
    for folder, steps in (("paused", (PAUSE, -1)), ("unbroken", (-1,))):
        printed = []
        for step in steps:
            ranks = run(script(tmp_path, text.replace("PAUSE_AT", str(step))), tmp_path / folder, size)
            printed.append(ranks)
            (tmp_path / folder / "stop_requested").unlink(missing_ok=True)
        found.append(printed)
    return found


#: In the middle of the second epoch.
PAUSE = 21


def samples(attempts):
    """Return epoch -> how often each sample was seen in it, over the attempts and ranks."""
    seen = {}
    for ranks in attempts:
        for rank in ranks:
            for epoch, numbers in rank.said(r"saw (\d+) \[(.*?)\]"):
                seen.setdefault(int(epoch), Counter()).update(int(number) for number in numbers.split(","))
    return seen


def check(attempts, count):
    assert len(attempts) == 2
    found = samples(attempts)
    assert set(found) == {0, 1, 2}
    for epoch, seen in found.items():
        assert seen == Counter(range(count)), f"epoch {epoch}: {len(seen)} of {count} samples"


#: The example as it is shipped, on numbered points. It is asked to pause after some steps.
ACCELERATE = """
    import os, runpy
    from airflow_provider_dtrain.train.search.stop_answer import StopAnswer
    ask = StopAnswer.__call__

    def asked(self, step, **options):
        if step == PAUSE_AT:
            open("stop_requested", "w").close()
        return ask(self, step, **options)

    StopAnswer.__call__ = asked
    mse_loss = torch.nn.functional.mse_loss
    steps = 0

    def watched(found, targets, **options):
        if found.requires_grad:
            global steps
            numbers = [ORDER[target] for target in targets.flatten().tolist()]
            print("saw", (START + steps) // 16, numbers, flush=True)
            steps += 1
        return mse_loss(found, targets, **options)

    torch.nn.functional.mse_loss = watched
    from accelerate import Accelerator
    load, prepare = Accelerator.load_state, Accelerator.prepare

    def prepared(self, model, *rest):
        global MODEL
        MODEL = model
        return prepare(self, model, *rest)

    def loaded(self, path, *rest, **more):
        global START
        START = int(str(path).rpartition("-")[2])
        return load(self, path, *rest, **more)

    START = 0
    Accelerator.load_state, Accelerator.prepare = loaded, prepared
    example = runpy.run_path("EXAMPLE")
    ORDER = {target.item(): number for number, (_, target) in enumerate(example["points"](512, 0))}
    example["main"]()
    print("ended", dtrain.parameters_sha256(MODEL))
"""


def test_an_epoch_of_the_accelerate_example_with_a_pause_has_each_sample_once(tmp_path):
    pytest.importorskip("accelerate")
    text = ACCELERATE.replace("EXAMPLE", str(ROOT / "dags" / "accelerate_script" / "train.py"))
    with_pause, (unbroken,) = paused(tmp_path, text)
    check(with_pause, 512)
    ends = [ranks[0].said(r"ended (\w+)") for ranks in (with_pause[1], unbroken)]
    assert ends[0] == ends[1]


LIGHTNING = """
    import logging, warnings
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    import lightning.pytorch as pl
    from airflow_provider_dtrain.train.integrations.lightning import DtrainCallback, DtrainLogger

    class Stateful(torch.utils.data.DataLoader):
        # In order of the data set, and resumed at its position as StatefulDataLoader of torchdata is.
        start = done = 0
        def __iter__(self):
            start, self.start = self.start, 0
            return self.counted(super().__iter__(), start)
        def counted(self, batches, start):
            for number, batch in enumerate(batches):
                if number >= start:
                    self.done = number + 1
                    yield batch
        def state_dict(self): return {"done": self.done % len(self)}
        def load_state_dict(self, state): self.start = state["done"]

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
        def training_step(self, batch, index):
            print("saw", self.current_epoch, batch.flatten().int().tolist(), flush=True)
            if self.global_step == PAUSE_AT - 1:
                open("stop_requested", "w").close()
            return torch.nn.functional.mse_loss(self.net(batch), batch)
        def validation_step(self, batch, index):
            self.log("error", torch.nn.functional.mse_loss(self.net(batch), batch), sync_dist=True)
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    with dtrain.init() as ctx:
        pl.seed_everything(3, verbose=False)
        torch.manual_seed(0)
        model = Net()
        torch.manual_seed(ctx.rank)
        xs = torch.arange(256.0 * ctx.world_size).reshape(-1, 1)
        loader = LOADER
        callback = DtrainCallback(ctx)
        trainer = pl.Trainer(
            max_epochs=3, accelerator="cpu", strategy="ddp" if ctx.world_size > 1 else "auto",
            devices=ctx.distributed.local_size, logger=DtrainLogger(ctx), callbacks=[callback],
            enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, OPTIONS
        )
        held_out = torch.utils.data.DataLoader(xs, batch_size=16) if VALIDATES else None
        trainer.fit(model, loader, held_out, ckpt_path=callback.latest())
        print("ended", trainer.global_step, dtrain.parameters_sha256(model))
"""
PLAIN = "torch.utils.data.DataLoader(xs, batch_size=16, shuffle=True, num_workers=1)"


def lightning(loader=PLAIN, *, options="", validates=True):
    text = LIGHTNING.replace("LOADER", loader).replace("OPTIONS", options)
    return text.replace("VALIDATES", str(validates))


@pytest.mark.parametrize(
    ("size", "validates"), [(1, True), (1, False), (2, True)], ids=["alone", "without validation", "two ranks"]
)
def test_lightning_pauses_a_plain_loader_at_the_end_of_the_epoch_and_ends_as_an_unbroken_training(
    tmp_path, size, validates
):
    """With shuffling and dropout, whose random numbers Lightning restores neither."""
    pytest.importorskip("lightning")
    with_pause, (unbroken,) = paused(tmp_path, lightning(validates=validates), size=size)
    assert with_pause[0][0].said(r"ended (\d+)") == ["32"]
    check(with_pause, 256 * size)
    for before, after in zip(with_pause[1], unbroken, strict=True):
        assert before.said(r"ended (\d+ \w+)") == after.said(r"ended (\d+ \w+)")


def test_lightning_pauses_a_stateful_loader_at_the_next_step(tmp_path):
    pytest.importorskip("lightning")
    with_pause, (unbroken,) = paused(tmp_path, lightning("Stateful(xs, batch_size=16)"), size=1)
    assert with_pause[0][0].said(r"ended (\d+)") == [str(PAUSE)]
    check(with_pause, 256)
    assert with_pause[1][0].said(r"ended (\d+ \w+)") == unbroken[0].said(r"ended (\d+ \w+)")


def test_lightning_pauses_inside_an_epoch_that_outlasts_the_preemption_timeout(tmp_path):
    pytest.importorskip("lightning")
    context = {**QUICK, "config": {**QUICK["config"], "preemption_timeout": 1e-9}}
    text = lightning(options="accumulate_grad_batches=2").replace("PAUSE_AT", "11")
    (rank,) = run_ranks(script(tmp_path, text), tmp_path / "run", 1, context=context)
    assert rank.exit_code == 0, rank.output
    assert rank.said(r"ended (\d+)") == ["11"], "22 batches: no accumulated gradient is lost"
    assert rank.output.count("does not end within preemption_timeout") == 1


TRANSFORMERS = """
    import json
    import transformers
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
    from airflow_provider_dtrain.train.integrations.transformers import DtrainCallback
    transformers.logging.set_verbosity_error()

    class Net(PreTrainedModel):
        config_class = PretrainedConfig
        def __init__(self, config):
            super().__init__(config)
            self.net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
            self.post_init()
        def _init_weights(self, module): pass
        def forward(self, x, labels=None):
            if self.training:
                print("saw", trainer.state.global_step // EPOCH, x.flatten().int().tolist(), flush=True)
                if trainer.state.global_step == PAUSE_AT - 1:
                    open("stop_requested", "w").close()
            found = self.net(x / 256)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    with dtrain.init() as ctx:
        torch.manual_seed(0)
        count = 256 * ctx.world_size
        data = [{"x": torch.tensor([float(number)]), "labels": torch.tensor([number / 256])} for number in range(count)]
        # Far from the training data: the first model is the best one.
        far = [{"x": torch.tensor([0.0]), "labels": torch.tensor([-100.0])}] * 32
        args = TrainingArguments(
            "out", per_device_train_batch_size=16, num_train_epochs=3, learning_rate=0.05, report_to=[], use_cpu=True,
            eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, disable_tqdm=True, ddp_backend="gloo",
            lr_scheduler_type="constant", seed=7, metric_for_best_model="eval_loss", greater_is_better=False, OPTIONS
        )
        EPOCH = 16
        callback = DtrainCallback(ctx)
        trainer = Trainer(Net(PretrainedConfig()), args, train_dataset=data, eval_dataset=far, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.latest())
        best = json.dumps([trainer.state.best_metric, trainer.state.best_model_checkpoint])
        print("ended", trainer.state.global_step, dtrain.parameters_sha256(trainer.model), best)
"""


@pytest.mark.parametrize("size", [1, 2])
def test_an_epoch_of_the_hugging_face_trainer_with_a_pause_has_each_sample_once(tmp_path, size):
    pytest.importorskip("transformers")
    with_pause, (unbroken,) = paused(tmp_path, TRANSFORMERS.replace("OPTIONS", ""), size=size)
    assert with_pause[0][0].said(r"ended (\d+)") == [str(PAUSE)]
    check(with_pause, 256 * size)
    assert with_pause[1][0].said(r"ended (\d+ \w+)") == unbroken[0].said(r"ended (\d+ \w+)")
    (validation, *_) = [event for event in unbroken[0].events if event["kind"] == "validation"]
    assert set(validation["metrics"]) <= {"eval_loss", "epoch"}, "no durations"
    reports = {name for event in unbroken[0].events if event["kind"] == "report" for name in event["metrics"]}
    assert {name for name in reports if "runtime" in name or "second" in name} == set()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("pause", [PAUSE, 16], ids=["after the best one", "at the best one"])
def test_the_best_model_of_the_hugging_face_trainer_survives_pauses(tmp_path, size, pause):
    """Each attempt of a trial has a working folder of its own, so that only the checkpoint is left."""
    pytest.importorskip("transformers")
    text = TRANSFORMERS.replace("OPTIONS", "load_best_model_at_end=True")

    def attempt(folder, pause_at):
        shutil.rmtree(tmp_path / folder / "out", ignore_errors=True)
        ranks = run(script(tmp_path, text.replace("PAUSE_AT", str(pause_at))), tmp_path / folder, size)
        (tmp_path / folder / "stop_requested").unlink(missing_ok=True)
        return {rank.said(r"ended (\d+ \w+ .*)")[0] for rank in ranks}

    attempt("paused", pause)
    attempt("paused", 40)
    assert attempt("paused", -1) == attempt("unbroken", -1)


def test_the_callback_of_determined_resumes_filters_and_ends_with_an_evaluation_and_a_checkpoint(tmp_path):
    pytest.importorskip("transformers")
    text = TRANSFORMERS.replace("OPTIONS", "").replace('_strategy="epoch"', '_strategy="no"')
    for old, new in {
        "from airflow_provider_dtrain.train.integrations.transformers import DtrainCallback": (
            "from airflow_provider_dtrain.train import determined as det\n"
            "    from airflow_provider_dtrain.train.determined.transformers import DetCallback"
        ),
        "with dtrain.init() as ctx:": "with det.core.init() as core_context:\n        ctx = core_context.dtrain",
        "DtrainCallback(ctx)": 'DetCallback(core_context, args, filter_metrics=["loss"], user_data={"a": 1})',
        "callback.latest()": "args.resume_from_checkpoint",
        "best = json.dumps": "trainer.evaluate()\n        best = json.dumps",
    }.items():
        assert old in text
        text = text.replace(old, new)
    with_pause, (unbroken,) = paused(tmp_path, text)
    assert with_pause[0][0].said(r"ended (\d+)") == [str(PAUSE)]
    check(with_pause, 512)
    assert with_pause[1][0].said(r"ended (\d+ \w+)") == unbroken[0].said(r"ended (\d+ \w+)")
    (validation,) = [event for event in unbroken[0].events if event["kind"] == "validation"]
    assert (validation["step"], set(validation["metrics"])) == (48, {"eval_loss"})
    reports = {name for event in unbroken[0].events if event["kind"] == "report" for name in event["metrics"]}
    assert reports == {"train_loss"}
    (saved,) = [event["path"] for event in unbroken[0].events if event["kind"] == "checkpoint"]
    assert (tmp_path / "unbroken" / saved / "my_data.json").read_text() == '{"a": 1}'
