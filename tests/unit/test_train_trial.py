"""The loop of a trial class, in one process."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import pytorch  # noqa: E402
from tests.support.small_trial import HPARAMS, Kept, Small, digest  # noqa: E402


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Watching(Small):
    """Notes what happens when."""

    def __init__(self, context):
        super().__init__(context)
        self.story = []

    def build_callbacks(self):
        story = self.story

        class Watch(pytorch.PyTorchCallback):
            def __init__(self):
                self.units = 0

            def on_trial_startup(self, first_batch_idx, checkpoint_uuid):
                story.append(("startup", first_batch_idx, checkpoint_uuid is not None))

            def on_training_start(self):
                story.append("training")

            def on_training_epoch_start(self, epoch_idx):
                story.append(("epoch", epoch_idx))

            def on_training_epoch_end(self, epoch_idx):
                story.append(("epoch end", epoch_idx))

            def on_training_workload_end(self, avg_metrics, batch_metrics):
                self.units += 1
                story.append(("unit", len(batch_metrics), sorted(avg_metrics)))
                mean = math.fsum(row["loss"] for row in batch_metrics) / len(batch_metrics)
                assert avg_metrics["loss"] == pytest.approx(mean)

            def on_validation_end(self, metrics):
                story.append(("validation", sorted(metrics)))

            def on_checkpoint_save_start(self, checkpoint):
                checkpoint["mine"] = {"words": "kept"}
                story.append("save")

            def on_checkpoint_load_start(self, checkpoint):
                story.append(("load", checkpoint["mine"]["words"]))

            def on_checkpoint_write_end(self, checkpoint_dir):
                story.append(("written", json.loads(Path(checkpoint_dir, "metadata.json").read_text())["step"]))

            def on_trial_shutdown(self):
                story.append("shutdown")

            def state_dict(self):
                return {"units": self.units}

            def load_state_dict(self, state_dict):
                story.append(("units", state_dict["units"]))
                self.units = state_dict["units"]

        return {"watch": Watch()}


def test_callbacks_tell_the_story_and_go_on_after_a_resume(tmp_path):
    kept = Kept(Watching)
    config = {"scheduling_unit": 2, "checkpoint_policy": "best"}
    kept.run(4, config=config, checkpoint_dir=tmp_path / "c")
    assert kept.trial.story == [
        ("startup", 0, False), "training", ("epoch", 0), ("unit", 2, ["loss"]),
        ("epoch end", 0), ("epoch", 1), ("unit", 2, ["loss"]), ("validation", ["accuracy"]), "save", ("written", 4),
        "shutdown",
    ]  # fmt: skip
    kept.run(5, config=config, checkpoint_dir=tmp_path / "c")
    assert kept.trial.story == [
        ("load", "kept"), ("units", 2), ("startup", 4, True), "training", ("unit", 1, ["loss"]),
        ("validation", ["accuracy"]), "save", ("written", 5), "shutdown",
    ]  # fmt: skip
    assert kept.trial.trained == [(1, 4, 8)]


@pytest.mark.parametrize(
    ("length", "batches", "epochs"),
    [
        ({"batches": 7}, 7, 3),
        ({"records": 17}, 3, 1),
        ({"records": 16}, 2, 1),
        ({"epochs": 2}, 6, 2),
        ("batches=1", 1, 1),
    ],
)
def test_training_is_exactly_as_long_as_said(length, batches, epochs):
    kept = Kept(Small)
    kept.run(length)
    assert kept.batches == list(range(batches))
    assert {epoch for epoch, _, _ in kept.trial.trained} == set(range(epochs))


def test_records_per_epoch_says_what_an_epoch_means_in_lengths():
    kept = Kept(Small)
    kept.run({"epochs": 2}, config={"records_per_epoch": 40})
    assert len(kept.batches) == 10


@pytest.mark.nightly("2-1", "2-3", "2-5")
@pytest.mark.parametrize("stop_at", [1, 3, 4, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_trial_ends_with_the_weights_of_an_unbroken_one(tmp_path, stop_at, workers):
    class Noisy(torch.utils.data.Dataset):
        """Draws random numbers for each sample, in the worker where there is one."""

        def __init__(self, whole):
            self.whole = whole

        def __len__(self):
            return len(self.whole)

        def __getitem__(self, index):
            inputs, label = self.whole[index]
            return inputs + torch.rand(4), label

    class Scheduled(Small):
        def __init__(self, context):
            super().__init__(context)
            scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
            context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)

        def build_training_data_loader(self):
            size = self.context.get_per_slot_batch_size()
            return pytorch.DataLoader(Noisy(self.data()), batch_size=size, shuffle=True, num_workers=workers)

    whole, part = Kept(Scheduled), Kept(Scheduled)
    whole.run(7)
    options = {"config": {"checkpoint_policy": "best"}, "checkpoint_dir": tmp_path / "c"}
    part.run(stop_at, **options)
    broken = digest(part.trial)
    part.run(7, **options)
    assert part.batches == list(range(stop_at, 7))
    assert digest(part.trial) == digest(whole.trial) != broken


def test_the_periods_are_obeyed_where_they_fall_together_and_apart():
    class Counting(Small):
        def __init__(self, context):
            super().__init__(context)
            self.validated = []

        def evaluate_batch(self, batch, batch_idx):
            if batch_idx == 0:
                self.validated.append(len(self.trained))
            return super().evaluate_batch(batch)

    kept = Kept(Counting)
    kept.run(8, config={"min_validation_period": {"batches": 3}, "perform_initial_validation": True})
    assert kept.trial.validated == [0, 3, 6, 8]
    kept.run(8, config={"min_validation_period": {"epochs": 2}})
    assert kept.trial.validated == [6, 8]
    kept.run(8, config={"min_validation_period": {"records": 40}})
    assert kept.trial.validated == [5, 8]


def test_checkpoints_come_at_their_period_and_at_the_end(tmp_path):
    config = {"checkpoint_policy": "all", "min_checkpoint_period": {"batches": 3}}
    Kept(Small).run(7, config=config, checkpoint_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{step:08d}" for step in (3, 6, 7)]


class Lines(torch.utils.data.IterableDataset):
    """Twenty samples of the small trial, as a stream with a length."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)

    def __len__(self):
        return len(self.samples)


class Streaming(Watching):
    """Iterates its data. ``cut`` returns a loader that the library cuts."""

    cut = False

    def build_training_data_loader(self):
        data = self.data() if self.cut else Lines(list(self.data()))
        return torch.utils.data.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())


class Cut(Streaming):
    cut = True


@pytest.mark.parametrize(
    ("length", "epochs"), [({"epochs": 3}, [1, 2]), ({"epochs": 1}, []), ({"batches": 14}, [1, 2])]
)
def test_a_stream_that_resumes_past_the_end_of_its_epoch_begins_the_next_one(
    tmp_path, length, epochs, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    config = {"scheduling_unit": 1, "min_validation_period": {"epochs": 1}, "checkpoint_policy": "best"}
    options = {"checkpoint_dir": tmp_path / "c", "config": config}
    Kept(Streaming).run({"batches": 8}, hparams={**HPARAMS, "global_batch_size": 2}, **options)
    kept = Kept(Streaming)
    kept.run(length, hparams={**HPARAMS, "global_batch_size": 4}, **options)
    # 8 of 10 batches were trained. An epoch has 5 now.
    whole = kept.trial.trained
    assert [epoch for epoch, _, _ in whole] == [epoch for epoch in epochs for _ in range(5)][: len(whole)]
    assert len(whole) == {"epochs": 5 * len(epochs), "batches": 6}[next(iter(length))]
    ended = [item[1] for item in kept.trial.story if item[0] == "epoch end"]
    assert ended == ([0] if not epochs else [0, 1] if "batches" in length else [0, 1, 2])
    validations = [item for item in kept.trial.story if item[0] == "validation"]
    # The validation after 8 batches is in the checkpoint.
    assert len(validations) == (len(epochs) + 1 if epochs else 0)
    assert "after 8 batches of epoch 0, which has 5 batches now: the epoch ends" in caplog.text


def test_a_loader_that_was_cut_and_is_a_stream_now_resumes_after_as_many_batches(tmp_path):
    options = {"checkpoint_dir": tmp_path / "c", "config": {"checkpoint_policy": "best"}}
    options["hparams"] = {**HPARAMS, "global_batch_size": 4}
    Kept(Cut).run({"batches": 3}, **options)
    kept = Kept(Streaming)
    kept.run({"epochs": 2}, **options)
    assert [epoch for epoch, _, _ in kept.trial.trained] == [0, 0, 1, 1, 1, 1, 1]


class Varying(torch.utils.data.Sampler):
    """Makes 3 batches in the first epoch, 5 in the second and 4 in the others."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([[i] for i in range(len(self))])

    def __len__(self):
        return {0: 3, 1: 5}.get(self.epoch, 4)


class Uneven(Watching):
    def build_training_data_loader(self):
        return torch.utils.data.DataLoader(self.data(), batch_sampler=Varying())


def test_epochs_of_different_lengths_end_and_validate_where_their_data_ends(tmp_path):
    config = {"min_validation_period": {"epochs": 1}, "checkpoint_policy": "best"}
    whole = Kept(Uneven)
    whole.run({"epochs": 4}, config=config)
    assert [epoch for epoch, _, _ in whole.trial.trained] == [0] * 3 + [1] * 5 + [2] * 4 + [3] * 4
    units = [
        item[1] if item[0] == "unit" else item[0] for item in whole.trial.story if item[0] in ("unit", "validation")
    ]
    assert units == [3, "validation", 5, "validation", 4, "validation", 4, "validation"]
    Kept(Uneven).run({"batches": 7}, config=config, checkpoint_dir=tmp_path / "c")
    rest = Kept(Uneven)
    rest.run({"epochs": 4}, config=config, checkpoint_dir=tmp_path / "c")
    assert rest.trial.trained == whole.trial.trained[7:]


def test_schedulers_advance_as_their_mode_says():
    modes = pytorch.LRScheduler.StepMode
    counts = {}

    class Counter(torch.optim.lr_scheduler.LambdaLR):
        def __init__(self, optimizer, name):
            self.name = name
            counts[name] = -1  # torch makes one step when it is built
            super().__init__(optimizer, lambda epoch: 1.0)

        def step(self, *args):
            counts[self.name] += 1
            super().step(*args)

    class Scheduled(Small):
        def __init__(self, context):
            super().__init__(context)
            for mode in modes:
                context.wrap_lr_scheduler(Counter(self.optimizer, mode.name), mode)
            context.wrap_lr_scheduler(Counter(self.optimizer, "second"), modes.STEP_EVERY_BATCH, frequency=2)

    Kept(Scheduled).run(7, config={"optimizations": {"aggregation_frequency": 2}})
    assert counts == {
        "STEP_EVERY_BATCH": 7, "STEP_EVERY_EPOCH": 2, "MANUAL_STEP": 0, "STEP_EVERY_OPTIMIZER_STEP": 4, "second": 3,
    }  # fmt: skip


def test_validation_restores_the_mode_of_each_module_and_draws_no_gradients():
    class Frozen(Small):
        def __init__(self, context):
            super().__init__(context)
            self.seen = []

        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 0:
                self.model[0].eval()
            self.seen.append([module.training for module in self.model])
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch):
            assert not torch.is_grad_enabled()
            assert not any(module.training for module in self.model.modules())
            return super().evaluate_batch(batch)

    kept = Kept(Frozen)
    kept.run(3, config={"min_validation_period": {"batches": 1}})
    assert kept.trial.seen == [[False, True, True]] * 3


def test_the_context_knows_where_training_is():
    class Asking(Small):
        def __init__(self, context):
            super().__init__(context)
            self.answers = []

        def train_batch(self, batch, epoch_idx, batch_idx):
            c = self.context
            where = (c.current_train_epoch(), c.current_train_batch(), c.is_epoch_start(), c.is_epoch_end())
            self.answers.append(where)
            return super().train_batch(batch, epoch_idx, batch_idx)

    kept = Kept(Asking)
    kept.run(4, config={"scheduling_unit": 2, "data": {"bucket": "b"}})
    assert kept.trial.answers == [(0, 0, True, False), (0, 1, False, False), (0, 2, False, True), (1, 3, True, False)]
    context = kept.trial.context
    assert context.get_data_config() == {"bucket": "b"}
    assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (8, 8)
    assert context.get_hparams() == HPARAMS
    with pytest.raises(dtrain.HparamError, match="get_per_slot_batch_size"):
        context.get_hparam("global_batch_size")


def test_a_requested_stop_ends_with_the_unit_and_a_checkpoint(tmp_path):
    class Stopping(Small):
        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 2:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    kept = Kept(Stopping)
    config = {"scheduling_unit": 4, "checkpoint_policy": "best", "min_validation_period": {"batches": 4}}
    assert kept.run(50, config=config, checkpoint_dir=tmp_path) == {}
    assert kept.batches == [0, 1, 2]  # the epoch ends there, and the ranks meet
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000003"]


def test_a_stop_inside_a_unit_an_epoch_and_a_group_ends_at_the_next_step_and_loses_nothing(tmp_path):
    class Stopping(Small):
        stops = True

        def train_batch(self, batch, epoch_idx, batch_idx):
            if self.stops and batch_idx == 0:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    class Resuming(Stopping):
        stops = False

    config = {"scheduling_unit": 100, "checkpoint_policy": "none", "optimizations": {"aggregation_frequency": 2}}
    whole, part, rest = Kept(Resuming), Kept(Stopping), Kept(Resuming)
    whole.run(7, config=config)
    config["checkpoint_policy"] = "best"
    part.run(7, config=config, checkpoint_dir=tmp_path)
    assert part.batches == [0], "an epoch has 3 batches, a group 2 and a unit 100"
    assert part.trial.context._ctx._left_early
    rest.run(7, config=config, checkpoint_dir=tmp_path)
    assert rest.batches == list(range(1, 7))
    assert digest(rest.trial) == digest(whole.trial)


@pytest.mark.parametrize("in_training", [True, False])
def test_a_trial_that_was_asked_to_stop_tells_whether_it_had_something_left(tmp_path, in_training):
    class Stopping(Small):
        def train_batch(self, batch, epoch_idx, batch_idx):
            if in_training and batch_idx == 2:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch):
            self.context.set_stop_requested(True)
            return {"seconds": 9.0}

    kept = Kept(Stopping)
    # The validation at the end of the first epoch finds that the goal is reached.
    searcher = {"metric": "seconds", "max_time": 8, "time_metric": "seconds"}
    kept.run(None, config={"checkpoint_policy": "best", "searcher": searcher}, checkpoint_dir=tmp_path)
    assert len(kept.batches) == 3
    assert kept.trial.context._ctx._left_early is in_training


def test_a_validation_that_a_stop_came_before_is_made_up_for(tmp_path):
    class Stopping(Small):
        validated = ()

        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 2:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch):
            self.validated = [*self.validated, self.context.current_train_batch()]
            return super().evaluate_batch(batch)

    kept = Kept(Stopping)
    config = {"checkpoint_policy": "best", "min_validation_period": {"batches": 3}}
    kept.run(5, config=config, checkpoint_dir=tmp_path)
    assert kept.trial.validated == ()
    kept.run(5, config=config, checkpoint_dir=tmp_path)
    assert kept.trial.validated == [3] * 3 + [4] * 3  # three batches each


def test_time_metric_ends_the_trial_when_it_reaches_max_time():
    class Timed(Small):
        def evaluate_batch(self, batch):
            return {"seconds": float(len(self.trained))}

    kept = Kept(Timed)
    searcher = {"metric": "seconds", "max_time": 8, "time_metric": "seconds"}
    kept.run(None, config={"searcher": searcher})
    assert len(kept.batches) == 9  # checked after each epoch of three batches
    with pytest.raises(dtrain.MissingMetricError, match="time_metric is 'hours', but validation reports seconds"):
        kept.run(None, config={"searcher": {**searcher, "time_metric": "hours"}})


def test_the_trainer_of_determined_runs_here():
    with pytorch.init(hparams=HPARAMS, exp_conf={"checkpoint_policy": "none"}) as context:
        trial = Small(context)
        metrics = pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Epoch(2), validation_period=pytorch.Batch(2), reporting_period=pytorch.Batch(1)
        )
    assert len(trial.trained) == 6
    assert set(metrics) == {"accuracy"}


def test_inference_needs_no_optimizer_no_training_data_and_no_train_batch(tmp_path):
    kept = Kept(Small)
    trained = kept.run(6, config={"checkpoint_policy": "best"}, checkpoint_dir=tmp_path)

    class Inference(pytorch.PyTorchTrial):
        def __init__(self, context):
            net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
            self.model = context.wrap_model(net)

        def build_validation_data_loader(self):
            return pytorch.DataLoader(kept.trial.data(), batch_size=8)

        evaluate_batch = Small.evaluate_batch

    found = dtrain.evaluate_trial(Inference, checkpoint=tmp_path / "step-00000006")
    assert found == trained
    loaded = pytorch.load_trial_from_checkpoint_path(tmp_path / "step-00000006", Small, hparams=HPARAMS)
    loaded.context._ctx.close()
    assert digest(loaded) == digest(kept.trial)


def test_a_scaler_of_the_trial_is_driven_by_the_library():
    class Scaling(Small):
        def __init__(self, context):
            super().__init__(context)
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=1024.0))
            self.norms = []

        def train_batch(self, batch, epoch_idx, batch_idx):
            inputs, labels = batch
            self.trained.append((epoch_idx, batch_idx, len(labels)))
            loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            return loss

    plain, scaled = Kept(Small), Kept(Scaling)
    plain.run(5)
    scaled.run(5)
    # A power of two scales without rounding.
    assert digest(plain.trial) == digest(scaled.trial)
    assert scaled.trial.scaler.get_scale() == 1024.0
