"""Map-style data sets that hold another part on each rank, as shards of Hugging Face and partitions of MONAI do."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data as td  # noqa: E402

from airflow_provider_dtrain.train.data.sample_digest import SampleProbe  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402
from tests.support.loaders import trained, validated  # noqa: E402

pytestmark = pytest.mark.torch

COUNT = 16


class Records(td.Dataset):
    """Records of one column, as a shard of a Hugging Face data set: indices from 0, other content on each rank."""

    def __init__(self, values, convert=lambda value: {"x": value}):
        self.values, self.convert = list(values), convert

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.convert(self.values[index])


KINDS = {
    "numbers": lambda value: {"x": value},
    "tensors": lambda value: (torch.tensor([[value]], dtype=torch.bfloat16), 0),
    "texts": lambda value: {"text": f"record {value}", "label": 1},
    "arrays": lambda value: [memoryview(bytes([value]))],
}


def loader(dataset, **options):
    return td.DataLoader(dataset, batch_size=2, collate_fn=lambda batch: torch.zeros(len(batch)), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_set_that_is_a_part_on_each_rank_is_refused_before_it_is_divided_again(kind, shuffle):
    def shard(d):
        return loader(Records(range(d.rank, COUNT, d.size), KINDS[kind]), shuffle=shuffle)

    words = r"\(Records\) must hold the same samples on all ranks, got another first or last sample on rank 1"
    with pytest.raises(SetupError, match=words):
        trained(shard)
    assert all("must hold the same samples" in str(found) for found in validated(shard))


def test_the_whole_data_set_on_each_rank_is_divided_although_samples_are_random():
    def coin(value):
        return {"x": value, "flip": random.random(), "own": random.SystemRandom().random()}

    def augmented(value):
        return {"x": value, "flip": random.random()}

    for convert in (coin, augmented):
        sharing, batches = trained(lambda d, convert=convert: loader(Records(range(COUNT), convert)))
        assert sharing.value == "cut"
        assert [len(rank) for rank in batches] == [4, 4]


def test_paths_and_other_objects_of_a_sample_do_not_count():
    def where(value, rank):
        return {"x": value, "path": f"/scratch/rank{rank}/{value}.png", "object": object()}

    sharing, _ = trained(lambda d: loader(Records(range(COUNT), lambda value: where(value, d.rank))))
    assert sharing.value == "cut"


def test_samples_that_cannot_be_read_are_left_to_training():
    def broken(value):
        raise OSError(f"no record {value}")

    assert SampleProbe(loader(Records(range(COUNT), broken))).digest() == b""
    assert SampleProbe(loader(Records(range(COUNT), lambda _: object()))).digest() == b""


def test_the_probe_leaves_random_numbers_as_they_were():
    generator = torch.Generator().manual_seed(5)
    records = Records(range(COUNT), lambda value: value + torch.rand(1, generator=generator))
    records.generator = generator
    before = generator.get_state(), torch.get_rng_state(), random.getstate()
    probe = SampleProbe(loader(records))
    assert probe.digest() == probe.digest() != b""
    assert probe.is_steady()
    after = generator.get_state(), torch.get_rng_state(), random.getstate()
    assert all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(before, after, strict=True))


class Opened(td.Dataset):
    """Opens its file at the first access, which belongs into the workers."""

    opened = False

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.opened = True
        return index


def test_with_workers_a_worker_reads_the_samples():
    here, there = Opened(), Opened()
    assert SampleProbe(loader(here)).digest() == SampleProbe(loader(there, num_workers=1)).digest() != b""
    assert (here.opened, there.opened) == (True, False)


@pytest.mark.nightly
def test_shards_of_hugging_face_data_sets_are_refused_and_those_of_an_iterable_one_are_streams():
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    whole = datasets.Dataset.from_dict({"x": list(range(COUNT))}).with_format("torch")

    def split(data, d):
        return distributed.split_dataset_by_node(data, rank=d.rank, world_size=d.size)

    for part in (lambda d: whole.shard(d.size, d.rank), lambda d: split(whole, d)):
        with pytest.raises(SetupError, match="must hold the same samples"):
            trained(lambda d, part=part: loader(part(d)))
    assert trained(lambda d: loader(whole))[0].value == "cut"
    sharing, batches = trained(lambda d: loader(split(whole.to_iterable_dataset(num_shards=4), d)))
    assert (sharing.value, [len(rank) for rank in batches]) == ("stream", [4, 4])


@pytest.mark.nightly
def test_partitions_of_monai_are_refused():
    monai = pytest.importorskip("monai.data")
    records = [{"x": torch.tensor(value)} for value in range(COUNT)]
    with pytest.raises(SetupError, match="must hold the same samples"):
        trained(lambda d: loader(monai.Dataset(monai.partition_dataset(records, num_partitions=d.size)[d.rank])))
