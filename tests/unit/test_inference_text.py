"""CSV and JSON lines as input of a batch inference."""

from __future__ import annotations

import bz2
import gzip
import json

import pytest

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs import open_input
from airflow_provider_dtrain.train.inference.shards import SOURCE_ROWS, Shard

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.torch


def opened(path, passed=(), **settings):
    return open_input({"path": str(path), **settings}, storage={}, passed=passed)


def read(found, batch_size=100):
    sent = [Shard.from_dict(json.loads(json.dumps(shard.to_dict()))) for shard in found.plan().shards]
    return [batch for shard in sent for batch in found.batches(shard, batch_size)]


def columns(found, batch_size=100):
    """Return all values by column, tensors as lists."""
    batches = read(found, batch_size)
    parts = [{name: getattr(v, "tolist", lambda v=v: v)() for name, v in one.data.items()} for one in batches]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def test_csv_keeps_quotes_line_breaks_and_empty_texts(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfid,text,score\r\n1,"a, ""b""\r\nc",0.5\r\n2,,\r\n3,"",1e3\r\n')
    assert columns(opened(tmp_path)) == {"id": [1, 2, 3], "text": ['a, "b"\r\nc', "", ""], "score": [0.5, None, 1000.0]}


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.csv", bytes),
        ("a.csv.gz", gzip.compress),
        ("a.CSV.bz2", bz2.compress),
        ("a.tsv", lambda b: b.replace(b",", b"\t")),
    ],
)
def test_csv_may_be_compressed_or_have_tabs(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"x,y\n1,a\n2,b\n"))
    assert columns(opened(tmp_path)) == {"x": [1, 2], "y": ["a", "b"]}


def test_each_text_file_is_a_shard_whose_row_ids_begin_anew(tmp_path):
    for name, rows in (("a", 3), ("b", 0), ("c", 2)):
        (tmp_path / f"{name}.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(rows)))
    found = opened(tmp_path)
    plan = found.plan()
    assert [(shard.label, shard.rows, shard.first_row) for shard in plan.shards] == [
        ("a.csv", None, 0),
        ("c.csv", None, 2 * SOURCE_ROWS),
    ]
    assert plan.rows is None
    assert [(one.first_row, one.rows) for one in read(found, 2)] == [(0, 2), (2, 1), (2 * SOURCE_ROWS, 2)]


def test_types_of_text_files_are_those_that_fit_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z\n1,,\n")
    (tmp_path / "b.csv").write_text("y,x,z\nb,1.5,\n")
    batches = read(opened(tmp_path))
    assert [batch.data["x"].dtype for batch in batches] == [torch.float64] * 2
    assert [batch.data["y"] for batch in batches] == [[""], ["b"]]
    assert [batch.data["z"] for batch in batches] == [[""], [""]]


def test_csv_streams_blocks_and_recuts_them_to_batches(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import csv_format

    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 64)
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},text {i}\n" for i in range(200)))
    batches = read(opened(tmp_path, passed=["y"]), 16)
    assert [one.rows for one in batches] == [16] * 12 + [8]
    assert [int(x) for one in batches for x in one.data["x"]] == list(range(200))
    assert [y for one in batches for y in one.passed.column("y").to_pylist()] == [f"text {i}" for i in range(200)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Empty CSV file"), (b"x,y\n1\n", "Expected 2 columns, got 1"),
        (b"x,x\n1,2\n", "several columns with the name 'x'"),
        (b"y\n1\n", "has 'x'"), (b"x\nabc\n", "'x' is int64 in .*a.csv and string in .*b.csv"),
    ],
)  # fmt: skip
def test_a_csv_that_differs_from_the_good_ones_is_named(tmp_path, content, words):
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        opened(tmp_path).plan()
    assert "b.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("abc,1\n", "conversion error to int64"),
        ("1\n", "Expected 2 columns"),
        ('"' + "1,\n" * 99, "straddling|columns|quote"),
    ],
)
def test_a_value_that_does_not_fit_the_first_rows_is_named_when_it_is_read(tmp_path, monkeypatch, tail, words):
    from airflow_provider_dtrain.train.inference.inputs import csv_format

    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 128)
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 1000 + tail)
    with pytest.raises(InputError, match=words) as caught:
        read(opened(tmp_path))
    assert "a.csv cannot be read as CSV" in str(caught.value)


def test_a_csv_without_rows_is_an_empty_input(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n")
    with pytest.raises(InputError, match="The input is empty"):
        opened(tmp_path).plan()


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_json_lines_have_numbers_texts_nested_values_and_missing_fields(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1, "t": "ä\n", "n": {"a": [1, 2.5]}}, {"x": 2.5, "n": None}, {"x": 3, "t": None})
    assert columns(opened(tmp_path)) == {
        "x": [1.0, 2.5, 3.0],
        "t": ["ä\n", None, None],
        "n": [{"a": [1.0, 2.5]}, None, None],
    }


def test_json_lines_are_converted_in_pieces_and_may_end_without_a_line_break(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import json_format

    monkeypatch.setattr(json_format, "PIECE_LINES", 7)
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps({"x": i}) for i in range(50)))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"x": 50}\r\n'))
    batches = read(opened(tmp_path), 8)
    assert [int(x) for one in batches for x in one.data["x"]] == list(range(51))
    assert [one.rows for one in batches] == [8] * 6 + [2, 1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1, 2]", "line 2 is no JSON object, it is \\[1, 2\\]"), ("1", "line 2 is no JSON object"),
        ('{"x": ', "line 2 is no JSON: "), ("\udcff".encode("utf-8", "surrogateescape"), "line 2 is no JSON"),
        ("[" * 100_000, "line 2 is no JSON: "), ('{"x": "a"}', "the field 'x' has no common type"),
        ('{"x": 99999999999999999999999}', "the field 'x' has no common type"),
    ],
    ids=["list", "number", "cut", "bytes", "deep", "types", "large"],
)  # fmt: skip
def test_a_line_that_is_no_object_is_named(tmp_path, line, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"x": 1}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(InputError, match=words) as caught:
        opened(path).plan()
    assert "a.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"x": "a"}, "line 1101 has 'x' = \"a\", the first lines have int64"), ({"x": 1.5}, "line 1101 has 'x' = 1.5"),
        ({"x": 1, "new": 1}, "line 1101 has the field 'new'"), ({"n": {"a": [1.5]}}, "line 1101 has 'n' = "),
        ({"n": {"a": [1], "new": 1}}, "line 1101 has 'n' = "), ([], "line 1101 is no JSON object"),
    ],
)  # fmt: skip
def test_a_later_line_that_does_not_fit_the_first_ones_is_named_with_its_number(tmp_path, row, words):
    lines(tmp_path / "a.jsonl", *({"x": i, "n": {"a": [i]}} for i in range(1100)), row)
    with pytest.raises(InputError, match=words):
        read(opened(tmp_path))


def test_chosen_fields_may_be_missing_in_a_file_but_not_in_all(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1})
    lines(tmp_path / "b.jsonl", {"x": 2, "note": "n", "unused": {}})
    assert columns(opened(tmp_path, columns=["x", "note"])) == {"x": [1, 2], "note": [None, "n"]}
    with pytest.raises(InputError, match="No file has the field 'z'"):
        opened(tmp_path, columns=["x", "z"]).plan()
    with pytest.raises(InputError, match=r"b\.jsonl has 'note', .*a\.jsonl has not"):
        opened(tmp_path).plan()


def test_json_files_with_other_types_are_named(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1})
    lines(tmp_path / "b.jsonl", {"x": "1"})
    with pytest.raises(InputError, match=r"'x' is int64 in .*a\.jsonl and string in .*b\.jsonl"):
        opened(tmp_path).plan()


def test_an_empty_json_file_has_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="The input is empty"):
        opened(tmp_path).plan()
    lines(tmp_path / "b.jsonl", {"x": 1})
    assert columns(opened(tmp_path)) == {"x": [1]}


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import json_format

    monkeypatch.setattr(json_format, "LINE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b"\x00" * 100_000)
    with pytest.raises(InputError, match="line 1 is longer than"):
        opened(tmp_path).plan()


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_a_truncated_archive_is_named(tmp_path, name):
    content = gzip.compress(b"".join(b'{"x":%d}\n' % (i * 7919 % 10007) for i in range(20000)))
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=name):
        read(opened(tmp_path))


def test_a_csv_that_is_no_utf_8_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("name\nJos\xe9\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.csv: column 'name' is no UTF-8 text"):
        opened(tmp_path).plan()


def test_messages_have_no_control_characters_of_a_file(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x\n1,\x1b[31m\x00\n")
    with pytest.raises(InputError) as caught:
        opened(tmp_path).plan()
    assert str(caught.value).isprintable()
