"""Rows that a processor cannot compute: which ones are found, at what cost, and where they are in the output."""

from __future__ import annotations

import math
import random

import pytest

pa = pytest.importorskip("pyarrow")
torch = pytest.importorskip("torch")

from airflow_provider_dtrain.train.inference.bad_rows import copied_columns, isolated  # noqa: E402
from airflow_provider_dtrain.train.inference.inputs.batch import BadRow, InputBatch  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.marks import marked  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions  # noqa: E402
from airflow_provider_dtrain.train.inference.preview import BYTES_MOST, TEXT_MOST, preview_of  # noqa: E402

pytestmark = pytest.mark.torch


def batch(ids, **fields):
    data = {"x": torch.tensor(ids), "text": [str(i) for i in ids]}
    passed = pa.RecordBatch.from_pydict({"id": ids})
    return InputBatch(data, len(ids), passed, ids[0], row_ids=ids, **fields)


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_bad_rows_are_found_and_all_other_rows_have_results_in_order(seed):
    rng = random.Random(seed)  # noqa: S311
    ids = sorted(rng.sample(range(1000), rng.randrange(1, 70)))
    bad = set(rng.sample(ids, rng.randrange(0, min(6, len(ids)) + 1)))
    calls = 0

    def process(part):
        nonlocal calls
        calls += 1
        assert part.data["text"] == [str(i) for i in part.data["x"].tolist()] == [str(i) for i in part.ids]
        assert part.passed.column("id").to_pylist() == list(part.ids)
        if bad & set(part.ids):
            raise ValueError(f"row {min(bad & set(part.ids))} is bad")
        return [2 * i for i in part.ids]

    parts = list(isolated(batch(ids), process, "part-1"))
    assert [value for _, result in parts for value in result or ()] == [2 * i for i in ids if i not in bad]
    rows = [row for part, _ in parts for row in part.bad_rows]
    assert [(row.row_id, row.name, row.error) for row in rows] == [
        (i, "part-1", f"ValueError: row {i} is bad") for i in sorted(bad)
    ]
    assert calls <= 1 + 2 * len(bad) * (math.ceil(math.log2(len(ids))) if len(ids) > 1 else 0)
    assert [i for part, _ in parts for i in (part.ids if part.rows else [part.bad_rows[0].row_id])] == ids


def test_an_exception_of_no_single_row_is_raised_as_it_was():
    def process(part):
        if part.rows > 1:
            raise MemoryError("too many")
        return [0]

    with pytest.raises(MemoryError, match="too many"):
        list(isolated(batch([1, 2, 3]), process, "part-1"))


def test_rows_of_a_collated_batch_are_one_unit():
    def process(_part):
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        list(isolated(batch([1], has_columns=False), process, "part-1"))


def test_a_processor_that_changes_its_batch_does_not_change_that_of_the_next_try():
    given = {"x": torch.arange(3), "text": ["a"]}
    own = copied_columns(given)
    own["x"] += 1
    own["text"].append("b")
    own.pop("x")
    assert (given["x"].tolist(), given["text"]) == ([0, 1, 2], ["a"])


def test_bad_rows_are_marked_at_their_places_with_nulls_of_each_type():
    options = OutputOptions(columns=("id",), row_id="row", marks=True)
    columns = {"row": [4, 6], "id": ["a", "b"], "v": [[1.0, 2.0]] * 2, "error": pa.nulls(2, pa.string())}
    rows = pa.RecordBatch.from_pydict(columns)
    found = marked(rows, [4, 6], [BadRow(5, "in.csv line 6", "e" * 999), BadRow(3, "n", "f")], options)
    assert found.schema == rows.schema
    assert found.column("row").to_pylist() == [3, 4, 5, 6]
    assert found.column("id").to_pylist() == [None, "a", None, "b"]
    assert found.column("v").to_pylist() == [None, [1.0, 2.0], None, [1.0, 2.0]]
    errors = found.column("error").to_pylist()
    assert (errors[0], len(errors[2]), errors[1::2]) == ("n: f", 300, [None, None])


def test_a_preview_is_short_whatever_the_results_are():
    wide = {f"c{i}": pa.array([1.5, float("nan")]) for i in range(60)}
    found = preview_of([pa.RecordBatch.from_pydict(wide)], 20)
    assert (len(found["columns"]), found["columns_in_all"], found["rows"][1][0]) == (40, 60, "nan")
    image = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 300_000), 150_000)
    columns = {
        "image": image, "bytes": pa.array([b"\0" * 9, None]), "text": pa.array(["\u00e9" * 10_000, "\x1b"]),
        "nested": pa.array([{"a": [1, 2]}, None]), "empty": pa.array([[], None], pa.list_(pa.int64())),
    }  # fmt: skip
    (first, second) = preview_of([pa.RecordBatch.from_pydict(columns)], 20)["rows"]
    assert first[0].startswith("[0.5, 0.5")
    assert first[0].endswith("150,000 in all]")
    assert (first[1], second[1], len(first[2]), second[2]) == ("9 bytes", None, TEXT_MOST, "\x1b")
    assert (first[3], second[3], first[4]) == ("{'a': [1, 2]}", None, "[]")
    texts = pa.RecordBatch.from_pydict({f"c{i}": ["\U0001f600" * 200] * 100 for i in range(40)})
    found = preview_of([texts, texts], 100)
    assert 0 < len(found["rows"]) < 100
    assert len(str(found["rows"])) <= BYTES_MOST
