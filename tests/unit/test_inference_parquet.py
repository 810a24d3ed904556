"""Parquet files as input of a batch inference: plans, shards and batches."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import random

import pytest

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs import open_input
from airflow_provider_dtrain.train.inference.shards import Shard, differences

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.torch


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def opened(path, passed=(), **settings):
    return open_input(
        {"path": str(path) if isinstance(path, os.PathLike) else path, **settings}, storage={}, passed=passed
    )


def read(found, batch_size=7, shards=None):
    """Return the batches of all shards, as ranks read them: with the shards as JSON."""
    shards = found.plan().shards if shards is None else shards
    sent = [Shard.from_dict(json.loads(json.dumps(shard.to_dict()))) for shard in shards]
    assert sent == list(shards)
    return [batch for shard in sent for batch in found.batches(shard, batch_size)]


def column(batches, name):
    return [value for batch in batches for value in batch.data[name]]


def test_every_row_appears_once_with_its_number_in_the_whole_input(tmp_path):
    for number, count in enumerate((100, 1, 0, 57)):
        write(
            tmp_path / f"part-{number}.parquet",
            {"x": pa.array([number * 1000 + i for i in range(count)], pa.int64())},
            row_group_size=10,
        )
    found = opened(tmp_path, shard_rows=16)
    plan = found.plan()
    batches = read(found)
    assert [int(x) for x in column(batches, "x")] == [*range(100), 1000, *range(3000, 3057)]
    assert [batch.first_row for batch in batches] == [sum(one.rows for one in batches[:i]) for i in range(len(batches))]
    assert plan.rows == 158
    assert all(0 < shard.rows <= 16 for shard in plan.shards)
    assert sum(shard.rows for shard in plan.shards) == 158


def test_batches_never_cross_shards_and_only_the_last_one_is_smaller(tmp_path):
    write(tmp_path / "a.parquet", {"x": range(100)}, row_group_size=100)
    found = opened(tmp_path / "a.parquet", shard_rows=30)
    sizes = [[batch.rows for batch in found.batches(shard, 8)] for shard in found.plan().shards]
    assert sizes == [[8, 8, 8, 6]] * 3 + [[8, 2]]


@pytest.mark.parametrize(
    ("groups", "most", "expected"),
    [
        ([10, 10, 10], 10, [(0, 10), (10, 20), (20, 30)]),
        ([10, 10, 10], 25, [(0, 20), (20, 30)]),
        ([25], 10, [(0, 10), (10, 20), (20, 25)]),
        ([4, 25, 4], 10, [(0, 4), (4, 14), (14, 24), (24, 33)]),
        ([0, 5, 0, 0, 5], 10, [(0, 10)]),
        ([0], 10, []),
        ([], 10, []),
    ],
)
def test_shards_follow_row_groups_and_cut_large_ones(groups, most, expected):
    from airflow_provider_dtrain.train.inference.inputs.parquet import ranges

    assert list(ranges(groups, most)) == expected


@pytest.mark.parametrize("seed", range(10))
def test_shards_in_any_order_and_repeated_give_the_same_rows(tmp_path, seed, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import parquet

    monkeypatch.setattr(parquet, "PIECE_ROWS", 9)
    draw = random.Random(seed)
    write(
        tmp_path / "a.parquet",
        {"x": range(200), "s": [str(i) for i in range(200)]},
        row_group_size=draw.choice([7, 40, 200]),
    )
    found = opened(tmp_path, shard_rows=draw.choice([5, 17, 64]))
    shards = list(found.plan().shards) * 2
    draw.shuffle(shards)
    for shard in shards:
        batches = read(found, batch_size=draw.choice([1, 4, 50]), shards=[shard])
        if draw.random() < 0.3:
            next(iter(found.batches(draw.choice(shards), 3)))  # A processor that fails in the middle.
        expected = list(range(shard.start, shard.stop))
        assert [int(x) for x in column(batches, "x")] == expected
        assert column(batches, "s") == [str(i) for i in expected]


def test_shards_of_one_row_group_decode_it_once(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import parquet

    decoded, decode = [], parquet._OpenFile._decoded
    monkeypatch.setattr(parquet._OpenFile, "_decoded", lambda *given: decoded.append(given) or decode(*given))
    write(tmp_path / "a.parquet", {"x": range(200)})
    assert len(read(opened(tmp_path, shard_rows=20), batch_size=20)) == 10
    assert len(decoded) == 1


def test_numbers_become_tensors_and_other_columns_lists(tmp_path):
    day = datetime.date(2026, 1, 2)
    write(
        tmp_path / "a.parquet",
        {
            "int8": pa.array([1, -2], pa.int8()),
            "uint16": pa.array([1, 65535], pa.uint16()),
            "uint32": pa.array([1, 4294967295], pa.uint32()),
            "uint64": pa.array([1, 2**64 - 1], pa.uint64()),
            "half": pa.array([1.5, 2.5]).cast(pa.float16()),
            "double": pa.array([1.5, float("nan")], pa.float64()),
            "flag": pa.array([True, False]),
            "vector": pa.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], pa.list_(pa.float32(), 3)),
            "matrix": pa.array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int32(), 1), 2)),
            "gap": pa.array([1, None]),
            "ragged": pa.array([[1], [2, 3]]),
            "text": pa.array(["a", None]),
            "word": pa.array(["x", "y"]).dictionary_encode(),
            "blob": pa.array([b"\x00", b""]),
            "day": pa.array([day, day]),
            "nano": pa.array([1, 2_000], pa.timestamp("ns")),
            "price": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(5, 2)),
            "nested": pa.array([{"a": 1, "b": ["c"]}, None]),
        },
    )
    (batch,) = read(opened(tmp_path))
    types = {name: value.dtype if isinstance(value, torch.Tensor) else list for name, value in batch.data.items()}
    assert types == {
        "int8": torch.int8, "uint16": torch.int32, "uint32": torch.int64, "uint64": list, "half": torch.float16,
        "double": torch.float64, "flag": torch.bool, "vector": torch.float32, "matrix": torch.int32, "gap": list,
        "ragged": list, "text": list, "word": list, "blob": list, "day": list, "nano": list, "price": list,
        "nested": list,
    }  # fmt: skip
    assert batch.data["uint32"].tolist() == [1, 4294967295]
    assert batch.data["flag"].tolist() == [True, False]
    assert batch.data["matrix"].tolist() == [[[1], [2]], [[3], [4]]]
    assert batch.data["word"] == ["x", "y"]
    assert batch.data["nano"] == [datetime.datetime(1970, 1, 1), datetime.datetime(1970, 1, 1, microsecond=2)]
    assert batch.data["nested"] == [{"a": 1, "b": ["c"]}, None]
    assert batch.data["price"] == [decimal.Decimal("1.10"), None]


def test_a_tensor_column_of_arrow_keeps_its_shape(tmp_path):
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32(), 4))
    write(tmp_path / "a.parquet", {"t": pa.ExtensionArray.from_storage(kind, storage)})
    (batch,) = read(opened(tmp_path))
    assert batch.data["t"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_only_chosen_columns_are_given_to_the_processor_and_passed_ones_are_kept_aside(tmp_path):
    write(tmp_path / "a.parquet", {"id": range(5), "x": [float(i) for i in range(5)], "unused": ["?"] * 5})
    (batch,) = read(opened(tmp_path, columns=["x"], passed=["id"]))
    assert list(batch.data) == ["x"]
    assert batch.passed.to_pydict() == {"id": [0, 1, 2, 3, 4]}


def test_a_processor_that_writes_into_its_batch_does_not_change_passed_columns(tmp_path):
    write(tmp_path / "a.parquet", {"x": range(5), "v": pa.array([[1.0, 2.0]] * 5, pa.list_(pa.float32(), 2))})
    (batch,) = read(opened(tmp_path, passed=["x", "v"]))
    batch.data["x"] += 100
    batch.data["v"] *= 0
    assert batch.passed.to_pydict() == {"x": [0, 1, 2, 3, 4], "v": [[1.0, 2.0]] * 5}


def test_a_column_with_a_dot_in_its_name_is_not_a_nested_one(tmp_path):
    write(tmp_path / "a.parquet", {"a": pa.array([{"b": 1}]), "a.b": [2]})
    (batch,) = read(opened(tmp_path, columns=["a.b"]))
    assert batch.data["a.b"].tolist() == [2]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"x": [1]}, {"x": ["1"]}, "'x' is int64 in {0} and string in {1}"),
        ({"x": [1]}, {"x": [1], "y": [1]}, "{1} has 'y', {0} has not"),
        ({"x": [1], "y": [1]}, {"y": [1]}, "{0} has 'x', {1} has not"),
    ],
)
def test_files_with_other_columns_are_refused_before_anything_is_read(tmp_path, first, second, words):
    paths = write(tmp_path / "a.parquet", first), write(tmp_path / "b.parquet", second)
    with pytest.raises(InputError) as caught:
        opened(tmp_path).plan()
    assert words.format(*paths) in str(caught.value)


def test_files_that_differ_only_in_encoding_or_column_order_are_read_together(tmp_path):
    write(tmp_path / "a.parquet", {"s": pa.array(["a"]), "x": [1]})
    write(tmp_path / "b.parquet", {"x": [2], "s": pa.array(["b"]).dictionary_encode()})
    write(tmp_path / "c.parquet", {"s": pa.array(["c"], pa.large_string()), "x": [3]})
    batches = read(opened(tmp_path, passed=["s"]))
    assert column(batches, "s") == ["a", "b", "c"]
    assert {str(batch.passed.schema) for batch in batches} == {"s: string"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.nulls(1), pa.array(["a"]), "string"), (pa.array(["a"]), pa.nulls(1), "string"),
        (pa.array([1], pa.int32()), pa.array([2], pa.int64()), "int64"),
        (pa.array([1], pa.int8()), pa.array([2], pa.uint8()), "int16"),
        (pa.array([0.5], pa.float32()), pa.array([1.5], pa.float64()), "double"),
        (pa.array([1], pa.timestamp("us")), pa.array([2], pa.timestamp("ns")), "timestamp[ns]"),
        (pa.array([[]], pa.list_(pa.null())), pa.array([["a"]]), "list<element: string>"),
        (pa.array([{"a": None}]), pa.array([{"a": 5}]), "struct<a: int64>"),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.array([[3]]), "list<element: int64>"),
        (pa.nulls(1), pa.nulls(1), "null"),
    ],
)  # fmt: skip
def test_files_of_types_that_one_type_holds_are_read_in_that_type(tmp_path, first, second, expected):
    for name, column in (("a", first), ("b", second)):
        write(tmp_path / f"{name}.parquet", {"x": column, "id": [1]})
    batches = read(opened(tmp_path, passed=["x"]))
    assert {str(batch.passed.schema.field("x").type).replace("item:", "element:") for batch in batches} == {expected}
    assert [batch.passed["x"].to_pylist() for batch in batches] == [
        pa.array(column.to_pylist(), batches[0].passed.schema.field("x").type).to_pylist() for column in (first, second)
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1]), pa.array([1.5])), (pa.array([1], pa.uint64()), pa.array([1])), (pa.array(["1"]), pa.array([1])),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("us"))),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}])), (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([[1]]), pa.array([[1.5]])), (pa.array([1]), pa.array([1], pa.decimal128(9, 2))),
    ],
)  # fmt: skip
def test_files_of_types_that_no_type_holds_exactly_are_refused(tmp_path, first, second):
    write(tmp_path / "a.parquet", {"x": first})
    write(tmp_path / "b.parquet", {"x": second})
    with pytest.raises(InputError, match=r"'x' is .* in .*a\.parquet and .* in .*b\.parquet"):
        opened(tmp_path).plan()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no table at all, but long enough to be read as one"])
def test_an_unreadable_file_among_good_ones_is_named(tmp_path, content):
    write(tmp_path / "a.parquet", {"x": [1]})
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"b\.parquet cannot be read as Parquet"):
        opened(tmp_path).plan()


def test_a_truncated_file_and_a_damaged_page_are_named(tmp_path):
    whole = write(tmp_path / "a.parquet", {"x": [random.random() for _ in range(20000)]}, compression="snappy")
    content = (tmp_path / "a.parquet").read_bytes()
    found = opened(whole)
    plan = found.plan()
    (tmp_path / "a.parquet").write_bytes(content[:8] + b"\xff" * 60000 + content[60008:])
    with pytest.raises(InputError, match=r"a\.parquet rows 0-"):
        read(found, shards=plan.shards)
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"a\.parquet cannot be read"):
        opened(whole).plan()


def test_an_input_without_rows_is_refused(tmp_path):
    write(tmp_path / "a.parquet", {"x": pa.array([], pa.int64())})
    with pytest.raises(InputError, match="The input is empty"):
        opened(tmp_path).plan()


def test_missing_and_duplicate_columns_are_refused_by_name(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"]), path)
    with pytest.raises(InputError, match="several columns with the name 'x'"):
        opened(path).plan()
    with pytest.raises(InputError, match=r"has no column 'z'. Columns found: x, x, y"):
        opened(path, columns=["z"]).plan()
    with pytest.raises(InputError, match="has no column 'q'"):
        opened(path, columns=["y"], passed=["q"]).plan()
    (batch,) = read(opened(path, columns=["y"]))
    assert batch.data["y"].tolist() == [3]


def test_a_file_that_changes_after_the_plan_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": range(10)})
    found = opened(path)
    plan = found.plan()
    write(path, {"x": range(10, 40)})
    with pytest.raises(InputError, match="has changed since the inference began"):
        read(found, shards=plan.shards)
    os.remove(path)
    with pytest.raises(InputError, match=r"a\.parquet cannot be read"):
        read(found, shards=plan.shards)


def test_the_identity_names_what_changed(tmp_path):
    first, second = write(tmp_path / "a.parquet", {"x": [1]}), write(tmp_path / "b.parquet", {"x": [1]})
    before = opened(tmp_path).plan().identity
    assert before == json.loads(json.dumps(before)) == opened(tmp_path).plan().identity
    write(first, {"x": [1, 2]})
    os.remove(second)
    words = differences(before, opened(tmp_path, shard_rows=5).plan().identity)
    assert "shard_rows was None and is 5" in words
    assert any(word.startswith(f"{first} was") for word in words)
    assert f"{second} is missing" in words


def test_labels_name_file_and_rows():
    assert Shard(3, "/data/part-3.parquet", 1000, 2000, 1000, 5000).label == "part-3.parquet rows 1000-1999"
    assert Shard(0, "s3://b/a.csv", 0, 0, None, 0).label == "a.csv"
    assert Shard(0, "dataset", 10, 20, 10, 10).label == "dataset samples 10-19"
    assert Shard(0, "/a\nb\x1b[31m.csv", 0, 0, None, 0).label == "a?b?[31m.csv"


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_a_null_in_one_batch_makes_a_list_only_there(tmp_path, batch_size):
    write(tmp_path / "a.parquet", {"x": [1, 2, 3, None, 5, 6]})
    batches = read(opened(tmp_path), batch_size)
    assert [value if value is None else int(value) for value in column(batches, "x")] == [1, 2, 3, None, 5, 6]
    assert all(isinstance(one.data["x"], list) == (None in list(one.data["x"])) for one in batches)
