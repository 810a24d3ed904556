"""Files, images and data sets from code as input of a batch inference."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib

import pytest

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs import open_input
from airflow_provider_dtrain.train.inference.shards import SOURCE_ROWS, Shard

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
pytestmark = pytest.mark.torch


def opened(path, passed=(), **settings):
    return open_input({"path": str(path), **settings}, storage={}, passed=passed)


def sent(found):
    return [Shard.from_dict(json.loads(json.dumps(shard.to_dict()))) for shard in found.plan().shards]


def read(found, batch_size=3, plan_of=None):
    return [batch for shard in sent(plan_of or found) for batch in found.batches(shard, batch_size)]


def test_each_file_is_a_row_with_path_and_bytes(tmp_path):
    for i in range(20):
        (tmp_path / f"{i:02}.bin").write_bytes(bytes([i]) * i)
    found = opened(tmp_path, format="files", shard_rows=8, passed=["path"])
    # Another rank has not planned: it lists the files itself.
    batches = read(opened(tmp_path, format="files", passed=["path"]), plan_of=found)
    assert [one.rows for one in batches] == [3, 3, 2, 3, 3, 2, 3, 1]
    assert [one.first_row for one in batches] == [0, 3, 6, 8, 11, 14, 16, 19]
    assert [content for one in batches for content in one.data["bytes"]] == [bytes([i]) * i for i in range(20)]
    assert [path for one in batches for path in one.passed.column("path").to_pylist()] == [
        str(tmp_path / f"{i:02}.bin") for i in range(20)
    ]
    assert sent(found)[1].label == "files 8-15 from 08.bin"


def test_files_that_change_after_the_plan_are_refused(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name)
    shards = sent(opened(tmp_path, format="files"))
    (tmp_path / "aa").write_text("new")
    with pytest.raises(InputError, match="files have changed since the inference began"):
        list(opened(tmp_path, format="files").batches(shards[0], 2))


@pytest.mark.parametrize(("settings", "passed"), [({"columns": ["path"]}, []), ({}, ["name"])])
def test_files_have_no_columns_but_path(tmp_path, settings, passed):
    (tmp_path / "a").write_text("a")
    with pytest.raises(InputError, match="outputs.columns can only have 'path'"):
        opened(tmp_path, passed, format="files", **settings).plan()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "CMYK", "LA"])
def test_images_of_every_mode_are_rgb_tensors(tmp_path, mode):
    source = Image.new("RGB", (5, 3), (255, 0, 0))
    source.putpixel((4, 2), (0, 255, 0))
    image = source.convert(mode)
    image.save(tmp_path / ("a.tiff" if mode == "CMYK" else "a.png"))
    (batch,) = read(opened(tmp_path))
    (tensor,) = batch.data["image"]
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, (3, 3, 5))
    assert tensor[:, 2, 4].tolist() == list(image.convert("RGB").getpixel((4, 2)))
    if mode == "RGB":
        assert tensor[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_upright_as_pillow_turns_them(tmp_path, orientation):
    image = Image.frombytes("RGB", (4, 2), bytes(range(24)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.png", exif=exif)
    (upright,) = read(opened(tmp_path))
    expected = ImageOps.exif_transpose(Image.open(tmp_path / "a.png"))
    shape = upright.data["image"][0].shape
    assert (shape[2], shape[1]) == expected.size == ((4, 2) if orientation < 5 else (2, 4))
    assert upright.data["image"][0].permute(1, 2, 0).flatten().tolist() == list(expected.tobytes())
    (stored,) = read(opened(tmp_path, orient=False))
    assert stored.data["image"][0].permute(1, 2, 0).flatten().tolist() == list(range(24))


def test_an_image_with_damaged_metadata_is_read_as_it_is(tmp_path):
    Image.new("RGB", (4, 2)).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    (batch,) = read(opened(tmp_path))
    assert tuple(batch.data["image"][0].shape) == (3, 2, 4)


@pytest.mark.parametrize("kind", ["images", "files"])
def test_a_file_that_cannot_be_read_costs_its_row_if_the_user_wishes(tmp_path, kind):
    for i in range(7):
        Image.new("RGB", (2, 2), (i, 0, 0)).save(tmp_path / f"{i}.png")
    found = open_input(
        {"path": str(tmp_path), "format": kind}, storage={}, passed=["path"], skips_bad_rows=True, batch_size=3
    )
    shards = sent(found)
    for i in (1, 3, 4, 5):
        if kind == "images":
            (tmp_path / f"{i}.png").write_bytes(b"\0" * (tmp_path / f"{i}.png").stat().st_size)
        else:
            (tmp_path / f"{i}.png").unlink()
    batches = [batch for shard in shards for batch in found.batches(shard, 3)]
    assert [list(one.ids) for one in batches] == [[0, 2], [], [6]]
    assert [one.rows for one in batches] == [2, 0, 1]
    assert [row.row_id for one in batches for row in one.bad_rows] == [1, 3, 4, 5]
    assert batches[0].bad_rows[0].name == str(tmp_path / "1.png")
    assert [name[-5:] for one in batches for name in one.passed["path"].to_pylist()] == ["0.png", "2.png", "6.png"]


def png_header(width, height):
    """Return a PNG that claims a size, without pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IEND", b"")
    )


def noisy():
    file = io.BytesIO()
    Image.frombytes("RGB", (64, 64), random.Random(0).randbytes(64 * 64 * 3)).save(file, "PNG")
    return file.getvalue()


def deep():
    file = io.BytesIO()
    Image.new("I;16", (2, 2), 40000).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: b"", "its format is unknown"), (lambda: b"<html>", "its format is unknown"),
        (lambda: noisy()[:5000], "truncated|broken|cut"),
        (lambda: png_header(60000, 60000), "DecompressionBombError"), (deep, "more than 8 bits per pixel"),
    ],
    ids=["empty", "html", "truncated", "huge", "16 bits"],
)  # fmt: skip
def test_an_image_that_cannot_be_decoded_is_named(tmp_path, content, words):
    (tmp_path / "b.png").write_bytes(content())
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=words) as caught:
        read(opened(tmp_path))
    assert "b.png cannot be read as an image" in str(caught.value)
    assert " at 0x" not in str(caught.value)


class Squares(torch.utils.data.Dataset):
    def __init__(self, length=20):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([index, index * index]), f"sample {index}"


class Fetched(Squares):
    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def __getitem__(self, index):
        return index


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, length=20):
        self.length = length
        self.yielded = 0

    def __iter__(self):
        for i in range(self.length):
            self.yielded += 1
            yield i


class Folders(Stream):
    def shards(self):
        return [("a", 3), ("b", 0), ("c", 5)]

    def open_shard(self, shard):
        name, count = shard
        return (f"{name}{i}" for i in range(count))


def dataset_input(dataset, collate=None, shard_rows=None):
    return open_input({"shard_rows": shard_rows}, storage={}, dataset=dataset, collate=collate)


def test_a_map_style_data_set_is_cut_by_indices_and_collated_by_torch():
    batches = read(dataset_input(Squares(), shard_rows=8))
    assert [one.rows for one in batches] == [3, 3, 2, 3, 3, 2, 3, 1]
    assert torch.cat([one.data[0] for one in batches]).tolist() == [[i, i * i] for i in range(20)]
    assert [text for one in batches for text in one.data[1]] == [f"sample {i}" for i in range(20)]
    assert [one.first_row for one in batches] == [0, 3, 6, 8, 11, 14, 16, 19]


def test_a_data_set_that_fetches_several_samples_at_once_is_asked_for_a_batch(monkeypatch):
    asked = []
    monkeypatch.setattr(Fetched, "__getitems__", lambda self, indices: asked.append(indices) or list(indices))
    batches = read(dataset_input(Fetched(7), collate=list, shard_rows=5))
    assert asked == [one.data for one in batches] == [[0, 1, 2], [3, 4], [5, 6]]


def test_the_data_set_and_the_collate_function_of_a_loader_are_taken():
    loader = torch.utils.data.DataLoader(
        Squares(4), batch_size=99, collate_fn=lambda samples: [text for _, text in samples]
    )
    assert [one.data for one in read(dataset_input(loader))] == [["sample 0", "sample 1", "sample 2"], ["sample 3"]]


@pytest.mark.parametrize("seed", range(5))
def test_shards_of_an_iterable_data_set_in_any_order_have_their_samples(seed):
    found = dataset_input(Stream(50), collate=list, shard_rows=7)
    shards = sent(found) * 2
    draw = random.Random(seed)
    draw.shuffle(shards)
    for shard in shards:
        if draw.random() < 0.3:
            next(iter(found.batches(draw.choice(shards), 3)))  # A processor that fails in the middle.
        assert [i for one in found.batches(shard, 3) for i in one.data] == list(range(shard.start, shard.stop))


def test_a_rank_iterates_the_samples_before_its_shards_once():
    stream = Stream(50)
    found = dataset_input(stream, collate=list, shard_rows=5)
    shards = sent(found)
    stream.yielded = 0
    assert [one.first_row for shard in shards[1::2] for one in found.batches(shard, 5)] == [5, 15, 25, 35, 45]
    assert stream.yielded == 50


def test_an_iterable_data_set_that_fails_once_begins_anew():
    class Flaky(Stream):
        def __iter__(self):
            for i in super().__iter__():
                if i == 3 and not self.has_failed:
                    self.has_failed = True
                    raise OSError("lost")
                yield i

    stream = Flaky()
    stream.has_failed = True
    found = dataset_input(stream, collate=list)
    shards = sent(found)
    stream.has_failed = False
    with pytest.raises(OSError, match="lost"):
        list(found.batches(shards[0], 8))
    assert [i for shard in shards for one in found.batches(shard, 8) for i in one.data] == list(range(20))


def test_a_data_set_with_shards_of_its_own_is_opened_shard_by_shard():
    found = dataset_input(Folders(), collate=list)
    batches = [list(found.batches(shard, 2)) for shard in sent(found)]
    assert [[one.data for one in part] for part in batches] == [
        [["a0", "a1"], ["a2"]],
        [],
        [["c0", "c1"], ["c2", "c3"], ["c4"]],
    ]
    assert [one.first_row for one in batches[2]] == [2 * SOURCE_ROWS + i for i in (0, 2, 4)]
    assert sent(found)[2].label == "dataset shard 2"


def test_a_data_set_that_differs_between_ranks_is_refused(monkeypatch):
    shards = sent(dataset_input(Squares(20)))
    with pytest.raises(InputError, match="has 10 samples on this rank"):
        list(dataset_input(Squares(10)).batches(shards[-1], 4))
    shards = sent(dataset_input(Stream(20)))
    with pytest.raises(InputError, match="ended after 10 samples"):
        list(dataset_input(Stream(10)).batches(shards[-1], 4))
    shards = sent(dataset_input(Folders()))
    monkeypatch.setattr(Folders, "shards", lambda self: [("z", 1)] * 3)
    with pytest.raises(InputError, match="returned other shards"):
        list(dataset_input(Folders()).batches(shards[0], 4))


@pytest.mark.parametrize("dataset", [Squares(0), Stream(0), [], iter([1]), 5])
def test_what_is_empty_or_no_data_set_is_refused(dataset):
    with pytest.raises(InputError, match="is empty|must be a data set"):
        dataset_input(dataset).plan()


def test_a_data_set_and_a_path_exclude_each_other_and_one_is_needed():
    with pytest.raises(InputError, match="Remove one of them"):
        open_input({"path": "x"}, storage={}, dataset=[1])
    with pytest.raises(InputError, match="set inputs.path, or build a data set"):
        open_input(None, storage={})
    with pytest.raises(InputError, match="no columns to pass through"):
        open_input(None, storage={}, dataset=[1], passed=["id"])
