"""Sharding, shuffling and the position in the data."""

from __future__ import annotations

import copy
import pickle

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.data.loader import SeededBatches, permutation, rank_batches
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.search.stop_criteria import epochs_done

torch = pytest.importorskip("torch")
from tests.support.script_loaders import training_loader, validation_part  # noqa: E402

pytestmark = pytest.mark.torch


def shares(order, *, per_slot, size, start=0, drop_last=False):
    """Return each rank's list of batches."""
    return [
        list(rank_batches(order, start=start, per_slot=per_slot, rank=r, size=size, drop_last=drop_last))
        for r in range(size)
    ]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 23, 24, 25, 64])
@pytest.mark.parametrize(("size", "per_slot"), [(1, 8), (2, 4), (4, 2), (3, 3)])
def test_all_ranks_take_as_many_steps_and_every_sample_is_seen(length, size, per_slot):
    parts = shares(range(length), per_slot=per_slot, size=size)
    assert len({tuple(map(len, batches)) for batches in parts}) == 1
    seen = [index for batches in parts for batch in batches for index in batch]
    assert set(seen) == set(range(length))
    assert len(seen) - length < size


@pytest.mark.parametrize(("size", "per_slot"), [(2, 4), (4, 2), (8, 1)])
def test_a_global_batch_holds_the_same_samples_with_any_number_of_slots(size, per_slot):
    order = permutation(40, 3, 0)
    one = shares(order, per_slot=8, size=1)[0]
    many = shares(order, per_slot=per_slot, size=size)
    assert [sum((rank[i] for rank in many), []) for i in range(len(one))] == one


def test_drop_last_leaves_the_smaller_batch_out():
    assert shares(range(10), per_slot=4, size=1, drop_last=True) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_going_on_at_a_position_gives_the_rest():
    assert shares(range(10), per_slot=2, size=2, start=4) == [[[4, 5], [8]], [[6, 7], [9]]]


def test_the_order_depends_on_seed_and_epoch_alone():
    assert permutation(50, 1, 0) == permutation(50, 1, 0)
    assert permutation(50, 1, 0) != permutation(50, 1, 1)
    assert permutation(50, 1, 0) != permutation(50, 2, 0)


def loader(progress, length=10, **changes):
    """Return a loader of one rank with global batches of 4."""
    return training_loader(list(range(length)), progress, **{"seed": 5, **changes})


def as_lists(batches):
    return [batch.tolist() for batch in batches]


def test_each_epoch_has_another_order_and_the_same_samples():
    progress = Progress()
    epochs = [sum(as_lists(loader(progress)), []) for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_length_is_that_of_a_whole_epoch():
    assert (len(loader(Progress())), len(loader(Progress(), drop_last=True))) == (3, 2)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_restored_position_goes_on_with_the_next_batch(stop_after):
    whole = as_lists(loader(Progress()))
    first = Progress()
    first.begin_epoch(0)
    batches = iter(loader(first))
    for _ in range(stop_after):
        next(batches)
    second = Progress()
    second.load(first.state())
    second.begin_epoch(second.epoch)
    assert second.epoch == 0
    assert as_lists(loader(second)) == whole[stop_after:]


def test_a_checkpoint_after_the_whole_epoch_goes_on_with_the_next_epoch():
    first = Progress()
    first.begin_epoch(0)
    list(loader(first))
    second = Progress()
    second.load(first.state())
    assert (second.epoch, second.restored) == (1, [])


def test_a_second_loader_of_an_epoch_is_restored_at_its_own_position():
    first = Progress()
    first.begin_epoch(2)
    whole = as_lists(loader(first))
    again = iter(loader(first))
    next(again)
    second = Progress()
    second.load(first.state())
    second.begin_epoch(second.epoch)
    assert as_lists(loader(second)) == []
    assert as_lists(loader(second)) == whole[1:]


def test_a_position_saved_before_the_restored_passes_began_is_kept():
    first = Progress()
    first.begin_epoch(0)
    batches = iter(loader(first))
    next(batches)
    second = Progress()
    second.load(first.state())
    assert second.state() == first.state()


def test_a_dataset_without_a_length_is_refused_by_name():
    class Endless(torch.utils.data.Dataset):
        pass

    with pytest.raises(SetupError, match="Endless has no length"):
        training_loader(Endless(), Progress())
    with pytest.raises(SetupError, match="got generator. Wrap a generator in a class"):
        training_loader((i for i in range(3)), Progress())


def test_validation_gives_each_sample_to_exactly_one_rank():
    parts = [sum(as_lists(validation_part(list(range(11)), rank=r, size=3, per_slot=2)), []) for r in range(3)]
    assert sorted(sum(parts, [])) == list(range(11))


def test_loading_data_draws_nothing_from_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(loader(Progress()))
    list(validation_part(list(range(5)), per_slot=2))
    assert torch.equal(torch.get_rng_state(), before)


class Marked(list):
    """Data set with attributes that a ``worker_init_fn`` sets and deletes."""

    kind = None

    def __getitem__(self, index):
        return (self.kind == "set") + 2 * hasattr(self, "old")


def mark(_):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.kind = "set"
    del dataset.old


def test_attributes_that_a_worker_sets_are_those_of_the_data_set():
    data = Marked(range(4))
    data.old = 1
    batches = training_loader(data, Progress(), shuffle=False, options={"num_workers": 1, "worker_init_fn": mark})
    assert as_lists(batches) == [[1, 1, 1, 1]]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_a_copy_of_a_data_set_in_a_worker_seeds_its_batches_as_well(copied):
    data = Marked(range(4))
    data._seed = data._dataset = "of the data set"
    twin = copied(SeededBatches(data, 5))
    twin.kind = "set"
    assert (len(twin), twin[0, 1], twin._seed, twin._dataset) == (4, 1, "of the data set", "of the data set")
    state = torch.get_rng_state()
    SeededBatches(data, 5)[0, 1]
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_counts_when_its_pass_has_ended_and_without_a_loader_from_its_first_validation_on():
    with_loader, without = Progress(has_loader=True), Progress()
    for progress in (with_loader, without):
        progress.begin_epoch(0)
    assert (epochs_done(with_loader), epochs_done(without)) == (0, 1)
    with_loader.begin_pass().finished = True
    assert epochs_done(with_loader) == 1
    without.begin_epoch(1)
    assert epochs_done(without) == 2


def test_without_a_loader_a_checkpoint_after_the_validation_begins_the_next_epoch(tmp_path):
    def run(epochs, *, saves_first=False, breaks=False):
        """Return the epochs that a script with its own data loop trains, each of two steps."""
        done = []
        with dtrain.init(hparams={}, checkpoint_dir=tmp_path, seed=3) as ctx:
            model = torch.nn.Linear(2, 2)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            step = ctx.restore_checkpoint()
            for epoch in ctx.epochs(epochs):
                done.append(epoch)
                for _ in range(2):
                    ctx.backward(model(torch.ones(1, 2)).sum())
                    ctx.step(optimizer)
                    step += 1
                if saves_first:
                    ctx.save_checkpoint(step)
                    if breaks:
                        break
                ctx.report_validation(step, {"loss": 1.0})
                if not saves_first:
                    ctx.save_checkpoint(step)
            if not breaks:
                ctx.save_checkpoint(step)
        return done

    assert run(2) == [0, 1]
    assert run(4) == [2, 3]
    assert run(4) == [], "everything is done"
    assert run(6, saves_first=True, breaks=True) == [4]
    assert run(6) == [4, 5], "an interrupted epoch may be incomplete"


@pytest.mark.parametrize("looks", [True, False])
def test_a_loop_of_its_own_that_was_told_to_leave_takes_its_epoch_again(tmp_path, looks):
    """The progress of such a loop is unknown. A loop that never checks has finished its epoch."""
    with dtrain.init(hparams={}, checkpoint_dir=tmp_path, seed=3) as ctx:
        model = torch.nn.Linear(2, 2)
        model, _ = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in ctx.epochs(3):
            ctx._stop = True
            if looks:
                assert ctx.should_stop
            ctx.report_validation(1, {"loss": 1.0})
            ctx.save_checkpoint(1)
    with dtrain.init(hparams={}, checkpoint_dir=tmp_path, seed=3) as ctx:
        model = torch.nn.Linear(2, 2)
        model, _ = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        ctx.restore_checkpoint()
        assert list(ctx.epochs(3)) == ([0, 1, 2] if looks else [1, 2])


def test_a_stop_that_comes_in_the_last_epoch_cuts_nothing_off(tmp_path):
    with dtrain.init(hparams={}, checkpoint_dir=tmp_path, seed=3) as ctx:
        for _ in ctx.epochs(2):
            ctx._stop = ctx._progress.last_epoch
        assert not ctx._left_early, "the trial has ended by itself"
