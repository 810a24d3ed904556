"""Names and habits of Determined and Accelerate that programs bring along."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import pytorch  # noqa: E402
from airflow_provider_dtrain.train.errors import MetricError, SetupError  # noqa: E402
from airflow_provider_dtrain.train.reports.gathered_samples import gather_samples  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402
from tests.support.ranks import run_ranks, script  # noqa: E402
from tests.support.small_trial import HPARAMS, Kept, Small, digest  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_gathered_values_are_in_the_order_of_the_data_set(size, count):
    def body(d):
        mine = torch.arange(count)[d.rank :: d.size]
        values = {"p": mine.float()[:, None], "both": (mine, mine + 1)} if len(mine) else None
        return gather_samples(d.allgather, values, count)

    for found in in_ranks(size, body):
        assert found["p"].flatten().tolist() == list(range(count))
        assert found["both"][1].tolist() == list(range(1, count + 1))


def test_values_of_anything_else_are_rank_after_rank():
    found = in_ranks(2, lambda d: gather_samples(d.allgather, torch.full((2 + 3 * d.rank,), d.rank), 7))
    assert found[0].tolist() == [0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (lambda rank: None, "no value on any rank"),
        (lambda rank: torch.tensor(1.0), "For numbers, use ctx.reduce"),
        (lambda rank: {"a": torch.ones(1)} if rank else {"b": torch.ones(1)}, "one of them lacks 'b'"),
    ],
)
def test_values_that_cannot_be_gathered_are_named(values, words):
    for error in in_ranks(2, lambda d: gather_samples(d.allgather, values(d.rank), None)):
        assert isinstance(error, SetupError)
        assert words in str(error)


def test_a_script_gathers_predictions_and_prints_on_rank_0(tmp_path, capsys):
    data = torch.utils.data.TensorDataset(torch.arange(10).float())
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path) as ctx:
        found = torch.cat([batch for (batch,) in ctx.validation_loader(data)])
        assert ctx.gather_for_metrics(found).tolist() == list(range(10))
        assert ctx.is_main_process
        ctx.barrier()
        ctx.print("hello", end="!")
    assert "hello!" in capsys.readouterr().out


GATHERED = """
    with dtrain.init() as ctx:
        def data(count): return torch.utils.data.TensorDataset(torch.arange(float(count)))
        clean, noisy = data(37), data(50)
        loaders = {37: ctx.validation_loader(clean), 50: ctx.validation_loader(noisy)}
        def whole(values, count): return values.equal(torch.arange(float(count)))
        def seen(loader): return torch.cat([batch for (batch,) in loader])
        for count, loader in loaders.items():
            print("after its loop", whole(ctx.gather_for_metrics(seen(loader)), count))
            print("of the loader", whole(loader.gather(seen(loader)), count))
        values = {count: seen(loader) for count, loader in loaders.items()}
        for count, loader in loaders.items():
            print("after both loops", whole(loader.gather(values[count]), count))
            found = loader.gather({"a": [values[count]]})["a"][0]
            print("nested", whole(found, count))
        own = ctx.gather_for_metrics(torch.tensor([float(ctx.rank)] * 3))
        print("other values", own.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
"""


def test_values_of_several_validation_loaders_are_gathered_in_the_order_of_their_data_sets(tmp_path):
    ranks = run_ranks(script(tmp_path, GATHERED), tmp_path / "run", 2)
    for rank in ranks:
        assert rank.exit_code == 0, rank.output
        assert len(rank.said(r" (True|False)")) == 9
        assert "False" not in rank.output


def test_names_of_determined_exist_or_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = {}

    class Trial(Small):
        def __init__(self, context):
            super().__init__(context)
            context.set_enable_tensorboard_logging(False)
            seen["logs"] = context.get_enable_tensorboard_logging()
            seen["moved"] = context.to_device(torch.ones(1), [])
            seen["called"] = context.autocast_forward_pass(lambda x: x + 1)(1)
            seen["hosts"] = (context.distributed.cross_rank, context.distributed.cross_size)
            loader = pytorch.DataLoader(self.data(), batch_size=4)
            seen["loader"] = len(loader.get_data_loader())
            for call in (
                lambda: context.configure_apex_amp([], []),
                context.experimental.use_amp,
                context.current_train_batch,
                context.current_train_epoch,
            ):
                with pytest.raises(SetupError):
                    call()

    Kept(Trial).run({"batches": 1})
    assert seen == {"logs": False, "moved": torch.ones(1), "called": 2, "hosts": (0, 1), "loader": 5}


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"repeat": True, "skip": 2}, [2, 3, 4, 0, 1, 2, 3, 4, 0]),
        ({"skip": 3}, [3, 4]),
        ({"num_replicas": 2, "rank": 1}, [1, 3]),
        ({"repeat": True, "num_replicas": 2, "skip": 1}, [2, 4, 1, 3, 0, 2, 4, 1, 3]),
        ({"num_replicas": 3, "rank": 0, "skip": 1}, [3]),
    ],
)
def test_a_loader_of_a_program_that_divides_its_data_yields_the_batches_of_determined(changes, batches):
    # The batches of determined 0.38.1.
    loader = pytorch.DataLoader(range(10), batch_size=2, collate_fn=lambda items: items[0] // 2)
    assert list(itertools.islice(loader.get_data_loader(**changes), 9)) == batches


def test_a_loader_of_a_batch_sampler_and_of_options_keeps_them_when_it_is_adapted():
    batch_sampler = torch.utils.data.BatchSampler(range(6), 3, drop_last=True)
    loader = pytorch.DataLoader(range(6), batch_sampler=batch_sampler, collate_fn=tuple, num_workers=1, timeout=30)
    adapted = loader.get_data_loader(skip=1)
    assert (adapted.num_workers, adapted.timeout) == (1, 30)
    assert list(adapted) == [(3, 4, 5)]


def test_a_trial_that_returns_a_loader_without_its_first_batches_trains_on_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    class Trial(Small):
        def build_training_data_loader(self):
            data = torch.utils.data.TensorDataset(torch.arange(8.0), torch.zeros(8))
            return pytorch.DataLoader(data, batch_size=2).get_data_loader(skip=2)

        def train_batch(self, batch, epoch_idx, batch_idx):
            seen.append(batch[0].tolist())
            return {"loss": torch.zeros(())}

    Kept(Trial).run({"batches": 3}, hparams={**HPARAMS, "global_batch_size": 2})
    assert seen == [[4, 5], [6, 7], [4, 5]]


@pytest.mark.parametrize("empty", [{}, [], ()])
def test_an_unknown_number_of_records_is_an_error_of_each_type_that_determined_raises(empty):
    for kind in (SetupError, ValueError):
        with pytest.raises(kind, match="cannot be determined"):
            pytorch.data_length(empty)
    for kind in (SetupError, TypeError):
        with pytest.raises(kind, match="batch of type int cannot be determined"):
            pytorch.data_length(0)


def test_what_cannot_be_moved_to_the_device_is_logged_once_per_type(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    monkeypatch.setattr(pytorch, "_warned_types", set())

    def logged(data, *arguments):
        caplog.clear()
        moved = pytorch.to_device(data, "cpu", *arguments)
        return moved, [line for line in caplog.messages if "not able to move data" in line]

    warned = set()
    data = {"text": ["a", "b"], "number": 1, "tensor": torch.ones(2)}
    moved, lines = logged(data, warned)
    assert moved["text"] == ["a", "b"]
    assert [line.split()[8] for line in lines] == ["str", "int"]
    assert warned == {str, int}
    assert logged(data, warned)[1] == []
    assert len(logged(data)[1]) == 2
    assert logged(data)[1] == []
    objects = np.array([object()], dtype=object)
    moved, lines = logged([objects, np.zeros(2)], warned)
    assert (moved[0] is objects, type(moved[1]), len(lines)) == (True, torch.Tensor, 1)


def test_a_tensorboard_writer_of_a_trial_writes_to_its_path(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)

    class Trial(Small):
        def train_batch(self, batch, epoch_idx, batch_idx):
            writer = self.context.get_tensorboard_writer()
            assert writer is self.context.get_tensorboard_writer()
            writer.add_scalar("own", batch_idx)
            writer.flush()
            return super().train_batch(batch, epoch_idx, batch_idx)

    Kept(Trial).run({"batches": 1})
    assert list((tmp_path / "tensorboard" / "rank0").glob("events.*"))


def test_the_older_form_of_a_callback_runs_with_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    begun = []

    class Older(pytorch.PyTorchCallback):
        def on_training_epoch_start(self):
            begun.append(1)

    class Trial(Small):
        def build_callbacks(self):
            return {"older": Older()}

    Kept(Trial).run({"epochs": 2})
    assert begun == [1, 1]
    assert "takes no epoch_idx" in caplog.text


def test_a_reducer_of_training_alone_does_not_end_the_trial_at_its_first_validation(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    class Trial(Small):
        def __init__(self, context):
            super().__init__(context)
            self.seen = context.wrap_reducer(sum, name="seen")

        def train_batch(self, batch, epoch_idx, batch_idx):
            self.seen.update(1)
            return super().train_batch(batch, epoch_idx, batch_idx)

    kept = Kept(Trial)
    metrics = kept.run({"epochs": 2}, config={"min_validation_period": {"epochs": 1}})
    assert set(metrics) == {"accuracy"}
    assert caplog.text.count("'seen' got no value in validation") == 1


@pytest.mark.parametrize(
    "several", [torch.ones(3), [1, 2], {"a": 1}, torch.zeros(0)], ids=["tensor", "list", "dict", "none"]
)
def test_metrics_of_several_values_are_left_out_with_one_warning(caplog, monkeypatch, several):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    class Trial(Small):
        def train_batch(self, batch, epoch_idx, batch_idx):
            return {**super().train_batch(batch, epoch_idx, batch_idx), "output": several}

        def evaluate_batch(self, batch):
            return {**super().evaluate_batch(batch), "predictions": several}

    config = {"min_validation_period": {"epochs": 1}, "scheduling_unit": 1}
    assert set(Kept(Trial).run({"epochs": 2}, config=config)) == {"accuracy"}
    for name in ("output", "predictions"):
        assert caplog.text.count(f"Metric '{name}' has several values per batch") == 1


def batches_of(count, size=2):
    return torch.utils.data.BatchSampler(range(count), size, drop_last=False)


def test_samplers_of_determined_yield_what_they_yield_there():
    kinds = pytorch.samplers
    assert list(kinds.DistributedSampler(range(7), 3, 1)) == [1, 4]
    assert [len(kinds.DistributedBatchSampler(batches_of(7), 3, rank)) for rank in range(3)] == [2, 1, 1]
    assert list(kinds.SkipBatchSampler(batches_of(6), 2)) == [[4, 5]]
    assert len(kinds.SkipBatchSampler(batches_of(6), 2)) == 3
    # The orders of determined 0.38.1.
    shuffled = kinds.ReproducibleShuffleSampler(range(6), 777)
    assert [list(shuffled), list(shuffled)] == [[0, 2, 4, 5, 1, 3], [5, 0, 3, 2, 1, 4]]
    assert sorted(kinds.ReproducibleShuffleBatchSampler(batches_of(6), 1)) == [[0, 1], [2, 3], [4, 5]]
    endless = pytorch.adapt_batch_sampler(batches_of(8), repeat=True, skip=1, num_replicas=2, rank=1)
    assert list(itertools.islice(endless, 3)) == [[6, 7], [2, 3], [6, 7]]
    assert len(endless) == 2
    with pytest.raises(SetupError, match="rank from 0 to num_workers-1, got 2 and 2"):
        kinds.DistributedSampler(range(7), 2, 2)


def test_a_trial_divides_and_repeats_its_data_by_samplers_of_determined():
    class Trial(Small):
        def build_training_data_loader(self):
            self.context.experimental.disable_dataset_reproducibility_checks()
            d = self.context.distributed
            sampler = pytorch.adapt_batch_sampler(batches_of(20, 4), repeat=True, num_replicas=d.size, rank=d.rank)
            return torch.utils.data.DataLoader(self.data(), batch_sampler=sampler)

    kept = Kept(Trial)
    kept.run({"epochs": 2})
    assert [epoch for epoch, _, _ in kept.trial.trained] == [0] * 5 + [1] * 5


def test_a_trial_is_created_outside_of_training(tmp_path):
    kept = Kept(Small)
    kept.run({"batches": 2}, config={"checkpoint_policy": "best"}, checkpoint_dir=tmp_path / "c")
    path = next((tmp_path / "c").glob("step-*"))
    trial = Small(pytorch.CheckpointLoadContext(hparams=HPARAMS))
    dtrain.load_weights(trial.model, path)
    other = pytorch.load_trial_from_checkpoint_path(
        path, Small, torch_load_kwargs={"map_location": "cpu"}, hparams=HPARAMS
    )
    assert digest(trial) == digest(other) == digest(kept.trial)
    with pytest.raises(SetupError, match="needs trial_class, because a checkpoint contains no code"):
        pytorch.load_trial_from_checkpoint_path(path, hparams=HPARAMS)


class Counting(pytorch.PyTorchCallback):
    def __init__(self):
        self.units, self.validations = [], 0

    def on_training_workload_end(self, avg_metrics, batch_metrics):
        self.units.append(len(batch_metrics))

    def on_validation_start(self):
        self.validations += 1


class Counted(Small):
    def build_callbacks(self):
        self.counting = Counting()
        return {"counting": self.counting}


@pytest.mark.parametrize(
    ("config", "units"),
    [
        ({"scheduling_unit": 2}, [2, 2, 2, 2, 1]),
        ({"scheduling_unit": 100}, [9]),
        ({"scheduling_unit": 2, "min_validation_period": {"epochs": 1}}, [2, 1, 1, 2, 2, 1]),
        ({"scheduling_unit": 4, "min_checkpoint_period": {"batches": 3}}, [3, 1, 2, 2, 1]),
    ],
)
def test_an_end_of_an_epoch_alone_ends_no_unit(config, units, tmp_path):
    kept = Kept(Counted)
    kept.run({"epochs": 3}, config=config, checkpoint_dir=tmp_path / "c")
    assert kept.trial.counting.units == units


def test_a_trial_that_had_reached_its_length_does_not_validate_again_and_reports_what_it_had(tmp_path):
    config = {"checkpoint_policy": "best"}
    first = Kept(Counted)
    metrics = first.run({"epochs": 1}, config=config, checkpoint_dir=tmp_path / "c")
    again = Kept(Counted)
    assert again.run({"epochs": 1}, config=config, checkpoint_dir=tmp_path / "c") == metrics
    assert (first.trial.counting.validations, again.trial.counting.validations) == (1, 0)
    assert again.trial.trained == []
    longer = Kept(Counted)
    longer.run({"epochs": 2}, config=config, checkpoint_dir=tmp_path / "c")
    assert longer.trial.counting.validations == 1


def test_a_helper_of_a_callback_may_be_named_like_a_hook(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    class Helped(Counting):
        def on_validation_end(self, metrics):
            self.on_validation_ending(metrics)

        def on_validation_ending(self, metrics):
            self.ended = metrics

        def on_request(self):
            """Is for other code of the user."""

    class Trial(Small):
        def build_callbacks(self):
            self.helped = Helped()
            return {"helped": self.helped}

    kept = Kept(Trial)
    metrics = kept.run({"epochs": 1})
    assert kept.trial.helped.ended == metrics
    assert "has a method on_request, which is not a hook" in caplog.text
    assert "on_validation_ending" not in caplog.text


def test_a_metric_that_is_a_word_is_still_an_error():
    class Trial(Small):
        def evaluate_batch(self, batch):
            return {"accuracy": "good"}

    with pytest.raises(MetricError, match="'accuracy' must be one number"):
        Kept(Trial).run({"epochs": 1})
