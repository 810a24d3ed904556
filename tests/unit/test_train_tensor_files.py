"""Tensor files of a checkpoint: blocks of any part, an index that is not trusted, and the export as one file."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import struct
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint import description, disk, reading, save_plan, tensor_source  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.save_plan import TensorPart  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES, TensorFile, memory  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.tensor_index import INDEX, Box, TensorIndex  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.tensor_tree import PLACEHOLDER  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import DamagedCheckpointError  # noqa: E402
from tests.support import stored  # noqa: E402

ALONE = Distributed(RankEnvironment())


def cut(tensor, cuts):
    """Return the boxes into which cuts along each dimension divide a tensor."""
    ranges = []
    for size, points in zip(tensor.shape, cuts, strict=True):
        edges = [0, *points, size]
        ranges.append([(start, end - start) for start, end in itertools.pairwise(edges)])
    return [Box(tuple(s for s, _ in box), tuple(n for _, n in box)) for box in itertools.product(*ranges)]


def write(folder, ranks, more=None):
    """Write a checkpoint whose ranks hold ``(key, whole tensor, box)``."""
    everyones = [
        [TensorPart(key, DTYPES.by_dtype[t.dtype], tuple(t.shape), box, True) for key, t, box in rank] for rank in ranks
    ]
    contents = {
        save_plan.file_name(number): TensorFile([part.slot for part in parts], [_part(t, box) for _, t, box in rank])
        for number, (parts, rank) in enumerate(zip(everyones, ranks, strict=True))
    }
    names = sorted({key for rank in ranks for key, _, _ in rank})
    state = {"models": [{name.removeprefix("models.0."): {PLACEHOLDER: name} for name in names}]}
    index = save_plan.index_of(everyones).text()
    return stored.write(folder, 1, {disk.STATE: state, INDEX: index, **contents, **(more or {})}, {})


def _part(tensor, box):
    return tensor[tuple(slice(a, a + n) for a, n in zip(box.offsets, box.sizes, strict=True))].clone()


def source(found):
    return reading.open_state(found, found.metadata, ALONE)[1]


@pytest.mark.parametrize("block_bytes", [1, 40, 1 << 20])
def test_every_part_of_a_tensor_is_read_from_any_parts_that_were_saved(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(tensor_source, "BLOCK_BYTES", max(4, block_bytes))
    whole = torch.arange(5 * 4 * 6, dtype=torch.float32).view(5, 4, 6)
    layouts = [((), (), ()), ((2, 3), (), ()), ((), (1,), (4,)), ((1,), (2,), (3,))]
    for number, cuts in enumerate(layouts):
        boxes = cut(whole, cuts)
        found = write(tmp_path / str(number), [[("models.0.w", whole, box)] for box in boxes])
        files = source(found)
        target = torch.zeros_like(whole)
        files.load([("models.0.w", target)])
        assert torch.equal(target, whole)
        strided = torch.zeros(6, 5, 4).permute(1, 2, 0)
        files.load([("models.0.w", strided)])
        assert torch.equal(strided, whole)
        flat = torch.cat([piece.reshape(-1) for piece in files.pieces("models.0.w")])
        assert torch.equal(flat, whole.reshape(-1))


def test_numbers_are_converted_to_the_type_of_the_target(tmp_path):
    whole = torch.randn(7, 3)
    files = source(write(tmp_path, [[("models.0.w", whole, Box((0, 0), (7, 3)))]]))
    target = torch.zeros(7, 3, dtype=torch.bfloat16)
    files.load([("models.0.w", target)])
    assert torch.equal(target, whole.to(torch.bfloat16))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_each_type_of_number_comes_back_bit_for_bit(tmp_path, dtype):
    whole = torch.randint(0, 2, (9, 2)).to(dtype)
    files = source(write(tmp_path, [[("models.0.w", whole, Box((0, 0), (9, 2)))]]))
    target = torch.zeros_like(whole)
    files.load([("models.0.w", target)])
    assert bytes(memory(target)) == bytes(memory(whole))


def test_a_tensor_without_dimensions_is_read(tmp_path):
    files = source(write(tmp_path, [[("models.0.w", torch.tensor(4.5), Box((), ()))]]))
    target = torch.zeros(())
    files.load([("models.0.w", target)])
    assert target.item() == 4.5
    assert [piece.item() for piece in files.pieces("models.0.w")] == [4.5]


FILES = {"rank-00000.safetensors": {"size_bytes": 1000, "sha256": ""}}


def entry(shape=(4, 2), chunks=None, dtype="F32"):
    chunks = [["rank-00000.safetensors", 100, [0, 0], [4, 2]]] if chunks is None else chunks
    return {"w": {"dtype": dtype, "shape": list(shape), "sharded": True, "chunks": chunks}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (entry(dtype="P64"), "dtype 'P64' is not known"),
        (entry(chunks=[["rank-00000.safetensors", 990, [0, 0], [4, 2]]]), "exceeds the file"),
        (entry(chunks=[["../../etc/passwd", 0, [0, 0], [4, 2]]]), "etc/passwd"),
        (entry(chunks=[["rank-00000.safetensors", 0, [0, 0], [3, 2]]]), "do not add up"),
        (entry(chunks=[["rank-00000.safetensors", 0, [1, 0], [4, 2]]]), "exceeds the shape"),
        (entry(chunks=[["rank-00000.safetensors", -1, [0, 0], [4, 2]]]), "whole numbers from 0"),
        (entry(chunks=[["rank-00000.safetensors", True, [0, 0], [4, 2]]]), "whole numbers from 0"),
        (entry(chunks=[["rank-00000.safetensors", 0, [0], [8]]]), "another number of dimensions"),
        (entry(chunks=[["rank-00000.safetensors", 0, [0, 0], [2, 2]]] * 2), "two parts overlap"),
        (entry(shape=[1 << 62, 2]), "whole numbers from 0"),
        (entry(shape=[1] * 65, chunks=[]), "at most 64"),
        (entry(shape=(4, 2.0)), "whole numbers from 0"),
        (entry(chunks=[None]), INDEX),
        ({"w": None}, INDEX),
        ([], INDEX),
    ],
)
def test_an_index_that_lies_is_damage_and_allocates_nothing(document, words):
    with pytest.raises(DamagedCheckpointError, match=words):
        TensorIndex.parse(json.dumps(document).encode(), FILES)


def test_a_small_file_does_not_become_large_tensors():
    document = {f"w{number}": entry()["w"] for number in range(100)}
    with pytest.raises(DamagedCheckpointError, match="more bytes than the files"):
        TensorIndex.parse(json.dumps(document).encode(), FILES)


class Executed:
    """A pickle that leaves a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_of_a_checkpoint_is_unpickled(tmp_path):
    mark = tmp_path / "executed"
    evil = pickle.dumps(Executed(mark))
    pickle.loads(evil)  # noqa: S301
    assert mark.exists()
    mark.unlink()
    whole = torch.ones(2, 2)
    # Names of torch.distributed.checkpoint beside ours, and an index that is a pickle with a correct checksum.
    ranks = [[("models.0.w", whole, Box((0, 0), (2, 2)))]]
    found = write(tmp_path / "a", ranks, {".metadata": evil, "__0_0.distcp": evil})
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.zeros(2, 2))
    dtrain.load_weights(model, found.path)
    assert torch.equal(model.w, whole)
    broken = write(tmp_path / "b", ranks, {INDEX: evil})
    with pytest.raises(DamagedCheckpointError, match=r"tensors.json cannot be read"):
        dtrain.load_weights(model, broken.path)
    assert not mark.exists()


def test_a_key_without_tensor_is_damage(tmp_path):
    contents = {disk.STATE: {"models": [{"w": {PLACEHOLDER: "gone"}}]}, INDEX: b"{}"}
    found = stored.write(tmp_path, 1, contents, {})
    with pytest.raises(DamagedCheckpointError, match="the tensor gone, which tensors.json does not have"):
        reading.open_state(found, found.metadata, ALONE)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Save a checkpoint of a model with tied weights. Return the model and the folder."""
    monkeypatch.chdir(tmp_path)
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / "kept") as ctx:
        model = ctx.prepare(Tied())
        path = ctx.save_checkpoint(3)
    return model, path


def test_weights_are_exported_as_one_safetensors_file_with_tied_names(kept, tmp_path):
    model, path = kept
    file = dtrain.export_weights(path, tmp_path / "model.safetensors")
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    document = json.loads(content[8 : 8 + length])
    assert document.pop("__metadata__") == {"format": "pt", "head.weight": "embed.weight"}
    assert set(document) == set(model.state_dict()) - {"head.weight"}
    assert len(content) == 8 + length + sum(
        math.prod(e["shape"]) * (8 if e["dtype"] == "I64" else 4) for e in document.values()
    )
    for name, found in document.items():
        start, end = found["data_offsets"]
        assert content[8 + length + start : 8 + length + end] == bytes(memory(model.state_dict()[name].contiguous()))
    assert [one.name for one in tmp_path.iterdir() if "model" in one.name] == ["model.safetensors"]


def test_other_programs_read_the_export(kept, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, path = kept
    other = Tied()
    safetensors.load_model(other, dtrain.export_weights(path, tmp_path / "model.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))


def test_an_export_that_cannot_be_written_says_so_and_leaves_nothing(kept, tmp_path):
    with pytest.raises(dtrain.CheckpointError, match=r"cannot be written to .*gone/model.safetensors"):
        dtrain.export_weights(kept[1], tmp_path / "gone" / "model.safetensors")
    with pytest.raises(dtrain.CheckpointError, match="holds 1 models, so it has no model 1"):
        dtrain.export_weights(kept[1], tmp_path / "model.safetensors", index=1)
    assert not list(tmp_path.glob("*model*"))


def test_the_weights_of_the_second_model_are_loaded_and_exported_by_its_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / "kept") as ctx:
        _, second = ctx.prepare(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        path = ctx.save_checkpoint(1)
    other = torch.nn.Linear(2, 2)
    dtrain.load_weights(other, path, index=1)
    assert torch.equal(other.weight, second.weight)
    exported = dtrain.export_weights(path, tmp_path / "second.safetensors", index=1).read_bytes()
    assert bytes(memory(second.weight.detach())) in exported


def test_a_compiled_model_and_a_plain_one_have_the_same_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / "kept") as ctx:
        inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.compile(torch.nn.Linear(2, 2)))
        ctx.prepare(torch.compile(inner))
        path = ctx.save_checkpoint(1)
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    dtrain.load_weights(plain, path)
    assert torch.equal(plain[1].weight, inner[1]._orig_mod.weight)
    again = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.compile(torch.nn.Linear(2, 2))))
    dtrain.load_weights(again, path)
    assert torch.equal(again._orig_mod[1]._orig_mod.weight, plain[1].weight)


def test_a_file_that_is_cut_after_the_check_is_named(tmp_path):
    found = write(tmp_path, [[("models.0.w", torch.ones(64), Box((0,), (64,)))]])
    files = TensorSource(
        TensorIndex.parse((found.path / INDEX).read_bytes(), found.metadata["files"]), found.path, ALONE
    )
    (found.path / "rank-00000.safetensors").write_bytes(b"")
    with pytest.raises(dtrain.CheckpointError, match=r"rank-00000.safetensors cannot be read: the file ends too early"):
        files.load([("models.0.w", torch.zeros(64))])


def test_a_copy_without_metadata_as_of_a_bucket_is_read(tmp_path):
    found = write(tmp_path, [[("models.0.w", torch.ones(3), Box((0,), (3,)))]])
    (found.path / description.METADATA).unlink()
    target = torch.zeros(3)
    source(found).load([("models.0.w", target)])
    assert target.tolist() == [1, 1, 1]


def test_a_changed_byte_of_a_tensor_is_damage(kept):
    (file,) = Path(kept[1]).glob("rank-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"sha256 of rank-00000\.safetensors is"):
        disk.whole(Path(kept[1]))
