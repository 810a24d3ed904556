"""Mistakes in a trial class, and their messages."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import pytorch  # noqa: E402
from airflow_provider_dtrain.train.harness import load_class  # noqa: E402
from tests.support.small_trial import HPARAMS, Kept, Small  # noqa: E402


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def failing(error, match, length=4, config=None, **methods):
    """Expect an error from a small trial with some methods replaced."""
    with pytest.raises(error, match=match):
        Kept(type("Changed", (Small,), methods)).run(length, config=config)


def returning(value):
    return lambda self, *_: value


def test_a_class_defines_exactly_one_way_to_evaluate():
    failing(dtrain.TrialClassError, "evaluate_batch and evaluate_full_dataset; define exactly one",
            evaluate_full_dataset=returning({}))  # fmt: skip
    failing(dtrain.TrialClassError, "neither", evaluate_batch=pytorch.PyTorchTrial.evaluate_batch)


def test_missing_methods_are_all_named_before_training():
    class Empty(pytorch.PyTorchTrial):
        pass

    needed = "Empty has no build_training_data_loader, build_validation_data_loader, train_batch"
    with pytest.raises(dtrain.TrialClassError, match=needed):
        dtrain.run_trial(Empty, max_length=1)
    with pytest.raises(dtrain.SetupError, match="must be a subclass of PyTorchTrial, got"):
        dtrain.run_trial(dict, max_length=1)


def test_training_without_an_end_is_refused():
    failing(dtrain.SetupError, r"The length of training is not set. Set searcher.max_length", length=None)
    failing(dtrain.SetupError, "one of batches, records and epochs", length={"batches": 1, "epochs": 1})
    failing(dtrain.SetupError, "one of batches, records and epochs", length="hours=3")


def test_a_loader_that_yields_nothing_is_named():
    empty = torch.utils.data.TensorDataset(torch.zeros(0, 4))
    with pytest.raises(dtrain.EmptyLoaderError, match=r"data has no samples: len\(TensorDataset\) is 0"):
        pytorch.DataLoader(empty, batch_size=2, shuffle=True)
    failing(dtrain.EmptyLoaderError, r"drop_last drops smaller ones",
            build_training_data_loader=lambda t: pytorch.DataLoader(t.data(), 32, drop_last=True))  # fmt: skip
    failing(dtrain.EmptyLoaderError, "training data loader yields no batch",
            build_training_data_loader=returning(iter([])))  # fmt: skip
    failing(dtrain.EmptyLoaderError, "validation data loader yields no batch",
            build_validation_data_loader=returning([]))  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "match"),
    [
        (None, "train_batch must return the loss, .* got None"),
        ({"loss": None}, "Metric 'loss' must be .* got NoneType None"),
        ({"loss": "low"}, "Metric 'loss' must be .* got str low"),
        ({"loss": torch.zeros(3)}, "Metric 'loss' must be .* got Tensor"),
        (torch.zeros(2), "Metric 'loss' must be .* got Tensor"),
    ],
)
def test_training_metrics_that_are_no_numbers_are_named(metrics, match):
    failing(dtrain.MetricError, match, train_batch=returning(metrics))


@pytest.mark.parametrize(
    ("metrics", "match"),
    [
        (None, "evaluate_batch must return a dict .* got NoneType"),
        ({"a": None}, "Metric 'a' must be .* got NoneType"),
        ({"loss": torch.zeros(2)}, "Metric 'loss' must be .* got Tensor"),
    ],
)
def test_validation_metrics_that_are_no_numbers_are_named(metrics, match):
    failing(dtrain.MetricError, match, evaluate_batch=lambda self, batch: metrics)


def test_a_nan_loss_names_its_batch_and_rank():
    def train_batch(self, batch, epoch_idx, batch_idx):
        return {"loss": torch.tensor(float("nan") if batch_idx == 2 else 1.0), "other": 1}

    failing(dtrain.NonFiniteLossError, "loss is NaN at step 3 on rank 0", train_batch=train_batch)
    kept = Kept(type("Changed", (Small,), {"train_batch": train_batch}))
    kept.run(4, fail_on_nan=False)


def test_a_metric_that_the_searcher_wants_is_missed_by_name(caplog, monkeypatch):
    searcher = {"name": "random", "metric": "auc", "max_trials": 1}
    failing(dtrain.MissingMetricError, "searcher.metric is 'auc', but validation reports accuracy",
            config={"searcher": searcher})  # fmt: skip
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
        config = {"searcher": {"name": "single", "metric": "auc"}, "min_validation_period": {"batches": 1}}
        Kept(Small).run(3, config=config)
    assert sum("searcher.metric is 'auc'" in record.message for record in caplog.records) == 1


def test_invalid_hyperparameters_are_an_ordinary_exception_off_cluster():
    def evaluate_batch(self, batch):
        raise dtrain.InvalidHP("too wide")

    failing(dtrain.InvalidHP, "too wide", evaluate_batch=evaluate_batch)


class Misspelt(pytorch.PyTorchCallback):
    def on_validation_ended(self, metrics):
        pass


@pytest.mark.parametrize(
    ("callbacks", "match"),
    [
        ({"a": Misspelt()}, "on_validation_ended, which is not a hook .* Did you mean on_validation_end"),
        ([Misspelt()], "must return a dict of name -> PyTorchCallback, got list"),
        ({"a": object()}, "got the entry 'a': object"),
        (dict.fromkeys(("a", "b"), pytorch.PyTorchCallback()), "one callback under two names, 'a' and 'b'"),
    ],
)
def test_callbacks_that_cannot_work_are_refused(callbacks, match):
    failing(dtrain.TrialClassError, match, build_callbacks=returning(callbacks))


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ({"loss": pytorch.Reducer.AVG}, r"without a reducer: \['accuracy'\]. .* without a metric: \['loss'\]"),
        ("mean", "must return a Reducer, or a dict .* got 'mean'"),
    ],
)
def test_reducers_that_do_not_fit_are_refused(choice, match):
    failing(dtrain.TrialClassError, match, evaluation_reducer=returning(choice))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("accuracy", 1.0, "Two reducers or batch metrics are named 'accuracy'"),
        ("mine", {"a": 1}, "was wrapped with name='mine' and returned dict"),
        (None, 1.0, "was wrapped with name=None and returned float"),
    ],
)
def test_a_wrapped_reducer_returns_what_its_name_promises(name, value, match):
    class Wrapping(Small):
        def __init__(self, context):
            super().__init__(context)
            self.wrapped = context.wrap_reducer(lambda values: value, name, for_training=False)

        def evaluate_batch(self, batch):
            self.wrapped.update(1)
            return super().evaluate_batch(batch)

    with pytest.raises(dtrain.TrialClassError, match=match):
        Kept(Wrapping).run(2)


def test_wrapping_that_cannot_work_is_refused_by_name():
    modes = pytorch.LRScheduler.StepMode

    def wrap(change):
        class Wrapping(Small):
            def __init__(self, context):
                super().__init__(context)
                change(self, context)

        return lambda: Kept(Wrapping).run(1)

    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    cases = {
        "MANUAL_STEP": lambda t, c: c.wrap_lr_scheduler(plateau(t.optimizer), modes.STEP_EVERY_EPOCH),
        "its optimizer is not wrapped": lambda t, c: c.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(torch.optim.SGD(t.model.parameters(), lr=1), 1), modes.STEP_EVERY_BATCH
        ),
        "frequency must be .* got 0": lambda t, c: c.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(t.optimizer, 1), modes.STEP_EVERY_BATCH, frequency=0
        ),
        "aggregation_frequency": lambda t, c: c.wrap_optimizer(t.optimizer, backward_passes_per_step=2),
        "gradient_compression": lambda t, c: c.wrap_optimizer(t.optimizer, fp16_compression=True),
        "wrapped twice": lambda t, c: [c.wrap_reducer(r, "a") for r in [pytorch.SimpleMetricReducer(len)] * 2],
        "a function or a MetricReducer": lambda t, c: c.wrap_reducer(3, "a"),
        "There is no current batch|there is no current batch": lambda t, c: c.is_epoch_start(),
    }
    for match, change in cases.items():
        with pytest.raises(dtrain.SetupError, match=match):
            wrap(change)()


def test_a_class_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_model.py").write_text("import not_there_at_all")
    (tmp_path / "other_model.py").write_text("")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_class("some_model:Trial")
    with pytest.raises(dtrain.SetupError, match="Module 'no_model' is neither in"):
        load_class("no_model:Trial")
    with pytest.raises(dtrain.SetupError, match="other_model.py does not define the class 'Trial'"):
        load_class("other_model:Trial")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    config = {"checkpoint_policy": "best"}
    Kept(Small).run(2, config=config, checkpoint_dir=tmp_path)

    class Wider(Small):
        def __init__(self, context):
            super().__init__(context)
            self.more = context.wrap_model(torch.nn.Linear(1, 1))

    with pytest.raises(dtrain.CheckpointError, match="1 models, but ctx.prepare was given 2"):
        Kept(Wider).run(4, config=config, checkpoint_dir=tmp_path)
    assert list(tmp_path.glob("step-00000002"))


def test_an_iterable_data_set_is_refused_by_our_loader_and_fine_in_torchs():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(torch.zeros(4), 0)] * 6)

    with pytest.raises(dtrain.SetupError, match="Stream has no indices to shard by"):
        pytorch.DataLoader(Stream())
    loader = torch.utils.data.DataLoader(Stream(), batch_size=2)
    kept = Kept(type("Streaming", (Small,), {"build_training_data_loader": returning(loader)}))
    kept.run(7)
    assert [epoch for epoch, _, _ in kept.trial.trained] == [0, 0, 0, 1, 1, 1, 2]
    with pytest.raises(dtrain.SetupError, match="the training data has no length. Set records_per_epoch"):
        kept.run({"epochs": 2})
    kept.run({"epochs": 2}, config={"records_per_epoch": 32}, hparams=HPARAMS)
    assert len(kept.batches) == 8
