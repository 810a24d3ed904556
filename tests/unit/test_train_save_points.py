"""Points of a script's loop at which the copy of a checkpoint is taken, and what is said about other ones."""

from __future__ import annotations

import logging
import random
import threading

import pytest

torch = pytest.importorskip("torch")
import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.async_writer import Background  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.storage import open_storage  # noqa: E402
from airflow_provider_dtrain.train.reports import failure  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a script alone, with its checkpoints in one folder."""
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    return lambda **options: dtrain.init(
        hparams={"global_batch_size": 4}, seed=3, checkpoint_dir=tmp_path / "kept", **options
    )


def data(batches=3):
    return torch.utils.data.TensorDataset(torch.arange(4.0 * batches)[:, None] / 10)


def prepared(ctx, *more):
    model = torch.nn.Linear(1, 1)
    model.weight.data.fill_(1.0)
    model.bias.data.fill_(0.0)
    return ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), *more)


def train(ctx, model, optimizer, batch):
    ctx.backward(model(batch[0]).square().mean())
    ctx.step(optimizer)


def steps(folder):
    return sorted(path.name for path in folder.glob("step-*"))


def test_in_the_last_batch_of_an_epoch_the_copy_is_taken_at_its_end_at_the_path_that_was_told(start, tmp_path):
    with start() as ctx:
        model, optimizer = prepared(ctx)
        scheduler = ctx.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1), scheduler_step="manual")
        for epoch in ctx.epochs(2):
            for step, batch in enumerate(ctx.loader(data()), 1):
                train(ctx, model, optimizer, batch)
                if epoch == 0 and step == 3:
                    place = ctx.save_checkpoint(step)
                    assert place.endswith("step-00000003")
            scheduler.step()
            ctx._saver.finish()
            if epoch == 0:
                assert steps(tmp_path / "kept") == [], "the rest of the epoch is not in the state yet"
                weights = dtrain.parameters_sha256(model)
    assert steps(tmp_path / "kept") == ["step-00000003"]
    with start() as ctx:
        model, optimizer = prepared(ctx)
        scheduler = ctx.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1), scheduler_step="manual")
        assert ctx.restore_checkpoint() == 3
        assert (dtrain.parameters_sha256(model), scheduler.last_epoch) == (weights, 1)
        assert list(ctx.epochs(2)) == [1]


def test_a_checkpoint_that_was_told_is_written_although_another_one_follows_the_loop(start, tmp_path):
    with start(config={"checkpoint_policy": "all"}) as ctx:
        model, optimizer = prepared(ctx)
        for step, batch in enumerate(ctx.loader(data()), 1):
            train(ctx, model, optimizer, batch)
            if step == 3:
                told = [ctx.save_checkpoint(3)]
        told.append(ctx.save_checkpoint(100))
    assert (
        [place.rpartition("/")[2] for place in told] == steps(tmp_path / "kept") == ["step-00000003", "step-00000100"]
    )


def test_of_two_checkpoints_of_the_same_last_batch_the_first_is_named_as_not_written(start, tmp_path, caplog):
    with start(config={"checkpoint_policy": "all"}) as ctx:
        model, optimizer = prepared(ctx)
        for step, batch in enumerate(ctx.loader(data()), 1):
            train(ctx, model, optimizer, batch)
            if step == 3:
                ctx.save_checkpoint(3)
                ctx.save_checkpoint(4)
    assert steps(tmp_path / "kept") == ["step-00000004"]
    assert "The checkpoint of step 3 is not written" in caplog.text


def test_a_copy_that_was_owed_is_taken_at_the_end_of_the_program_and_what_is_left_out_is_told(start, tmp_path, caplog):
    with start() as ctx:
        model, optimizer = prepared(ctx)
        for _ in ctx.epochs(2):
            for step, batch in enumerate(ctx.loader(data()), 1):
                train(ctx, model, optimizer, batch)
                if step == 3:
                    ctx.save_checkpoint(step)
                    break
            break
    assert steps(tmp_path / "kept") == ["step-00000003"]
    assert "does not run what follows the loop in this one" in caplog.text


def test_without_a_with_block_the_end_of_the_interpreter_takes_it(start, tmp_path, monkeypatch):
    # A test before this one may have recorded an error of this process.
    monkeypatch.setitem(failure._state, "failed", False)
    ctx = start()
    model, optimizer = prepared(ctx)
    for step, batch in enumerate(ctx.loader(data()), 1):
        train(ctx, model, optimizer, batch)
        if step == 3:
            ctx.save_checkpoint(step)
    ctx.leave()
    assert steps(tmp_path / "kept") == ["step-00000003"]


def test_work_runs_at_once_where_no_thread_can_be_started_any_longer(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    background = Background()
    background.start("work", lambda: done.append(1))
    background.wait()
    assert done == [1]


def test_another_training_that_follows_the_loop_completes_the_checkpoint_before_it_begins(start, tmp_path, caplog):
    with start() as ctx:
        model, optimizer = prepared(ctx)
        for step, batch in enumerate(ctx.loader(data()), 1):
            train(ctx, model, optimizer, batch)
            if step == 3:
                ctx.save_checkpoint(step)
        weights = dtrain.parameters_sha256(model)
        train(ctx, model, optimizer, (torch.ones(1, 1),))
        ctx._saver.finish()
        assert steps(tmp_path / "kept") == ["step-00000003"]
        assert "training goes on without a further loop" in caplog.text
    with start() as ctx:
        model, _ = prepared(ctx)
        ctx.restore_checkpoint()
        assert dtrain.parameters_sha256(model) == weights


def test_a_save_that_the_rest_of_the_epoch_outdates_is_repeated_and_named_once(start, tmp_path, caplog):
    with start(config={"checkpoint_policy": "all"}) as ctx:
        model, optimizer = prepared(ctx)
        for epoch in ctx.epochs(3):
            for batch in ctx.loader(data()):
                train(ctx, model, optimizer, batch)
            ctx.save_checkpoint(epoch)
            if epoch:
                random.random()
    assert steps(tmp_path / "kept") == [f"step-0000000{name}" for name in ("0", "1", "1.2", "2", "2.2")]
    assert caplog.text.count("random numbers changed after the call. It is saved again now") == 1


def test_a_save_between_two_steps_of_a_batch_is_named(start, caplog):
    with start() as ctx:
        model, optimizer = prepared(ctx)
        for step, batch in enumerate(ctx.loader(data()), 1):
            train(ctx, model, optimizer, batch)
            if step == 1:
                ctx.save_checkpoint(step)
            train(ctx, model, optimizer, batch)
    assert "in the middle of a batch, which was trained further" in caplog.text


def test_a_save_in_an_epoch_of_the_scripts_own_data_is_named_unless_an_object_keeps_the_position(start, caplog):
    def run(*more):
        with start() as ctx:
            model, optimizer = prepared(ctx, *more)[:2]
            for _ in ctx.epochs(1):
                train(ctx, model, optimizer, (torch.ones(1, 1),))
                ctx.save_checkpoint(1)

    class Kept:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    run(Kept())
    assert "whose data is not from ctx.loader" not in caplog.text
    run()
    assert "whose data is not from ctx.loader, before its validation" in caplog.text


def test_a_stop_request_in_the_last_batch_waits_for_its_end(start):
    seen = []
    with start(config={"scheduling_unit": 1}) as ctx:
        model, optimizer = prepared(ctx)
        for _ in ctx.epochs(2):
            for step, batch in enumerate(ctx.loader(data()), 1):
                ctx._is_stop_requested = lambda step=step: step == 3
                train(ctx, model, optimizer, batch)
                seen.append(bool(ctx.should_stop))
            seen.append(bool(ctx.should_stop))
    assert seen == [False, False, False, True]


def test_epochs_of_one_batch_stop_in_the_next_batch_at_the_latest(start):
    seen = []
    with start(config={"scheduling_unit": 1}) as ctx:
        model, optimizer = prepared(ctx)
        ctx._is_stop_requested = lambda: True
        while True:
            for batch in ctx.loader(data(1)):
                train(ctx, model, optimizer, batch)
                seen.append(bool(ctx.should_stop))
            if len(seen) == 2:
                break
    assert seen == [False, True]


def test_what_a_loop_leaves_undone_in_a_paused_epoch_is_not_in_its_checkpoint(start):
    """The end of an epoch runs twice in a paused training, and counts once."""

    def run(stop_at):
        with start(config={"scheduling_unit": 1}) as ctx:
            model, optimizer = prepared(ctx)
            plateau = ctx.prepare(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0))
            step = ctx.restore_checkpoint()
            ctx._is_stop_requested = lambda: step == stop_at
            for _ in ctx.epochs(2):
                for batch in ctx.loader(data()):
                    train(ctx, model, optimizer, batch)
                    step += 1
                plateau.step(1.0)
                ctx.save_checkpoint(step)
            return plateau.last_epoch

    assert run(1) == 1
    assert run(-1) == 2


def test_a_look_at_the_data_moves_no_position(start):
    def run(until):
        seen = []
        with start() as ctx:
            model, optimizer = prepared(ctx)
            step = ctx.restore_checkpoint()
            next(iter(ctx.loader(data())))
            while step < until:
                for batch in ctx.loader(data()):
                    train(ctx, model, optimizer, batch)
                    step += 1
                    seen.append(batch[0].flatten().tolist())
                    if step == until:
                        ctx.save_checkpoint(step)
                        break
        return seen

    first = run(2)
    whole = first + run(6)
    assert len(whole) == 6
    assert sorted(sum(whole[:3], [])) == sorted(sum(whole[3:], [])) == data().tensors[0].flatten().tolist()
    assert whole[:3] != whole[3:]


def test_variables_of_a_loop_with_nothing_left_are_explained(start, caplog):
    def run():
        with start() as ctx:
            model, optimizer = prepared(ctx)
            ctx.restore_checkpoint()
            for _ in ctx.epochs(1):
                for batch in ctx.loader(data()):
                    loss = model(batch[0]).mean()
                    ctx.backward(loss)
                    ctx.step(optimizer)
                ctx.save_checkpoint(3)
            return loss.item()

    run()
    with pytest.raises(NameError):
        run()
    assert "A loop of this resumed run had nothing left to train" in caplog.text


def test_a_further_checkpoint_of_a_step_sorts_behind_those_that_were_removed(tmp_path):
    assert open_storage(tmp_path, {}).reserve(8).name == "step-00000008"
    (tmp_path / "step-00000008.2").mkdir()
    (tmp_path / "step-00000080").mkdir()
    assert open_storage(tmp_path, {}).reserve(8).name == "step-00000008.3"
    (tmp_path / "step-00000009").mkdir()
    assert open_storage(tmp_path, {}).reserve(9).name == "step-00000009.2"


def test_loops_that_take_turns_outside_of_epochs_and_old_iterators_are_named(start, caplog):
    one, two = data(2), data(3)
    with start() as ctx:
        model, optimizer = prepared(ctx)
        for part in (one, two):
            for batch in ctx.loader(part):
                train(ctx, model, optimizer, batch)
        ctx.save_checkpoint(5)
        assert "take turns with different data" in caplog.text
        late = None
        for _ in ctx.epochs(3):
            late = late or iter(ctx.loader(two))
            train(ctx, model, optimizer, next(late))
        ctx.save_checkpoint(8)
    assert "lacks the position of an iterator that was made in an earlier epoch" in caplog.text


def test_a_loop_in_a_body_that_has_trained_before_it_is_named(start, caplog):
    with start() as ctx:
        model, optimizer = prepared(ctx)
        for batch in ctx.loader(data(2)):
            train(ctx, model, optimizer, batch)
            for inner in ctx.loader(data(3)):
                train(ctx, model, optimizer, inner)
                ctx.save_checkpoint(1)
    assert "in the body of another one, which had trained before" in caplog.text


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_batches_that_were_read_ahead_and_count_as_trained_are_named(start, caplog, reads_ahead):
    with start() as ctx:
        model, optimizer = prepared(ctx)
        batches = ctx.loader(data())
        for step, batch in enumerate(list(batches) if reads_ahead else batches, 1):
            train(ctx, model, optimizer, batch)
            ctx.save_checkpoint(step)
    assert ("counts 2 batches as done that ctx.loader has handed out" in caplog.text) == reads_ahead
