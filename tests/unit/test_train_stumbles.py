"""Typical mistakes of new users: each has an early, clear message, and no data is lost."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint import warm_start  # noqa: E402
from airflow_provider_dtrain.train.data import stream  # noqa: E402
from airflow_provider_dtrain.train.data.position import Progress  # noqa: E402
from airflow_provider_dtrain.train.data.script_loaders import ScriptLoaders  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import (  # noqa: E402
    CheckpointError,
    EmptyLoaderError,
    SetupError,
)
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients  # noqa: E402
from airflow_provider_dtrain.train.initialization import _checkpoint_place  # noqa: E402
from airflow_provider_dtrain.train.reports.console import log_end, log_folder, log_validation  # noqa: E402
from airflow_provider_dtrain.train.reports.reducers import Reducers  # noqa: E402
from tests.support.script_loaders import training_loader  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def loader(dataset, **changes):
    return training_loader(dataset, Progress(), **changes)


def test_data_without_samples_is_refused_before_training():
    with pytest.raises(EmptyLoaderError, match=r"training data has no samples: len\(list\) is 0"):
        loader([])
    with pytest.raises(EmptyLoaderError, match="validation data has no samples"):
        ScriptLoaders(Distributed(RankEnvironment()), 1).shares(
            [], "ctx.validation_loader", "validation", per_slot=lambda: 4, batch_size=None, shuffle=None, options={}
        )


def test_data_smaller_than_a_batch_that_is_left_out_is_refused():
    with pytest.raises(EmptyLoaderError, match=r"no batch \(3 samples\). A batch of all 1 slots takes 4"):
        loader([1, 2, 3], drop_last=True)
    assert len(loader([1, 2, 3])) == 1


@pytest.mark.parametrize(("drop_last", "max_batches"), [(False, 0), (True, 0), (False, -1)])
def test_a_length_of_no_batches_is_named_as_the_cause(drop_last, max_batches):
    with pytest.raises(EmptyLoaderError, match=f"max_batches must be 1 or more, got {max_batches}") as raised:
        loader([1, 2, 3, 4], drop_last=drop_last, max_batches=max_batches)
    assert "drop_last" not in str(raised.value)


@pytest.mark.parametrize(("saved", "mine"), [("SGD", "Adam"), ("Adam", "SGD")])
def test_a_checkpoint_of_another_optimizer_is_refused_with_what_differs(saved, mine):
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    state = getattr(torch.optim, saved)(parameters, lr=0.1).state_dict()
    optimizer = getattr(torch.optim, mine)(parameters, lr=0.1)
    with pytest.raises(CheckpointError, match=rf"optimizers\[0\] is {mine}.*(betas|momentum)"):
        warm_start.refuse_other_optimizers([optimizer], [state], "step 3")


def test_a_checkpoint_of_the_same_optimizer_with_a_scheduler_is_taken():
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    warm_start.refuse_other_optimizers([torch.optim.SGD(parameters, lr=0.1)], [optimizer.state_dict()], "step 3")
    older = {"param_groups": [{"params": [0], "lr": 0.1, "momentum": 0}]}
    warm_start.refuse_other_optimizers([optimizer], [older], "step 3")


def test_a_folder_that_cannot_be_written_to_is_told_at_the_start(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SetupError, match=r"checkpoint_dir .*file.*Use another folder"):
        _checkpoint_place(RankEnvironment(), Distributed(RankEnvironment()), file / "below")
    place, look = _checkpoint_place(RankEnvironment(), Distributed(RankEnvironment()), tmp_path / "new")
    assert (place, look) == (tmp_path / "new", True)
    assert list(place.iterdir()) == []


def test_a_program_that_steps_without_the_library_is_warned_once(caplog):
    gradients = Gradients(Distributed(RankEnvironment()), lambda: CPU, {})
    weight = torch.nn.Parameter(torch.ones(1))
    with caplog.at_level(logging.WARNING):
        gradients.inspect()
        assert caplog.text == ""
        for _ in range(3):
            gradients.backward((weight * 2).sum())
            gradients.inspect()
    assert caplog.text.count("Call ctx.step(optimizer) instead of optimizer.step()") == 1


def test_a_function_that_got_no_value_is_left_out_and_named_once_in_validation(caplog):
    reducers = Reducers()
    reducers.wrap(max, "largest", for_training=True, for_validation=True)
    assert reducers.reduce(lambda value: [value], training=True) == {}
    assert caplog.text == ""
    for _ in range(2):
        assert reducers.reduce(lambda value: [value], training=False) == {}
    assert caplog.text.count("'largest' got no value in validation") == 1


def test_a_person_outside_of_a_trial_is_told_metrics_and_where_the_checkpoint_is(caplog):
    alone, in_trial = RankEnvironment(), RankEnvironment(run="t1.1.1")
    with caplog.at_level(logging.INFO):
        for env in (alone, in_trial):
            log_validation(env, 8, {"error": 0.25})
            log_folder(env, "/tmp/kept/step-00000008")
        log_end(alone, 5, 5)
        log_end(alone, 4, 5)
    assert caplog.messages == [
        "Validation at step 8: error 0.25",
        "The latest checkpoint is /tmp/kept/step-00000008. To resume from it, set checkpoint_dir='/tmp/kept'.",
        "Nothing is left to train: 5 of 5 epochs are done.",
    ]


@pytest.mark.parametrize("length", [16, 48])
def test_a_data_set_that_changes_its_length_under_a_loader_is_named(length):
    class Changing(torch.utils.data.Dataset):
        length = 32

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            return index

    data = Changing()
    with dtrain.init(hparams={"global_batch_size": 8}) as ctx:
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        epochs = ctx.epochs(2)
        next(epochs)
        assert len(list(ctx.loader(loader))) == 8
        data.length = length
        next(epochs)
        words = rf"Changing\) must keep its length .* got {length} samples in epoch 1 and 32 at the start"
        with pytest.raises(SetupError, match=words):
            list(ctx.loader(loader))
        # The data set itself may change between two epochs.
        assert len(list(ctx.loader(data, batch_size=4))) == length // 4


@pytest.mark.parametrize("batches", [7, 40])
def test_validation_data_that_does_not_end_is_named(batches):
    class Lines:
        def __iter__(self):
            return iter(range(batches))

        def __len__(self):
            return 5

    with dtrain.init(hparams={"global_batch_size": 8}) as ctx:
        loader = ctx.validation_loader(Lines())
        if batches == 7:  # the length of a stream is an estimate
            assert len(list(loader)) == 7
        else:
            with pytest.raises(
                SetupError, match=r"\(Lines\) must end, got more than 10 batches from a loader of length 5"
            ):
                list(loader)


def test_validation_data_without_a_length_that_may_never_end_is_warned_about_once(caplog, monkeypatch):
    class Lines:
        def __iter__(self):
            return iter(range(7))

    monkeypatch.setattr(stream, "MANY_BATCHES", 5)
    with dtrain.init(hparams={"global_batch_size": 8}) as ctx, caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert len(list(ctx.validation_loader(Lines()))) == 7
    assert caplog.text.count("(Lines) has no length and has yielded 5 batches in one pass") == 1
