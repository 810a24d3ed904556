"""Optimizers whose parameters belong to no prepared model."""

from __future__ import annotations

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from tests.support.rank_threads import in_ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def gradients(distributed=None, **optimizations):
    return Gradients(distributed or Distributed(RankEnvironment(rank=0, world_size=1)), lambda: CPU, optimizations)


def sgd(*parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def lone(value=1.0):
    return torch.nn.Parameter(torch.full((3, 2), value))


def trained(make_loss, *, size=2, steps=1, **optimizations):
    """Return what each rank got from training a lone parameter: its values, or the error."""

    def body(d):
        it = gradients(d, **optimizations)
        parameter = lone()
        optimizer = sgd(parameter)
        for step in range(steps):
            it.backward(make_loss(parameter, d.rank, step))
            it.step(optimizer)
        return parameter.tolist()

    return in_ranks(size, body)


def test_an_optimizer_of_another_model_than_the_trained_one_is_named():
    it = gradients()
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    it.wrap_model(model)
    optimizer = sgd(*other.parameters())
    it.inspect()
    it.backward(model(torch.ones(1, 2)).sum())
    it.step(optimizer)
    with pytest.raises(SetupError) as caught:
        it.inspect()
    assert str(caught.value) == (
        "SGD must train parameters of a model, but none of its 2 parameters (one of shape (1, 2), one of shape (1,)) "
        "belongs to a prepared model, and none had a gradient in 1 steps. Create the optimizer from the parameters of "
        "the model that computes the loss, after fully_shard, to_empty or a copy has replaced them."
    )


@pytest.mark.parametrize("optimizations", [{}, {"aggregation_frequency": 2}])
def test_a_script_with_such_an_optimizer_ends_with_the_error(tmp_path, monkeypatch, optimizations):
    monkeypatch.chdir(tmp_path)

    def train():
        with dtrain.init(hparams={"global_batch_size": 4}, config={"optimizations": optimizations}) as ctx:
            model, optimizer = torch.nn.Linear(2, 1), sgd(*torch.nn.Linear(2, 1).parameters())
            model, optimizer = ctx.prepare(model, optimizer)
            for _ in range(4):
                ctx.backward(model(torch.ones(4, 2)).sum())
                ctx.step(optimizer)

    with pytest.raises(SetupError, match="SGD must train parameters of a model"):
        train()


def test_parameters_outside_a_model_train_on_one_rank():
    it = gradients()
    parameter = lone()
    optimizer = sgd(parameter)
    it.backward(parameter.sum())
    it.step(optimizer)
    it.inspect()
    assert parameter[0, 0].item() == pytest.approx(0.9)


def test_an_optimizer_of_a_prepared_model_may_wait_for_its_first_gradient():
    it = gradients()
    maker, judge = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    it.wrap_model(maker), it.wrap_model(judge)
    makes, judges = sgd(*maker.parameters()), sgd(*judge.parameters())
    for _ in range(3):
        it.backward(maker(torch.ones(1, 2)).sum())
        it.step(makes)
        it.step(judges)
    it.inspect()


@pytest.mark.parametrize("optimizations", [{}, {"aggregation_frequency": 2}])
def test_parameters_that_each_rank_trains_on_its_own_data_are_named_on_all_ranks(optimizations):
    steps = optimizations.get("aggregation_frequency", 1)
    for error in trained(lambda p, rank, step: p.sum() * (rank + 1), steps=steps, **optimizations):
        assert isinstance(error, SetupError)
        assert "SGD trains, but those of one of shape (3, 2) differ between the ranks" in str(error)
        assert "Make them part of a model that ctx.prepare gets" in str(error)


def test_parameters_whose_gradients_the_program_exchanges_are_trained():
    values = trained(lambda p, rank, step: p.sum() * 2, steps=3)
    assert values[0] == values[1]
    assert values[0][0][0] == pytest.approx(1 - 3 * 0.2)


def test_a_parameter_is_compared_once_it_has_a_gradient():
    silent = trained(lambda p, rank, step: p.sum() * 0, steps=3)
    assert silent[0] == silent[1]
    late = trained(lambda p, rank, step: p.sum() * (rank if step == 3 else 0), steps=4)
    assert all("differ between the ranks" in str(error) for error in late)


def test_the_ranks_compare_no_longer_once_the_gradients_were_equal():
    counts = []

    def body(d):
        it = gradients(d)
        parameter = lone()
        optimizer = sgd(parameter)
        for _ in range(3):
            it.backward(parameter.sum())
            it.step(optimizer)
            counts.append(d.exchanges)

    in_ranks(2, body)
    assert set(counts) == {1}


def test_a_rank_that_has_no_gradient_where_another_one_has_is_named():
    def body(d):
        it = gradients(d)
        one, two = lone(), lone()
        optimizer = sgd(one, two)
        it.backward(one.sum() if d.rank else one.sum() + two.sum())
        it.step(optimizer)

    assert all("those of one of shape (3, 2) differ" in str(error) for error in in_ranks(2, body))


def test_parameters_of_a_model_that_is_not_wrapped_are_named_by_name():
    def body(d):
        it = gradients(d)
        model = torch.nn.Linear(2, 1)
        it.know_model(model)
        optimizer = sgd(*model.parameters())
        it.backward(model(torch.ones(1, 2) * d.rank).sum())
        it.step(optimizer)

    # The gradient of the bias is the same on all ranks.
    assert all("those of weight of Linear differ" in str(error) for error in in_ranks(2, body))


def test_overflows_of_a_scaled_loss_are_no_difference():
    values = trained(lambda p, rank, step: p.sum() * (float("inf") if rank else 1), steps=1)
    assert not any(isinstance(value, Exception) for value in values)


def test_a_closure_of_such_parameters_is_checked_too():
    def body(d):
        it = gradients(d)
        parameter = lone()
        optimizer = torch.optim.LBFGS([parameter])

        def closure():
            loss = (parameter * (d.rank + 1)).pow(2).sum()
            it.backward(loss)
            return loss

        it.step(optimizer, closure=closure)

    assert all("LBFGS trains" in str(error) for error in in_ranks(2, body))


@pytest.mark.parametrize("sparse", [True, False])
def test_equal_gradients_of_other_rows_are_a_difference(sparse):
    def body(d):
        it = gradients(d)
        table = torch.nn.Embedding(5, 2, sparse=sparse)
        optimizer = sgd(table.weight)
        it.backward(table(torch.tensor([d.rank, d.rank + 1])).sum())
        it.step(optimizer)

    assert all("shape (5, 2) differ" in str(error) for error in in_ranks(2, body))


class Sparse:
    """State without an address in memory."""

    def state_dict(self):
        return {"mask": torch.eye(2).to_sparse()}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("registered", [False, True])
def test_parameters_that_checkpoints_lack_are_named_at_the_first_save(tmp_path, monkeypatch, caplog, registered):
    monkeypatch.chdir(tmp_path)
    with dtrain.init(hparams={"global_batch_size": 4}) as ctx:
        model, table = torch.nn.Linear(2, 1), torch.nn.Embedding(5, 2)
        optimizer = sgd(*model.parameters(), *table.parameters())
        model, optimizer = ctx.prepare(model, optimizer)
        if registered:
            ctx.register(table=table, sparse=Sparse())
        for step in (1, 2):
            ctx.backward(model(table(torch.tensor([1, 2]))).sum())
            ctx.step(optimizer)
            ctx.save_checkpoint(step)
    words = [record.getMessage() for record in caplog.records if "Checkpoints do not hold" in record.getMessage()]
    assert len(words) == (0 if registered else 1)
    if not registered:
        assert words[0].startswith("Checkpoints do not hold 1 of the 3 parameters that SGD trains, one of shape (5, 2)")


@pytest.mark.parametrize("before_first_step", [True, False])
def test_parameters_that_are_replaced_after_prepare_are_named(before_first_step):
    it = gradients()
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
    it.wrap_model(model)
    optimizer = sgd(*model.parameters())

    def step():
        it.backward(model(torch.ones(1, 1)).sum())
        it.step(optimizer)
        it.inspect()

    if not before_first_step:
        step()
    model[1] = torch.nn.Linear(2, 1)
    with pytest.raises(SetupError, match=r"1\.weight, 1\.bias were replaced or removed since ctx\.prepare"):
        step()


def test_other_optimizers_may_train_what_was_added_or_removed():
    it = gradients()
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
    it.wrap_model(model)
    optimizer = sgd(*model[0].parameters())
    model[1] = torch.nn.Linear(2, 1)
    it.backward(model(torch.ones(1, 1)).sum())
    it.step(optimizer)
    it.inspect()
