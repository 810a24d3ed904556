"""Parts of a batch inference in JSON lines and safetensors, read back by other programs."""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import json
import math

import pytest

from airflow_provider_dtrain.train.errors import SchemaError
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.torch

from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.rows import to_rows  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.writers import PartWriter  # noqa: E402


def written(kind, *results, rows=2, file=None, **settings):
    options = OutputOptions.parse({"format": kind, **settings})
    file = file or io.BytesIO()
    writer = PartWriter(file, options)
    for number, result in enumerate(results):
        writer.write(to_rows(result, InputBatch(None, rows, None, number * rows), options))
    return writer.close(), file


def json_rows(*results, **settings):
    info, file = written("jsonl", *results, **settings)
    lines = file.getvalue().decode().splitlines()
    assert info.rows == len(lines)
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def test_json_lines_have_a_row_per_line_with_plain_values():
    day = datetime.datetime(2026, 1, 2, 3, 4, 5)
    result = {
        "n": [1, None], "s": ["ä\n\u2028", '"'], "b": [b"\x00\xff", None], "t": [day, None], "d": [day.date(), None],
        "c": [decimal.Decimal("1.10"), None], "h": torch.tensor([0.5, 2], dtype=torch.float16),
        "v": torch.eye(2), "o": [{"a": [1.5]}, None], "ns": pa.array([1, None], pa.timestamp("ns")),
    }  # fmt: skip
    assert json_rows(result, row_id="row") == [
        {"row": 0, "n": 1, "s": "ä\n\u2028", "b": "AP8=", "t": "2026-01-02T03:04:05", "d": "2026-01-02", "c": "1.10",
         "h": 0.5, "v": [1.0, 0.0], "o": {"a": [1.5]}, "ns": "1970-01-01T00:00:00.000000001"},
        {"row": 1, "n": None, "s": '"', "b": None, "t": None, "d": None, "c": None, "h": 2.0, "v": [0.0, 1.0],
         "o": None, "ns": None},
    ]  # fmt: skip


def test_numbers_that_json_does_not_have_are_null_and_that_is_logged_once(caplog):
    first = {"x": [math.nan, 1.0], "v": torch.tensor([[math.inf, 1], [-math.inf, 2]])}
    rows = json_rows(first, {"x": [math.inf, 2.0], "v": torch.ones(2, 2)})
    assert rows == [
        {"x": None, "v": [None, 1.0]}, {"x": 1.0, "v": [None, 2.0]}, {"x": None, "v": [1.0, 1.0]},
        {"x": 2.0, "v": [1.0, 1.0]},
    ]  # fmt: skip
    assert caplog.text.count("written as null") == 1


@pytest.mark.parametrize("kind", ["jsonl", "safetensors"])
def test_a_part_without_rows_is_a_readable_file(kind):
    info, file = written(kind, None)
    assert (info.rows, dict(info.schema)) == (0, {})
    if kind == "jsonl":
        assert file.getvalue() == b""
    else:
        assert safetensors_torch.load(file.getvalue()) == {}


def test_safetensors_hold_each_column_as_one_tensor(tmp_path):
    batches = [
        {
            "embedding": torch.randn(2, 3, 4), "half": torch.randn(2).half(), "label": torch.tensor([i, -i]),
            "flag": [True, False], "byte": torch.tensor([[i], [255]], dtype=torch.uint8), "score": [0.5, float("nan")],
        }
        for i in range(5)
    ]  # fmt: skip
    with open(tmp_path / "part.safetensors", "wb") as file:
        info, _ = written("safetensors", *batches, file=file, row_id="row")
    found = safetensors_torch.load_file(tmp_path / "part.safetensors")
    assert list(tmp_path.iterdir()) == [tmp_path / "part.safetensors"]
    assert info.rows == 10
    assert info.schema["embedding"] == "float32[3,4]"
    assert found["row"].tolist() == list(range(10))
    for name in batches[0]:
        expected = torch.cat([torch.as_tensor(one[name]) for one in batches])
        assert torch.equal(found[name].nan_to_num(7), expected.to(found[name].dtype).nan_to_num(7)), name
    assert {name: one.dtype for name, one in found.items()} == {
        "embedding": torch.float32, "half": torch.float16, "label": torch.int64, "flag": torch.bool,
        "byte": torch.uint8, "score": torch.float64, "row": torch.int64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"s": ["a", "b"]}, "'s' is string, which safetensors cannot hold"), ({"x": [1, None]}, "'x' has nulls"),
        ({"x": [[1], [2, 3]]}, "'x' is list<int64>"), ({"__metadata__": [1, 2]}, "'__metadata__' is int64"),
        ({"x": [[1, None], [1, 2]]}, "list"),
    ],
)  # fmt: skip
def test_columns_that_are_no_tensors_are_refused_by_name(result, words):
    with pytest.raises(SchemaError, match=words):
        written("safetensors", result)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "safetensors"])
def test_a_large_part_does_not_stay_in_memory(tmp_path, kind, monkeypatch):
    from airflow_provider_dtrain.train.inference.outputs import parquet

    monkeypatch.setattr(parquet, "GROUP_BYTES", 10 * 4000)
    options = OutputOptions.parse({"format": kind})
    with open(tmp_path / "part", "wb") as file:
        writer = PartWriter(file, options)
        for _ in range(55):
            writer.write(to_rows({"x": torch.zeros(1000)}, InputBatch(None, 1000, None, 0), options))
        waiting = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (1000,)]
        assert len(waiting) <= 10
        assert writer.close().rows == 55_000


def test_slices_of_passed_columns_are_their_own_rows():
    options = OutputOptions.parse({"format": "safetensors", "columns": ["id", "v"]})
    file = io.BytesIO()
    writer = PartWriter(file, options)
    vectors = pa.array([[i, i + 0.5] for i in range(10)], pa.list_(pa.float32(), 2))
    rows = pa.RecordBatch.from_pydict({"id": pa.array(range(10)), "v": vectors})
    for start in (4, 2):
        batch = InputBatch(None, 2, rows.slice(start, 2), start)
        writer.write(to_rows({"y": torch.ones(2)}, batch, options))
    writer.close()
    found = safetensors_torch.load(file.getvalue())
    assert found["id"].tolist() == [4, 5, 2, 3]
    assert found["v"].tolist() == [[4, 4.5], [5, 5.5], [2, 2.5], [3, 3.5]]
