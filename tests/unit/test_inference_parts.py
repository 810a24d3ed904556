"""Parts of a batch inference in JSON lines, and their memory."""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import json
import math

import pytest

from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.torch

import pyarrow.parquet as pq  # noqa: E402

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


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
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


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_slices_of_passed_columns_are_their_own_rows(kind):
    options = OutputOptions.parse({"format": kind, "columns": ["id", "v"]})
    file = io.BytesIO()
    writer = PartWriter(file, options)
    vectors = pa.array([[i, i + 0.5] for i in range(10)], pa.list_(pa.float32(), 2))
    rows = pa.RecordBatch.from_pydict({"id": pa.array(range(10)), "v": vectors})
    for start in (4, 2):
        batch = InputBatch(None, 2, rows.slice(start, 2), start)
        writer.write(to_rows({"y": torch.ones(2)}, batch, options))
    writer.close()
    file.seek(0)
    found = pq.read_table(file).to_pylist() if kind == "parquet" else map(json.loads, file)
    assert [(row["id"], row["v"]) for row in found] == [(i, [i, i + 0.5]) for i in (4, 5, 2, 3)]
