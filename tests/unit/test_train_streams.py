"""Data loaders whose indices are not known: each rank iterates its own."""

from __future__ import annotations

import itertools
import logging
import random
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils import data as td  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from airflow_provider_dtrain.train import pytorch  # noqa: E402
from airflow_provider_dtrain.train.data.held_generators import SeedPlan  # noqa: E402
from airflow_provider_dtrain.train.data.index_comparison import Sharing  # noqa: E402
from airflow_provider_dtrain.train.data.position import Progress  # noqa: E402
from airflow_provider_dtrain.train.data.script_loaders import Loader, ScriptLoaders, ValidationLoader  # noqa: E402
from airflow_provider_dtrain.train.data.shares import Shares  # noqa: E402
from airflow_provider_dtrain.train.data.stream import Stream  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import EmptyLoaderError, SetupError  # noqa: E402
from tests.support.loaders import COUNT, Drawn, EveryNth, Numbers, flat, trained, validated  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402
from tests.support.small_trial import Kept, Small, digest  # noqa: E402


class Endless(td.Sampler):
    """Repeats another sampler for ever, as the example of Determined's documentation."""

    drawn = 0

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            for item in self.sampler:
                Endless.drawn += 1
                assert Endless.drawn < 1000, "an endless sampler is drawn without end"
                yield item

    def __len__(self):
        return len(self.sampler)


@pytest.mark.parametrize("size", [1, 2])
def test_an_endless_sampler_is_a_stream_and_starts_at_once(size, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    Endless.drawn = 0

    def by_batch(d):
        part = EveryNth(td.BatchSampler(td.SequentialSampler(Numbers()), 4, False), d.size, d.rank)
        return td.DataLoader(Numbers(), batch_sampler=Endless(part))

    sharing, batches = trained(by_batch, size)
    assert sharing is Sharing.STREAM
    assert {value for rank in batches for value in flat(rank)} == set(range(COUNT))
    assert [len(rank) for rank in batches] == [8 // size] * size
    warned = [message for message in caplog.messages if "(DataLoader with Endless)" in message]
    assert len(warned) == (size > 1)

    def by_sample(_):
        return td.DataLoader(Numbers(), batch_size=4, sampler=Endless(td.RandomSampler(Numbers())))

    if size == 1:
        assert trained(by_sample, size)[0] is Sharing.STREAM
    else:
        with pytest.raises(SetupError, match="all 2 ranks got the same first batch"):
            trained(by_sample, size)


class Shard(td.IterableDataset):
    """The rank's part of the numbers, which ends a batch before its length."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __len__(self):
        return 8

    def __iter__(self):
        return iter(range(self.rank, 6 * self.size, self.size))


def test_a_script_that_makes_a_loader_per_epoch_is_told_once_that_the_ranks_data_is_not_divided(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    def body(distributed):
        loaders = ScriptLoaders(distributed, 1)
        for epoch in range(3):
            for what in ("training", "validation"):
                loader = td.DataLoader(Shard(distributed.rank, distributed.size), batch_size=2)
                options = {"per_slot": lambda: 2, "batch_size": None, "shuffle": None, "options": {}}
                made = loaders.shares(loader, "ctx.loader", what, **options)
                if what == "training":
                    assert len(list(Loader(made, Progress(epoch), ranks=2))) == 4
                else:
                    assert len(list(ValidationLoader(made))) == 3

    assert in_ranks(2, body) == [None, None]
    told = [message for message in caplog.messages if "is not divided by the library" in message]
    assert [("training" in text, "compare their first batches" in text) for text in told] == [
        (True, True),
        (False, False),
    ]
    assert all("iterates its loader unchanged" in text for text in told)
    # Each rank has a log of its own.
    assert sum("yields fewer batches than its length of 4" in message for message in caplog.messages) == 2


def test_a_stream_that_is_empty_on_one_rank_is_named_there_before_the_rank_waits_for_another_one():
    class Empty(Shard):
        def __iter__(self):
            return iter(())

    loader = td.DataLoader(Empty(1, 2), batch_size=2)
    errors = in_ranks(2, lambda d: Shares(loader, d, 1, "training").nothing())
    assert str(errors[1]).startswith("The training data loader yields no batch on rank 1.")
    # An exchange fails, because there is no other rank.
    alone = Distributed(RankEnvironment(rank=1, world_size=2))
    stream = Stream(loader, alone, 1, "training", SeedPlan(), lambda: errors[1])
    with pytest.raises(EmptyLoaderError, match="on rank 1"):
        next(stream.epoch(0, 0, 4))


def test_a_sampler_without_a_length_is_a_stream():
    class Lengthless(td.Sampler):
        def __iter__(self):
            return itertools.count()

    def body(d):
        shares = Shares(td.DataLoader(Numbers(), sampler=Lengthless()), d, 5, "training")
        return shares.sharing, shares.length()

    assert in_ranks(2, body) == [(Sharing.STREAM, None)] * 2


class Thousandfold(td.DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 1000


class Prefetching(td.DataLoader):
    """Changes the iterator inside, as PyTorch Geometric's NodeLoader does."""

    def _get_iterator(self):
        return map(torch.neg, super()._get_iterator())


class MultiEpochs(td.DataLoader):
    """Keeps its workers over epochs, as timm's loader of that name."""

    class Repeat:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            while True:
                yield from iter(self.sampler)

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", self.Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Stateful(td.DataLoader):
    """Counts what it handed out, as torchdata's StatefulDataLoader."""

    def __iter__(self):
        self.given = 0
        for batch in super().__iter__():
            self.given += 1
            yield batch


@pytest.mark.parametrize(
    ("kind", "first"),
    [(Thousandfold, [0, 1000]), (Prefetching, [0, -1]), (MultiEpochs, [0, 1]), (Stateful, [0, 1])],
)
def test_a_subclass_that_iterates_by_itself_is_iterated_and_not_rebuilt(kind, first):
    made = []

    def make(d):
        made.append(kind(Numbers(), batch_size=2, sampler=DistributedSampler(Numbers(), d.size, d.rank, shuffle=False)))
        return made[-1]

    sharing, batches = trained(make)
    assert sharing is Sharing.STREAM
    second = first[1]
    assert [rank[0] for rank in batches] == [[0, 2 * second], [second, 3 * second]]
    assert [len(rank) for rank in batches] == [8, 8]
    if kind is Stateful:
        assert [loader.given for loader in made] == [8, 8]
    assert validated(lambda _: kind(Numbers(), batch_size=2))[1][0] == first


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [Thousandfold, Prefetching, MultiEpochs, Stateful])
def test_a_subclass_that_gives_each_rank_all_samples_is_refused(kind, shuffle):
    with pytest.raises(SetupError) as caught:
        trained(lambda _: kind(Numbers(), batch_size=2, shuffle=shuffle))
    assert str(caught.value).startswith(
        f"The training data ({kind.__name__} of Numbers) must give each rank a part of its own, but all 2 ranks got "
        "the same first batch: each of them would train on all samples. Pass the data set"
    )
    assert trained(lambda _: kind(Numbers(), batch_size=2, shuffle=shuffle), left_alone=True)[0] is Sharing.STREAM


def test_streams_of_equal_batches_or_of_one_batch_are_not_taken_for_copies():
    constant = [torch.ones(2, 2)] * 4
    assert trained(lambda _: constant) == (Sharing.STREAM, [[batch.tolist() for batch in constant]] * 2)
    assert trained(lambda _: [torch.arange(2)])[0] is Sharing.STREAM


class Graph:
    """Has a method of tensors, as the graphs of PyTorch Geometric."""

    def __init__(self, number):
        self.number = number

    def detach(self):
        return self

    def to_dict(self):
        return {"number": torch.tensor(self.number)}

    def tolist(self):
        return self.number


class Unreadable(Graph):
    def to_dict(self):
        raise RuntimeError("no dictionary")


def test_batches_of_other_libraries_are_compared_where_they_can_be_read():
    def graphs(kind, divides):
        return lambda d: [kind(i + 10 * d.rank * divides) for i in range(3)]

    with pytest.raises(SetupError, match="all 2 ranks got the same first batch"):
        trained(graphs(Graph, divides=False))
    assert trained(graphs(Graph, divides=True))[1] == [[0, 1, 2], [10, 11, 12]]
    assert trained(graphs(Unreadable, divides=False))[1] == [[0, 1, 2]] * 2


def test_copies_are_noticed_also_by_a_rank_that_resumes_in_an_epoch():
    with pytest.raises(SetupError, match="all 2 ranks got the same first batch"):
        trained(lambda _: Stateful(Numbers(), batch_size=2), offset=3)


def test_a_loader_that_is_to_be_left_alone_is_iterated_as_it_is(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    experimental = pytorch.PyTorchExperimentalContext()
    experimental.disable_dataset_reproducibility_checks()
    sharing, batches = trained(lambda _: td.DataLoader(Numbers(), batch_size=4), left_alone=experimental.left_alone)
    assert sharing is Sharing.STREAM
    assert [flat(rank) for rank in batches] == [list(range(COUNT))] * 2
    assert not caplog.messages
    assert trained(lambda _: pytorch.DataLoader(Numbers(), batch_size=4), left_alone=True)[0] is Sharing.CUT
    sampler = DistributedSampler(Numbers(), 1, 0)
    for epoch in (0, 1):
        trained(lambda _: td.DataLoader(Numbers(), sampler=sampler), 1, epoch, left_alone=experimental.left_alone)
        assert sampler.epoch == epoch


class Lines(td.IterableDataset):
    """A stream that shuffles in the main process and augments each sample."""

    def __iter__(self):
        order = random.sample(range(8), 8)
        for number in order:
            yield number + float(torch.rand(()))

    def __len__(self):
        return 8


@pytest.mark.parametrize("length", [8, 12])
def test_a_resumed_stream_yields_what_the_unbroken_one_had_left(length):
    def stream():
        shares = in_ranks(1, lambda d: Shares(td.DataLoader(Lines(), batch_size=None), d, 5, "training"))[0]
        return shares

    torch.manual_seed(1)
    random.seed(1)
    unbroken, left = [], []
    state = None
    for number, batch in enumerate(stream().training(3, 0, length), 1):
        unbroken.append(float(batch))
        torch.rand(())  # what training draws
        if number == 5:
            state = torch.get_rng_state()
    random.seed(9)
    torch.set_rng_state(state)
    for batch in stream().training(3, 5, length):
        left.append(float(batch))
        torch.rand(())
    assert left == unbroken[5:]


def test_a_stream_that_resumes_past_its_end_yields_nothing():
    def make(_):
        return td.DataLoader(Lines(), batch_size=2)

    assert [len(trained(make, size=1, offset=offset)[1][0]) for offset in (3, 4, 9)] == [1, 0, 0]


def test_a_position_counts_batches_when_a_loader_becomes_a_stream_or_ceases_to_be_one(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    def body(d):
        cut = Shares(td.DataLoader(Numbers(), batch_size=4), d, 5, "training")
        stream = Shares(Thousandfold(Numbers(), batch_size=4), d, 5, "training", left_alone=True)
        kept = [cut.converted(16, 4, "own"), cut.converted(16, 4, ""), stream.converted(3, 3, "stream")]
        return kept, [stream.converted(16, 2, "cut"), stream.converted(16, 2, ""), cut.converted(3, 3, "stream")]

    assert in_ranks(2, body) == [([16, 16, 3], [2, 2, 24])] * 2
    warned = [message for message in caplog.messages if "some samples may be repeated or skipped" in message]
    assert len(warned) == 3, "rank 0 warns"
    assert "is 'stream' now and was 'cut' when the checkpoint was written. Training resumes after 2" in warned[0]


@pytest.mark.parametrize(
    ("of", "length"),
    [("data set", 10**12), *(("sampler", length) for length in (10**12, sys.maxsize, sys.maxsize + 1, -1))],
)
def test_a_length_that_stands_for_endless_makes_a_stream(of, length):
    def body(d):
        if of == "sampler":
            loader = td.DataLoader(Numbers(), sampler=Drawn(itertools.count, length), batch_size=4)
        else:
            loader = td.DataLoader(Numbers(length), batch_size=4)
        shares = Shares(loader, d, 5, "training")
        first = list(itertools.islice(shares.training(0, 0, None), 2))
        return shares.sharing, shares.length(), [batch.tolist() for batch in first]

    whole = -(-length // 4) if 0 < length <= sys.maxsize else None
    assert in_ranks(1, body) == [(Sharing.STREAM, whole, [[0, 1, 2, 3], [4, 5, 6, 7]])]


def test_a_replacing_sampler_of_huge_length_starts_at_once():
    def make(_):
        return td.DataLoader(Numbers(), sampler=td.RandomSampler(Numbers(), replacement=True, num_samples=10**12))

    assert in_ranks(1, lambda d: Shares(make(d), d, 5, "training").sharing) == [Sharing.STREAM]


def test_a_loader_whose_length_raises_has_none():
    class Combined:
        def __iter__(self):
            return iter([1, 2])

        def __len__(self):
            raise RuntimeError("Please call `iter(combined_loader)` first.")

    assert in_ranks(1, lambda d: Shares(Combined(), d, 5, "training").length()) == [None]


def test_indices_whose_equality_is_not_known_make_a_stream():
    class Key:
        def __init__(self, number, rank):
            self.number, self.rank = number, rank

    class Keyed(Numbers):
        def __getitem__(self, key):
            return key.number

    globals()["Key"] = Key
    Key.__qualname__ = "Key"

    def make(mark):
        def sampler(d):
            return [Key(i + mark * d.rank, d.rank * mark) for i in range(COUNT)]

        return lambda d: td.DataLoader(Keyed(), batch_size=4, sampler=sampler(d))

    assert trained(make(0))[0] is Sharing.CUT
    assert trained(make(1))[0] is Sharing.STREAM


OF_NINE = [[0, 2, 4, 6], [1, 3, 5, 7], [8]]


class Parts(td.IterableDataset):
    """Gives each loader worker its part of 0, 1, ... and keeps ``length`` apart from what it yields."""

    def __init__(self, count, length=None, first=0):
        self.count, self.length, self.first = count, length or count, first

    def __iter__(self):
        worker = td.get_worker_info()
        numbers = itertools.count() if self.count is None else range(self.first, self.first + self.count)
        return itertools.islice(numbers, worker.id, None, worker.num_workers)

    def __len__(self):
        return self.length


class OfParts(Small):
    """Trains on a stream of loader workers and notes the numbers, and the last batch of each epoch."""

    dataset, workers, drop_last = Parts(10), 2, False

    def __init__(self, context):
        super().__init__(context)
        self.seen, self.ends, self.validated, self.steps = [[]], [], [], 0

    def build_training_data_loader(self):
        return td.DataLoader(self.dataset, batch_size=4, num_workers=self.workers, drop_last=self.drop_last)

    def get_batch_length(self, batch):
        return len(batch)

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.seen.extend([] for _ in range(epoch_idx + 1 - len(self.seen)))
        self.seen[epoch_idx].append(batch.tolist())
        if self.context.is_epoch_end():
            self.ends.append(batch_idx)
        inputs = self.inputs[:4] * float(batch.sum())
        return super().train_batch((inputs, self.labels[:4]), epoch_idx, batch_idx)

    def evaluate_batch(self, batch):
        self.validated.append(len(self.trained))
        return super().evaluate_batch(batch)


def of_parts(**attributes):
    return Kept(type("OfParts", (OfParts,), attributes))


def test_workers_that_round_up_train_all_samples_in_each_epoch(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    monkeypatch.chdir(tmp_path)
    kept = of_parts()
    kept.run({"epochs": 2}, config={"min_validation_period": {"epochs": 1}})
    batches = [[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]
    assert len(td.DataLoader(Parts(10), batch_size=4, num_workers=2)) == 3
    assert kept.trial.seen == [batches, batches]
    assert (kept.trial.ends, sorted({*kept.trial.validated})) == ([3, 7], [4, 8])
    assert "its length" not in caplog.text


def test_the_end_of_each_epoch_is_found_anew(tmp_path, monkeypatch):
    class Shrinking(Parts):
        def set_epoch(self, epoch):
            self.count = 10 - epoch

    monkeypatch.chdir(tmp_path)
    kept = of_parts(dataset=Shrinking(10))
    kept.run({"epochs": 2})
    assert kept.trial.seen == [[*OF_NINE, [9]], OF_NINE]


def test_workers_that_drop_their_last_batches_end_the_epoch_early(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = of_parts(dataset=Parts(14), drop_last=True)
    kept.run({"epochs": 2}, config={"min_validation_period": {"epochs": 1}})
    assert len(td.DataLoader(Parts(14), batch_size=4, num_workers=2, drop_last=True)) == 3
    assert kept.trial.seen == [[[0, 2, 4, 6], [1, 3, 5, 7]]] * 2
    assert (kept.trial.ends, sorted({*kept.trial.validated})) == ([1, 3], [2, 4])


@pytest.mark.nightly("2", "4", "6", "8")
@pytest.mark.parametrize("stop_at", [2, 4, 5, 6, 8])
def test_a_trial_resumes_in_an_epoch_that_is_longer_than_its_length(tmp_path, monkeypatch, stop_at):
    monkeypatch.chdir(tmp_path)
    kept, whole = of_parts(dataset=Parts(15), workers=3), of_parts(dataset=Parts(15), workers=3)
    config = {"checkpoint_policy": "best", "optimizations": {"aggregation_frequency": 4}}
    whole.run({"epochs": 2}, config=config)
    assert [len(epoch) for epoch in whole.trial.seen] == [6, 6]
    kept.run({"batches": stop_at}, config=config, checkpoint_dir=tmp_path / "c")
    kept.run({"epochs": 2}, config=config, checkpoint_dir=tmp_path / "c")
    assert sum(kept.trial.seen, []) == sum(whole.trial.seen, [])[stop_at:]
    if stop_at % 4 == 0:  # A stop inside a group of batches ends the group.
        assert digest(kept.trial) == digest(whole.trial)


@pytest.mark.parametrize(
    ("dataset", "epoch", "told"),
    [
        (Parts(None, 10), [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14]], "more batches than its length of 3"),
        (Parts(3, 20), [[0, 2], [1], [0, 2], [1], [0, 2]], "fewer batches than its length of 5"),
        (
            Parts(9, 20),
            [[0, 2, 4, 6], [1, 3, 5, 7], [8], [0, 2, 4, 6], [1, 3, 5, 7]],
            "fewer batches than its length of 5",
        ),
    ],
)
def test_a_length_that_is_wrong_is_kept_with_a_warning(tmp_path, monkeypatch, caplog, dataset, epoch, told):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    monkeypatch.chdir(tmp_path)
    kept = of_parts(dataset=dataset)
    kept.run({"epochs": 2})
    assert kept.trial.seen == [epoch, epoch]
    warned = [message for message in caplog.messages if "its length" in message]
    assert len(warned) == 1
    assert f"The training data (Parts) yields {told}, on the rank where it is shortest." in warned[0]


def test_the_ranks_agree_on_the_shortest_end_of_an_epoch():
    def body(d):
        dataset = Parts(18, first=14) if d.rank else Parts(14)  # 6 batches, or 5
        shares = Shares(td.DataLoader(dataset, batch_size=4, num_workers=3), d, 5, "training")
        length = shares.length()
        batches = shares.training(0, 0, length)
        settles_at = shares.settles_at
        first = list(itertools.islice(batches, settles_at))
        changed = shares.settle()
        return length, settles_at, changed, shares.drawn, len(first) + len(list(batches))

    assert in_ranks(2, body) == [(4, 1, True, 5, 5)] * 2
