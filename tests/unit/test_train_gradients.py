"""Gradients at one process: groups, precision, what a checkpoint holds, how a tuner chooses."""

from __future__ import annotations

import collections
import copy

import pytest

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.gradients.bucket_tuning import candidates, fastest, score
from airflow_provider_dtrain.train.gradients.clipping import Clip
from airflow_provider_dtrain.train.gradients.ddp_options import check_options
from airflow_provider_dtrain.train.gradients.exchanged_parameters import ExchangedParameters
from airflow_provider_dtrain.train.gradients.optimizer_step import DEFAULTS, Gradients

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def gradients(**optimizations):
    return Gradients(Distributed(RankEnvironment(rank=0, world_size=1)), lambda: CPU, optimizations)


def linear(start=1.0):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, start)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def batch(it, optimizer, model, gradient, **how):
    """Train on one batch whose gradient is the given number, and return the result of the step."""
    it.backward(model(torch.full((1, 1), gradient)).sum())
    return it.step(optimizer, **how)


def test_the_defaults_are_those_of_the_configuration():
    from airflow_provider_dtrain.core.config.sections import Optimizations

    document = Optimizations().model_dump()
    assert {**document, "average_training_metrics": True} == {**DEFAULTS, "average_training_metrics": True}


def test_two_optimizers_count_their_batches_apart():
    it = gradients(aggregation_frequency=2)
    (first, one), (second, two) = linear(), linear()
    it.wrap_model(first), it.wrap_model(second)
    taken = []
    for number in range(1, 5):
        taken.append(batch(it, one, first, 1.0)[0])
        if number % 2:
            taken.append(batch(it, two, second, 1.0)[0])
    assert taken == [False, False, True, False, True, True]
    assert (first.weight.item(), second.weight.item()) == (-1.0, 0.0)


def test_one_loss_drives_two_optimizers():
    it = gradients(aggregation_frequency=2)
    (first, one), (second, two) = linear(), linear()
    for _ in range(2):
        it.backward(first(torch.ones(1, 1)).sum() + second(torch.ones(1, 1)).sum())
        taken = [it.step(one)[0], it.step(two)[0]]
    assert taken == [True, True]
    assert (first.weight.item(), second.weight.item()) == (0.0, 0.0)


def test_training_that_goes_on_after_its_announced_end_counts_anew():
    it = gradients(aggregation_frequency=3)
    model, optimizer = linear()
    it.announce_last()
    assert batch(it, optimizer, model, 1.0)[0]
    assert [batch(it, optimizer, model, 1.0)[0] for _ in range(6)] == [False, False, True] * 2
    other, another = linear()
    assert [batch(it, another, other, 1.0)[0] for _ in range(3)] == [False, False, True]
    it.announce_last()
    assert [batch(it, one, of, 1.0)[0] for of, one in ((model, optimizer), (other, another))] == [True, True]


def test_clearing_gradients_inside_a_group_is_an_error():
    it = gradients(aggregation_frequency=2)
    model, optimizer = linear()
    batch(it, optimizer, model, 1.0)
    optimizer.zero_grad()
    with pytest.raises(SetupError, match=r"The gradients of 1 batches were cleared .* must not call zero_grad"):
        batch(it, optimizer, model, 1.0)


def test_clipping_sees_the_averaged_gradient_and_a_function_may_clip():
    it = gradients(aggregation_frequency=2)
    model, optimizer = linear(0.0)
    assert batch(it, optimizer, model, 3.0, clip=Clip(2.0)) == (False, None)
    taken, norm = batch(it, optimizer, model, 5.0, clip=Clip(2.0))
    assert (taken, norm.item()) == (True, 4.0)
    assert model.weight.item() == pytest.approx(-2.0, abs=1e-5)
    batch(it, optimizer, model, 3.0)
    batch(it, optimizer, model, 5.0, clip=Clip(function=lambda them: them[0].grad.fill_(1.0)), zero_grad=False)
    assert model.weight.item() == pytest.approx(-3.0, abs=1e-5)
    assert model.weight.grad.item() == 1.0


def test_gradients_of_an_unfinished_group_go_into_a_checkpoint_and_out_again():
    model, optimizer = linear()
    it = gradients(aggregation_frequency=3)
    assert it.rank_state() is None
    batch(it, optimizer, model, 3.0)
    batch(it, optimizer, model, 5.0)
    shared, own = it.state_dict(), it.rank_state()
    batch(it, optimizer, model, 100.0)  # does not change the snapshot
    model, optimizer = linear()
    it = gradients(aggregation_frequency=3)
    it.add_optimizer(optimizer)
    it.load_state_dict(shared)
    it.load_rank_states([own])
    assert batch(it, optimizer, model, 1.0)[0]
    assert model.weight.item() == 1.0 - 3.0


def test_gradients_of_two_ranks_become_their_mean_on_one(caplog):
    caplog.set_level("INFO")
    model, optimizer = linear()
    it = gradients(aggregation_frequency=2)
    it.add_optimizer(optimizer)
    it.load_state_dict({"counts": [1], "scaler": None})
    it.load_rank_states([{"gradients": [[torch.tensor([[2.0]])]]}, {"gradients": [[torch.tensor([[6.0]])]]}])
    assert batch(it, optimizer, model, 2.0)[0]
    assert model.weight.item() == 1.0 - (4.0 + 2.0) / 2
    assert "from 2 ranks, and this run has 1: each rank resumes with their mean" in caplog.text


def test_an_unfinished_group_is_finished_also_when_groups_are_turned_off():
    model, optimizer = linear()
    it = gradients()
    it.add_optimizer(optimizer)
    it.load_state_dict({"counts": [1], "scaler": None})
    it.load_rank_states([{"gradients": [[torch.tensor([[2.0]])]]}])
    assert batch(it, optimizer, model, 4.0)[0]
    assert model.weight.item() == 1.0 - 3.0
    assert batch(it, optimizer, model, 1.0)[0]
    assert model.weight.item() == -3.0


def test_gradients_of_another_model_are_refused():
    it = gradients(aggregation_frequency=2)
    it.add_optimizer(linear()[1])
    it.load_state_dict({"counts": [1], "scaler": None})
    with pytest.raises(CheckpointError, match="unfinished group of 1 batches for SGD"):
        it.load_rank_states([{"gradients": [[torch.zeros(2, 2)]]}])


def test_what_is_still_pending_at_the_end_is_said_in_one_line(caplog):
    it = gradients(aggregation_frequency=4)
    model, optimizer = linear()
    for _ in range(6):
        batch(it, optimizer, model, 1.0)
    it.check_end(trained_before=False)
    assert [record.message for record in caplog.records] == [
        "The last 2 batches are not in the weights: their group of 4 (aggregation_frequency) was not finished. End "
        "your own loop with ctx.step(optimizer, flush=True)."
    ]


def test_a_resumed_program_with_nothing_to_do_is_no_error():
    it = gradients(aggregation_frequency=4)
    it.check_end(trained_before=True)
    with pytest.raises(SetupError, match=r"optimizations\.aggregation_frequency had no effect"):
        it.check_end(trained_before=False)


def test_sums_of_sparse_gradients_are_divided_too():
    it = gradients(aggregation_frequency=2)
    table = torch.nn.Embedding(3, 1, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    for index in (0, 1):
        it.backward(table(torch.tensor([index])).sum())
        it.step(optimizer)
    assert table.weight.flatten().tolist() == [-0.5, -0.5, 0.0]


class Spy(torch.nn.Module):
    """A model that records the dtype of its computation."""

    Output = collections.namedtuple("Output", "values label")

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.seen = []

    def forward(self, inputs):
        values = self.inner(inputs)
        self.seen.append(values.dtype)
        return self.Output({"a": [values]}, "word")


@pytest.mark.parametrize(("kind", "dtype"), [
    ("none", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16),
])  # fmt: skip
def test_mixed_precision_computes_in_16_bits_and_gives_back_32(kind, dtype):
    it = gradients(mixed_precision=kind)
    model = it.wrap_model(Spy())
    output = model(torch.ones(2, 4))
    assert model.seen == [dtype]
    assert output.values["a"][0].dtype is torch.float32
    assert output.label == "word"
    assert (it.scaler is not None) == (kind == "fp16")
    with it.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype


def test_a_copy_of_a_mixed_precision_model_has_parameters_of_its_own():
    model = gradients(mixed_precision="bf16").wrap_model(Spy())
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(twin.inner.weight)
    torch.nn.init.zeros_(twin.inner.bias)
    assert twin(torch.ones(1, 4)).values["a"][0].abs().sum() == 0
    assert model(torch.ones(1, 4)).values["a"][0].abs().sum() > 0
    assert (len(model.seen), len(twin.seen)) == (1, 1)


def test_float16_unscales_before_clipping_and_skips_steps_that_are_not_finite():
    it = gradients(mixed_precision="fp16")
    model, optimizer = linear(0.0)
    assert batch(it, optimizer, model, 1.0, clip=Clip(100.0))[1].item() == pytest.approx(1.0)
    assert model.weight.item() == -1.0
    scale = it.scaler.get_scale()
    taken, _ = batch(it, optimizer, model, float("inf"))
    assert (taken, model.weight.item(), model.weight.grad) == (False, -1.0, None)
    assert it.state_dict()["scaler"]["scale"] == scale / 2


def test_the_loss_scale_survives_a_checkpoint():
    it, (model, optimizer) = gradients(mixed_precision="fp16"), linear()
    for gradient in (float("inf"), 1.0, 1.0):
        batch(it, optimizer, model, gradient)
    state = it.state_dict()
    assert (state["scaler"]["scale"], state["scaler"]["_growth_tracker"]) == (2.0**15, 2)
    again = gradients(mixed_precision="fp16")
    again.load_state_dict(state)
    assert again.state_dict() == {**state, "counts": []}


def test_a_new_loss_scale_takes_the_gradients_of_an_unfinished_group_along():
    it = gradients(mixed_precision="fp16", aggregation_frequency=2)
    (first, one), (second, two) = linear(0.0), linear(0.0)
    it.add_optimizer(one), it.add_optimizer(two)
    batch(it, one, first, float("inf"))
    batch(it, one, first, 1.0)  # not finite: this group's step is skipped, the scale halves before the next loss
    batch(it, two, second, 3.0)
    batch(it, one, first, 1.0)
    assert it.scaler.get_scale() == 2.0**15
    batch(it, one, first, float("inf"))  # the scale halves again, with half a group of the other in the old one
    assert batch(it, two, second, 5.0)[0]
    assert it.scaler.get_scale() == 2.0**14
    assert second.weight.item() == -4.0


def test_several_optimizers_step_on_one_scaled_loss():
    it = gradients(mixed_precision="fp16")
    (first, one), (second, two) = linear(0.0), linear(0.0)
    it.backward(first(torch.full((1, 1), float("inf"))).sum() + second(torch.ones(1, 1)).sum())
    assert [it.step(one)[0], it.step(two)[0]] == [False, True]
    assert second.weight.item() == -1.0


@pytest.mark.parametrize(("field", "value"), [("gradient_compression", "zip"), ("mixed_precision", "O1")])
def test_unknown_values_are_refused_by_name(field, value):
    with pytest.raises(SetupError, match=f"optimizations.{field} must be .*, got '{value}'"):
        gradients(**{field: value})


def test_bucket_sizes_worth_trying_are_those_that_differ():
    assert candidates(25, 40) == [1, 5, 25, 100]
    assert candidates(10, 40) == [1, 5, 10, 25, 100]
    assert candidates(50, 4) == [1, 50]
    assert candidates(25, 0.5) == [25]


def test_the_fastest_candidate_is_the_one_whose_slowest_rank_is_fastest():
    everyone = [{1: 0.5, 5: 0.2, 25: 0.3}, {1: 0.1, 5: 0.4, 25: 0.3}]
    assert fastest(everyone, 5) == (25, {1: 0.5, 5: 0.4, 25: 0.3})
    assert score([1.0, 9.0, 2.0], 1) == 2.0
    assert score([1.0, 10.0, 2.0, 20.0, 3.0, 30.0], 2) == 22.0


@pytest.mark.parametrize(("seconds", "chosen"), [(0.98, 25), (0.96, 1), (1.1, 25)])
def test_the_configured_bucket_size_stays_unless_another_one_is_clearly_faster(seconds, chosen):
    assert fastest([{1: seconds, 25: 1.0}], 25)[0] == chosen


def test_parameters_that_are_unfrozen_after_prepare_are_named_because_the_ranks_do_not_exchange_them():
    model = torch.nn.Linear(2, 1).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checked = ExchangedParameters()
    checked.watch(model)
    checked.check_once(optimizer)
    checked.check()
    model.bias.requires_grad_(True)
    with pytest.raises(SetupError, match=r"but bias of Linear were frozen.* Change the model before ctx\.prepare"):
        checked.check()
    model._ddp_params_and_buffers_to_ignore = ["bias"]
    checked.check()


def test_an_option_that_the_installed_torch_does_not_have_is_named(monkeypatch):
    class Old(torch.nn.Module):
        def __init__(self, module, static_graph=False):
            super().__init__()

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Old)
    check_options({"static_graph": True}, every=1)
    with pytest.raises(SetupError, match=r"ddp option init_sync needs a newer version of torch, found \d"):
        check_options({"init_sync": False}, every=1)
