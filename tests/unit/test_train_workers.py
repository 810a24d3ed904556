"""Loader workers: those that persist, the random numbers in them, and workers that are killed."""

from __future__ import annotations

import gc
import os
import random
import signal

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data as td  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.data import worker_pool  # noqa: E402
from airflow_provider_dtrain.train.errors import LoaderWorkerError  # noqa: E402

pytestmark = pytest.mark.torch


class Noisy(td.Dataset):
    """Samples with noise from every generator, and the process that made them."""

    def __init__(self, count=12):
        self.count = count
        self.own = random.Random(3)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = [torch.rand(()).item(), random.random(), self.own.random()]
        return torch.tensor([float(index), *noise]), os.getpid()


class Deadly(Noisy):
    """A data set whose sample 5 kills its worker, or raises an error of its own."""

    fault = "kill"

    def __getitem__(self, index):
        if index == 5 and self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 5 and self.fault == "exit":
            os._exit(3)
        if index == 5 and self.fault == "raise":
            raise ValueError("sample 5 is broken")
        return super().__getitem__(index)


def context(folder):
    return dtrain.init(hparams={"global_batch_size": 2}, seed=4, checkpoint_dir=folder)


def epochs(folder, *, count=3, stop=None, data=None, **options):
    """Return (rows, processes) of each epoch. Ends after some batches, with a checkpoint, if asked to."""
    data = data or Noisy()
    found = []
    with context(folder) as ctx:
        ctx.prepare(torch.nn.Linear(1, 1))
        ctx.restore_checkpoint()
        done = 0
        for _ in ctx.epochs(count):
            rows, processes = [], set()
            found.append((rows, processes))
            for batch, pids in ctx.loader(data, **options):
                rows += batch.tolist()
                processes |= set(pids.tolist())
                done += 1
                if done == stop:
                    ctx.save_checkpoint(done)
                    return found
    return found


def rows(found):
    return [row for epoch, _ in found for row in epoch]


def pids(found):
    return [processes for _, processes in found]


PERSIST = {"num_workers": 1, "persistent_workers": True}


def test_workers_persist_over_epochs_and_give_the_same_samples(tmp_path):
    lasting = epochs(tmp_path / "a", **PERSIST)
    fresh = epochs(tmp_path / "b", num_workers=1)
    assert pids(lasting)[0] == pids(lasting)[1] == pids(lasting)[2]
    assert len(set.union(*pids(fresh))) == 3
    assert rows(lasting) == rows(fresh)
    assert len({row[1] for row in rows(lasting)}) == len({row[3] for row in rows(lasting)}) == 36


@pytest.mark.parametrize("stop", [2, 8])
def test_a_run_that_resumes_inside_an_epoch_has_the_same_samples(tmp_path, stop):
    whole = rows(epochs(tmp_path / "whole", num_workers=2, persistent_workers=True))
    first = rows(epochs(tmp_path / "parts", stop=stop, **PERSIST))
    rest = rows(epochs(tmp_path / "parts", num_workers=2, persistent_workers=True))
    assert first + rest == whole


def test_an_epoch_that_is_left_early_disturbs_the_next_one_not(tmp_path):
    data = Noisy()
    with context(tmp_path) as ctx:
        ctx.prepare(torch.nn.Linear(1, 1))
        found = []
        for epoch in ctx.epochs(3):
            for number, (batch, _) in enumerate(ctx.loader(data, prefetch_factor=2, **PERSIST)):
                found.append((epoch, batch[:, 0].tolist()))
                if epoch == 0 and number == 1:
                    break
    assert [sum(epoch == number for epoch, _ in found) for number in range(3)] == [2, 6, 6]
    for number in (1, 2):
        assert sorted(index for epoch, batch in found for index in batch if epoch == number) == list(range(12))


def test_two_passes_at_once_get_workers_of_their_own(tmp_path):
    data = Noisy()
    with context(tmp_path) as ctx:
        one, two = (ctx.loader(data, shuffle=False, **PERSIST) for _ in range(2))
        pairs = list(zip(one, two, strict=True))
    assert [[one[0][:, 0].tolist(), two[0][:, 0].tolist()] for one, two in pairs] == [
        [[float(i), i + 1.0]] * 2 for i in range(0, 12, 2)
    ]
    assert pairs[0][0][1][0] != pairs[0][1][1][0]


def test_other_options_get_other_workers(tmp_path):
    data = Noisy()
    with context(tmp_path) as ctx:
        processes = [
            {pid for _, batch in ctx.loader(data, batch_size=size, **PERSIST) for pid in batch.tolist()}
            for size in (2, 2, 3)
        ]
        lengths = len(ctx.validation_loader(data, **PERSIST))
    assert processes[0] == processes[1] != processes[2]
    assert lengths == 6


def test_the_length_of_validation_data_starts_no_worker(tmp_path, monkeypatch):
    with context(tmp_path) as ctx:
        loader = ctx.validation_loader(Noisy(), num_workers=2)
        monkeypatch.setattr(td.DataLoader, "__iter__", lambda _: pytest.fail("workers were started"))
        assert len(loader) == 6


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_a_worker_that_is_gone_is_a_named_error(tmp_path, fault, persistent):
    data = Deadly()
    data.fault = fault
    with pytest.raises(LoaderWorkerError, match="A loader worker .*(killed|ended by itself)"):
        epochs(tmp_path, data=data, num_workers=1, persistent_workers=persistent)


def test_after_a_sample_that_fails_the_next_epoch_has_new_workers(tmp_path):
    data = Deadly()
    data.fault = "raise"
    with context(tmp_path) as ctx:
        with pytest.raises(ValueError, match="sample 5 is broken"):
            list(ctx.loader(data, shuffle=False, **PERSIST))
        data.fault = "none"
        assert len(list(ctx.loader(data, shuffle=False, **PERSIST))) == 6


def test_workers_end_with_the_loader_of_a_trial_and_no_garbage_collection_waits_for_them(tmp_path):
    gc.disable()
    try:
        found = epochs(tmp_path, count=1, **PERSIST)
        (pid,) = pids(found)[0]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", r"\(pid 7\) .* 'Bus error'"),
        ("DataLoader worker (pid(s) 7, 8) exited unexpectedly", r"\(pid 7, 8\) ended by itself"),
    ],
)
def test_both_words_of_torch_are_understood(text, words):
    def fails():
        raise RuntimeError(text)
        yield

    with pytest.raises(LoaderWorkerError, match=words):
        list(worker_pool.named_errors(fails(), "training"))


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), EOFError()])
def test_a_batch_that_a_lost_worker_sent_is_an_error_of_the_worker(error):
    def fails():
        raise error
        yield

    with pytest.raises(LoaderWorkerError, match="was killed or ended by itself"):
        list(worker_pool.named_errors(fails(), "validation"))


def test_the_error_of_a_lost_worker_names_the_data_that_it_loaded(tmp_path, monkeypatch):
    def fails(_):
        raise EOFError
        yield

    with context(tmp_path) as ctx:
        loader = ctx.loader(Noisy(), num_workers=1)
        monkeypatch.setattr(td.DataLoader, "__iter__", fails)
        with pytest.raises(LoaderWorkerError, match="A loader worker of the training data was killed"):
            list(loader)


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error"), ConnectionError("Caught ConnectionError in DataLoader worker process 0.")]
)
def test_other_errors_stay_as_they_are(error):
    def fails():
        raise error
        yield

    with pytest.raises(type(error), match=str(error)[:10]):
        list(worker_pool.named_errors(fails(), "training"))


def test_a_worker_that_is_gone_is_named_at_any_line_of_a_program(tmp_path):
    with pytest.raises(LoaderWorkerError, match=r"A loader worker \(pid 7\) ended by itself"), context(tmp_path):
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 3.")
