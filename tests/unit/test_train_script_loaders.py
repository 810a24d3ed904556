"""Ready loaders, samplers and iterable data sets in ``ctx.loader`` of a script."""

from __future__ import annotations

import itertools
import logging
import random

import pytest

torch = pytest.importorskip("torch")
from torch.utils import data as td  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.data.position import Progress  # noqa: E402
from airflow_provider_dtrain.train.data.script_loaders import Loader, ScriptLoaders, ValidationLoader  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402
from tests.support.loaders import Drawn, Numbers, flat, own_part  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402

pytestmark = pytest.mark.torch
COUNT = 32


class Stream(td.IterableDataset):
    """Every n-th number, with or without a length."""

    def __init__(self, rank=0, size=1, count=COUNT):
        self.numbers = range(rank, count, size)

    def __iter__(self):
        return iter(self.numbers)


class Sized(Stream):
    def __len__(self):
        return len(self.numbers)


class Shifting(td.DataLoader):
    """A loader with an ``__iter__`` of its own."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch + 1000


def position(**passes):
    """Return a saved position in the first epoch."""
    spec = {"finished": False, "length": 0, **passes}
    return {"epoch": 0, "passes": [spec], "handed": 1, "has_backward": True, "has_loops": True, "left": []}


def chosen(what="training", **options):
    return {"per_slot": lambda: 4, "batch_size": None, "shuffle": None, "options": options, "what": what}


def trained(make, size=2, *, epochs=1, restored=None, limit=None, **options):
    """Return each rank's batches per epoch."""

    def body(d):
        progress = Progress()
        if restored is not None:
            progress.load(position(samples=restored))
        loaders = ScriptLoaders(d, 5)
        data = make(d)
        found = []
        for epoch in range(epochs):
            progress.begin_epoch(epoch)
            shares = loaders.shares(data, "ctx.loader", limit=limit, **chosen(**options))
            found.append([flat([batch]) for batch in Loader(shares, progress, ranks=size)])
        return found

    results = in_ranks(size, body)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


LOADERS = {
    "a ready loader": lambda d: td.DataLoader(Numbers(), batch_size=4, shuffle=True),
    "a ready loader that is sharded": lambda d: td.DataLoader(Numbers(), batch_size=4, sampler=own_part(d)),
    "a loader of a trial class": lambda d: dtrain.DataLoader(Numbers(), batch_size=4, shuffle=True),
    "batches of the data set": lambda d: td.DataLoader(
        Numbers(), batch_size=None, collate_fn=lambda index: torch.tensor([index])
    ),
    "an iterable that is sharded": lambda d: Sized(d.rank, d.size),
    "a loader of it": lambda d: td.DataLoader(Sized(d.rank, d.size), batch_size=4),
}


@pytest.mark.parametrize("name", LOADERS)
def test_each_sample_of_a_ready_loader_is_trained_once_and_a_resumed_run_continues(name):
    one, two = trained(LOADERS[name])
    assert sorted(sum(one[0], []) + sum(two[0], [])) == list(range(COUNT))
    is_stream = "iterable" in name or name == "a loader of it"
    stride = 1 if is_stream else 2 if "batches" in name else 8
    again = trained(LOADERS[name], restored=2 * stride)
    assert [rank[0] for rank in again] == [one[0][2:], two[0][2:]]


def test_a_sampler_of_a_script_is_cut_and_drawn_anew_each_epoch():
    def shuffled():
        return random.sample(range(COUNT), COUNT)

    first, second = zip(*trained(lambda d: Numbers(), epochs=2, sampler=Drawn(shuffled)), strict=True)
    for one, two in (first, second):
        assert sorted(sum(one, []) + sum(two, [])) == list(range(COUNT))
    assert first != second


def test_the_own_iteration_of_a_subclass_is_used():
    one, _ = trained(lambda d: Shifting(Numbers(), batch_size=4, sampler=own_part(d)))
    assert one[0][0] == [1000, 1002, 1004, 1006]


def test_data_without_a_length_ends_on_all_ranks_after_max_batches():
    with pytest.raises(SetupError, match="no length.*set max_batches"):
        trained(lambda d: Stream(d.rank, d.size))
    one, two = trained(lambda d: Stream(d.rank, d.size, 16 + 8 * d.rank), limit=3)
    assert [len(rank[0]) for rank in (one, two)] == [3, 3], "the shorter one is repeated"
    with pytest.raises(SetupError, match=r"endless|no batch"):
        trained(lambda d: Stream(d.rank, d.size, 0), limit=3)


def test_an_endless_loader_is_cut_at_max_batches():
    class Endless:
        def __iter__(self):
            return itertools.repeat(torch.tensor([7]))

    one, _ = trained(lambda d: Endless(), limit=5)
    assert one[0] == [[7]] * 5


def test_alone_data_without_a_length_ends_where_it_ends_and_its_last_batch_is_known(tmp_path):
    config = {"optimizations": {"aggregation_frequency": 3}}
    with dtrain.init(hparams={"global_batch_size": 4}, config=config, checkpoint_dir=tmp_path) as ctx:
        model = torch.nn.Linear(1, 1)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        taken = []
        for _ in ctx.epochs(1):
            for batch in ctx.loader(Stream(count=20)):
                ctx.backward(model(batch[:, None].float()).sum())
                ctx.step(optimizer)
                taken.append(ctx.stepped)
        assert taken == [False, False, True, False, True], "the last group is smaller"
        assert ctx._progress.passes[0].finished


@pytest.mark.parametrize(("ranks", "warned"), [(1, False), (2, True)])
def test_a_stream_that_resumes_in_an_epoch_with_another_number_of_ranks_is_warned_about(
    ranks, warned, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    def begin(progress):
        return iter(
            Loader(ScriptLoaders(Distributed(RankEnvironment()), 1).shares(Sized(), "ctx.loader", **chosen()), progress)
        )

    progress = Progress()
    batches = begin(progress)
    next(batches)
    (spec,) = progress.state()["passes"]
    assert (spec["sharing"], spec["ranks"]) == ("stream", 1)
    progress.load(position(**{**spec, "ranks": ranks}))
    next(begin(progress))
    assert ("in the middle of an epoch with 1 ranks instead of 2" in caplog.text) == warned


def test_each_sample_of_ready_validation_data_is_on_one_rank():
    def body(d):
        shares = ScriptLoaders(d, 5).shares(
            td.DataLoader(Numbers(), batch_size=4), "ctx.validation_loader", **chosen("validation")
        )
        loader = ValidationLoader(shares)
        return [flat(loader), flat(loader), len(loader)]

    one, two = in_ranks(2, body)
    assert sorted(one[0] + two[0]) == list(range(COUNT))
    assert one[0] == one[1]
    assert one[2] == 4


def test_a_ready_loader_is_compared_between_the_ranks_once():
    def body(d):
        loaders, loader = ScriptLoaders(d, 5), td.DataLoader(Numbers(), batch_size=4, sampler=own_part(d))
        loaders.shares(loader, "ctx.loader", **chosen())
        before = d.exchanges
        for _ in range(3):
            loaders.shares(loader, "ctx.loader", **chosen())
        return d.exchanges - before

    assert in_ranks(2, body) == [0, 0]


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (td.DataLoader(Numbers()), {"num_workers": 2}, "uses the DataLoader as it is, got num_workers"),
        (Sized(), {"shuffle": True}, "cannot shuffle the iterable data set Sized"),
        (Numbers(), {"shuffle": True, "sampler": [1]}, "takes shuffle=True or a sampler, got both"),
        (Numbers(), {"generator": torch.Generator()}, "shuffles by the trial's seed, got generator"),
        (iter([1]), {}, "got list_iterator. Wrap a generator in a class"),
        (7, {}, "takes a data set, a DataLoader, or an object that can be iterated"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_to_do(tmp_path, data, options, words):
    with (
        dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path) as ctx,
        pytest.raises(SetupError, match=words),
    ):
        ctx.loader(data, **options)
