"""CSV and JSON lines as input of a batch inference."""

from __future__ import annotations

import bz2
import csv
import datetime
import decimal
import gzip
import io
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
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfid,text,score\r\n1,"a, ""b""\r\nc",0.5\r\n2,,\r\n3,"",1e+3\r\n')
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


def test_row_ids_begin_anew_with_each_text_file(tmp_path):
    for name, rows in (("a", 3), ("b", 0), ("c", 2)):
        (tmp_path / f"{name}.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(rows)))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(b"x\n7\n"))
    found = opened(tmp_path)
    plan = found.plan()
    assert [(shard.label, shard.rows, shard.first_row) for shard in plan.shards] == [
        ("a.csv rows 0-2", 3, 0),
        ("c.csv rows 0-1", 2, 2 * SOURCE_ROWS),
        ("d.csv.gz", None, 3 * SOURCE_ROWS),
    ]
    assert plan.rows is None
    assert [(one.first_row, one.rows) for one in read(found, 2)] == [
        (0, 2), (2, 1), (2 * SOURCE_ROWS, 2), (3 * SOURCE_ROWS, 1)
    ]  # fmt: skip


LARGE = {
    "csv": "id,text\r\n" + "".join(f'{i},"a\n\n""{i}, b"\r\n' for i in range(999)),
    "jsonl": "".join(f'{{"id": {i}}}\n' + "\n" * (i % 3) for i in range(999)),
}


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize(("shard_rows", "batch_size", "shards"), [(None, 64, 16), (100, 64, 10), (None, None, 125)])
def test_one_large_text_file_is_cut_into_shards_of_whole_batches(tmp_path, kind, shard_rows, batch_size, shards):
    path = tmp_path / f"a.{kind}"
    path.write_text(LARGE[kind], newline="")
    settings = {"path": str(path), "shard_rows": shard_rows}
    found = open_input(settings, storage={}, passed=["id"], batch_size=batch_size)
    plan = found.plan()
    assert (len(plan.shards), plan.rows) == (shards, 999)
    assert {shard.rows % (shard_rows or batch_size or 8) for shard in plan.shards[:-1]} == {0}
    batches = read(open_input(settings, storage={}, passed=["id"], batch_size=batch_size), 64)
    assert [int(i) for one in batches for i in one.passed["id"].to_pylist()] == list(range(999))
    assert [i for one in batches for i in one.ids] == list(range(999))
    if kind == "csv":
        assert [text for one in batches for text in one.data["text"]] == [f'a\n\n"{i}, b' for i in range(999)]


@pytest.mark.parametrize("most", [2, 3, 4096])
def test_a_file_of_any_length_has_few_places_to_cut_it_at(monkeypatch, most):
    from airflow_provider_dtrain.train.inference.inputs import text_cuts

    monkeypatch.setattr(text_cuts, "PLACES_MOST", most)
    records = [(3, False), *[(10, True)] * 1000]
    cuts = text_cuts.cuts_of(iter(records), 8, is_fixed=False)
    assert len(cuts.places) <= most
    ranges = list(cuts.ranges(100))
    assert [first for first, *_ in ranges[1:]] == [stop for _, stop, *_ in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1], ranges[-1][3]) == (0, 1000, 10_003)
    assert all(place.offset == 3 + 10 * first for first, _, place, _ in ranges)


def test_a_file_that_is_a_small_part_of_the_input_is_one_shard_and_is_not_read_for_the_plan(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import text_tables

    monkeypatch.setattr(text_tables, "SHARDS", 4)
    for i in range(8):
        lines(tmp_path / f"{i}.jsonl", *({"x": j} for j in range(100)))
    lines(tmp_path / "8.jsonl", *({"x": j} for j in range(2000)))
    plan = opened(tmp_path).plan()
    assert [shard.rows for shard in plan.shards[:8]] == [None] * 8
    assert sum(shard.rows for shard in plan.shards[8:]) == 2000
    assert columns(opened(tmp_path))["x"] == [*list(range(100)) * 8, *range(2000)]


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
    batches = read(opened(tmp_path, passed=["y"], shard_rows=200), 16)
    assert [one.rows for one in batches] == [16] * 12 + [8]
    assert [int(x) for one in batches for x in one.data["x"]] == list(range(200))
    assert [y for one in batches for y in one.passed.column("y").to_pylist()] == [f"text {i}" for i in range(200)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no header line"), (b"x,y\n1\n", "row 1 has 1 values, the header has 2: '1'"),
        (b"x,x\n1,2\n", "several columns with the name 'x'"),
        (b"y\n1\n", "has 'x'"),
        (b"x\nabc\n", r"'x' is int64 in .*a.csv and string in .*b.csv. Set inputs.schema: \{x: string\}"),
    ],
)  # fmt: skip
def test_a_csv_that_differs_from_the_good_ones_is_named(tmp_path, content, words):
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        opened(tmp_path).plan()
    assert "b.csv" in str(caught.value)


@pytest.mark.parametrize("shard_rows", [None, 300])
@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("abc,1\n", r"row 1001 has 'x' = 'abc', expected int64 .* Set inputs.schema: \{x: string\}"),
        ("1\n", "row 1001 has 1 values, the header has 2: '1'"),
        ('"' + "1,\n" * 99, "a quote in row 1001 is never closed"),
    ],
)
def test_a_value_that_does_not_fit_the_first_rows_is_named_when_it_is_read(
    tmp_path, monkeypatch, tail, words, shard_rows
):
    from airflow_provider_dtrain.train.inference.inputs import csv_format

    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 128)
    monkeypatch.setattr(csv_format, "START_BYTES", 512)
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 1000 + tail)
    with pytest.raises(InputError, match=words) as caught:
        read(opened(tmp_path, shard_rows=shard_rows))
    assert f"{tmp_path}/a.csv" in str(caught.value)


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


def test_json_lines_may_have_a_mark_blank_lines_and_no_last_line_break(tmp_path):
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n\n".join(json.dumps({"x": i}) for i in range(50)))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"x": 50}\r\n'))
    batches = read(opened(tmp_path), 8)
    assert [int(x) for one in batches for x in one.data["x"]] == list(range(51))
    assert [one.rows for one in batches] == [8] * 6 + [2, 1]
    assert [one.first_row for one in batches] == [*range(0, 50, 8), SOURCE_ROWS]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1, 2]", "line 2 is no JSON object: it is no object, it is \\[1, 2\\]"), ("1", "line 2 is no JSON object"),
        ('{"x": ', "line 2 is no JSON object: Expecting"), ("[" * 100_000, "line 2 is no JSON object: "),
        ("\udcff".encode("utf-8", "surrogateescape"), "line 2 is no JSON object"),
        ('{"x": 1, "x": 2}', "line 2 is no JSON object: the object has .* twice"),
        ('{"x": 1}}', "line 2 is no JSON object: Extra data"), ('{"x": 1,}', "line 2 is no JSON object: "),
    ],
    ids=["list", "number", "cut", "deep", "bytes", "twice", "behind", "comma"],
)  # fmt: skip
@pytest.mark.parametrize("passed", [[], ["x"]])
def test_a_line_that_is_no_object_is_named(tmp_path, line, words, passed):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"x": 1}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(InputError, match=words) as caught:
        opened(path, passed).plan()
    assert "a.jsonl" in str(caught.value)


@pytest.mark.parametrize("shard_rows", [None, 400])
@pytest.mark.parametrize(
    ("row", "words", "remedy"),
    [
        ({"x": "a", "n": 1}, "line 1102 has 'x' = \"a\", the first lines have int64", {"schema": {"x": "json"}}),
        ({"x": 1.5, "n": 1}, "line 1102 has 'x' = 1.5", {"schema": {"x": "float64"}}),
        ({"x": 1, "n": 1.5}, "line 1102 has 'n' = 1.5, the first lines have int64", {"schema": {"n": "string"}}),
        ({"x": 1, "new": 1}, "line 1102 has the field 'new'", {"schema": {"new": "json"}}),
        ({"x": 1, "new": 1}, "line 1102 has the field 'new'", {"columns": ["x"]}),
        ([], "line 1102 is no JSON object", None),
    ],
)  # fmt: skip
def test_a_later_line_that_does_not_fit_the_first_ones_is_named_and_read_as_the_message_says(
    tmp_path, row, words, remedy, shard_rows
):
    lines(tmp_path / "a.jsonl", *({"x": i, "n": i} for i in range(1100)))
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(f"\n{json.dumps(row)}\n")
    with pytest.raises(InputError, match=words) as caught:
        read(opened(tmp_path, ["n"], shard_rows=shard_rows))
    if remedy is not None:
        assert f"inputs.{next(iter(remedy))}" in str(caught.value)
        assert sum(one.rows for one in read(opened(tmp_path, ["n"], shard_rows=shard_rows, **remedy))) == 1101


def test_a_field_that_appears_late_is_read_once_its_type_is_declared(tmp_path):
    lines(tmp_path / "a.jsonl", *[{"x": 1}] * 1000, {"x": 1, "note": "late"})
    with pytest.raises(InputError, match=r"line 1001 has the field 'note'.* inputs.schema: \{note: json\}"):
        read(opened(tmp_path))
    with pytest.raises(InputError, match=r"No file has the field 'note' .* inputs.schema: \{note: json\}"):
        opened(tmp_path, columns=["x", "note"]).plan()
    for settings in ({"schema": {"note": "json"}}, {"schema": {"note": "string"}, "columns": ["x", "note"]}):
        batches = read(opened(tmp_path, ["note"], **settings), 2000)
        assert [value for one in batches for value in one.data["note"]] == [None] * 1000 + ["late"]


def test_values_of_several_types_are_pythons_values_for_the_processor(tmp_path):
    several = [1, "two", None, {"a": 1}, {"b": [2.5]}, 2**70]
    lines(tmp_path / "a.jsonl", *({"x": value} for value in several))
    assert columns(opened(tmp_path)) == {"x": several}
    assert columns(opened(tmp_path, schema={"x": "string"})) == {
        "x": ["1", "two", None, '{"a": 1}', '{"b": [2.5]}', str(2**70)]
    }


@pytest.mark.parametrize("values", [[0.5, 2**53 + 1], [0.5, -(2**60) - 1], [True, 1], [1, 2**63]])
def test_numbers_that_no_tensor_holds_together_are_a_list_for_the_processor(tmp_path, values):
    lines(tmp_path / "a.jsonl", *({"x": value} for value in values))
    found = columns(opened(tmp_path))["x"]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in values]


def test_a_later_integer_that_a_column_of_floats_cannot_hold_fails_its_shard(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import json_format

    monkeypatch.setattr(json_format, "FIRST_LINES", 1)
    for first, later in ((0.5, 2**53 + 1), ([0.5], [2**53 + 1])):
        lines(tmp_path / "a.jsonl", {"x": first}, {"x": later})
        found = open_input({"path": str(tmp_path), "columns": ["x"]}, storage={}, passed=["x"])
        with pytest.raises(InputError, match=r"line 2 has 'x' = .*9007199254740993.* Set inputs.schema: \{x: json\}"):
            read(found)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("float32", [1, 2.5], [1.0, 2.5]), ("bool", [True, False], [True, False]), ("int8", [1, -2], [1, -2]),
        ("decimal128(5, 2)", [1.10, "2.20"], [decimal.Decimal("1.10"), decimal.Decimal("2.20")]),
        ("date", ["2024-01-02", None], [datetime.date(2024, 1, 2), None]),
        ("float32[2]", [[1, 2], [3, 4.5]], [[1.0, 2.0], [3.0, 4.5]]), ("list<string>", [["a"], []], [["a"], []]),
        ("map<string, int64>", [{"a": 1}, {}], [[("a", 1)], []]),
    ],
)  # fmt: skip
def test_a_declared_type_decides_what_the_processor_gets_and_what_is_passed(tmp_path, kind, values, expected):
    lines(tmp_path / "a.jsonl", *({"x": value} for value in values))
    found = opened(tmp_path, ["x"], schema={"x": kind})
    assert columns(found) == {"x": expected}
    (batch,) = read(found)
    assert batch.passed["x"].to_pylist() == expected
    assert isinstance(batch.data["x"], torch.Tensor) == (kind in ("float32", "bool", "int8", "float32[2]"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schema": {"x": "int46"}}, "'int46' in inputs.schema is no type"),
        ({"schema": {"z": "int8"}, "columns": ["x"]}, "inputs.schema has the field 'z'"),
        ({"schema": {"x": "int8"}}, "line 1 has 'x' = \"a\", inputs.schema declares int8"),
        ({"delimiter": ";"}, "inputs.delimiter is for inputs of format csv, and these are jsonl"),
        ({"orient": True}, "inputs.orient is for inputs of format images"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(tmp_path, settings, words):
    lines(tmp_path / "a.jsonl", {"x": "a"})
    with pytest.raises(InputError, match=words):
        read(opened(tmp_path, **settings))


def test_chosen_fields_may_be_missing_in_a_file_but_not_in_all(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1})
    lines(tmp_path / "b.jsonl", {"x": 2, "note": "n", "unused": {}})
    assert columns(opened(tmp_path, columns=["x", "note"])) == {"x": [1, 2], "note": [None, "n"]}
    with pytest.raises(InputError, match="No file has the field 'z'"):
        opened(tmp_path, columns=["x", "z"]).plan()
    found = opened(tmp_path)
    assert [batch.data["note"] for batch in read(found)] == [[None], ["n"]]


def test_json_files_with_other_types_are_read_as_values_of_several_types(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1, "y": 1})
    lines(tmp_path / "b.jsonl", {"x": "1", "y": 2.5})
    assert columns(opened(tmp_path)) == {"x": [1, "1"], "y": [1.0, 2.5]}


def test_an_empty_json_file_has_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="The input is empty"):
        opened(tmp_path).plan()
    lines(tmp_path / "b.jsonl", {"x": 1})
    assert columns(opened(tmp_path)) == {"x": [1]}


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.inference.inputs import text_tables

    monkeypatch.setattr(text_tables, "LINE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b"\x00" * 100_000)
    with pytest.raises(InputError, match="line 1 is longer than"):
        opened(tmp_path).plan()


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_a_truncated_archive_is_named(tmp_path, name):
    content = gzip.compress(b"".join(b'{"x":%d}\n' % (i * 7919 % 10007) for i in range(20000)))
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=name):
        read(opened(tmp_path))


def test_codes_of_a_csv_stay_texts_and_other_numbers_are_numbers_for_the_processor(tmp_path):
    content = "zip,part,hash,id,x,y,version,day,flag,gap\n"
    content += "00123,1E5,12e4567,-7,1.5,-0.25e-3,1.10,2024-01-02,true,NA\n"
    content += "10115,2E3,99,+1,2,1e+20,1.9,2024-01-03,false,3\n"
    (tmp_path / "a.csv").write_text(content)
    found = opened(tmp_path, ["zip", "x", "version", "gap"])
    (batch,) = read(found)
    types = {name: value.dtype for name, value in batch.data.items() if isinstance(value, torch.Tensor)}
    assert types == dict.fromkeys(("x", "y", "version"), torch.float64)
    assert batch.data["zip"] == ["00123", "10115"]
    assert batch.data["part"] == ["1E5", "2E3"]
    assert batch.data["gap"] == [None, 3]
    assert batch.passed.to_pydict() == {
        "zip": ["00123", "10115"], "x": ["1.5", "2"], "version": ["1.10", "1.9"], "gap": ["NA", "3"]
    }  # fmt: skip


def test_declared_types_of_a_csv_hold_for_the_processor_and_for_passed_columns(tmp_path):
    (tmp_path / "a.csv").write_text("zip,n,day,flag,price\n00123, 7,2024-01-02,True,1.10\n,,NA,0,\n")
    schema = {"zip": "string", "n": "int16", "day": "date", "flag": "bool", "price": "decimal128(9, 2)"}
    found = opened(tmp_path, list(schema), schema=schema)
    (batch,) = read(found)
    expected = {
        "zip": ["00123", ""], "n": [7, None], "day": [datetime.date(2024, 1, 2), None], "flag": [True, False],
        "price": [decimal.Decimal("1.10"), None],
    }  # fmt: skip
    assert batch.passed.to_pydict() == expected
    assert {name: list(values) for name, values in batch.data.items()} == expected
    (tmp_path / "a.csv").write_text("v\n1\n")
    for kind in ("list<int64>", "json"):
        with pytest.raises(InputError, match=f"CSV has no values of type {kind}"):
            opened(tmp_path, schema={"v": kind}).plan()
    with pytest.raises(InputError, match="has the column 'q', and the columns read are v"):
        opened(tmp_path, schema={"q": "int64"}).plan()


def test_a_csv_with_another_separator_is_named_with_the_setting_that_reads_it(tmp_path):
    (tmp_path / "a.csv").write_text("name;n\na;1\n")
    with pytest.raises(InputError, match=r"one column, 'name;n'\. .* set inputs.delimiter: ';'"):
        opened(tmp_path).plan()
    assert columns(opened(tmp_path, delimiter=";")) == {"name": ["a"], "n": [1]}
    assert columns(opened(tmp_path, delimiter=",")) == {"name;n": ["a;1"]}
    (tmp_path / "a.csv").write_text("name\na;1\n")
    assert columns(opened(tmp_path)) == {"name": ["a;1"]}


@pytest.mark.parametrize("size", [1 << 20, 5 << 20])
def test_a_record_that_is_longer_than_a_block_is_read(tmp_path, monkeypatch, size):
    from airflow_provider_dtrain.train.inference.inputs import csv_format

    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(csv_format, "UNKNOWN_BLOCK_BYTES", 2 << 20)
    (tmp_path / "a.csv").write_text(f"x,y\n1,a\n2,{'b' * size}\n")
    assert columns(opened(tmp_path))["y"] == ["a", "b" * size]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    packed = opened(tmp_path / "a.csv.gz")
    if size == 1 << 20:
        assert columns(packed)["y"] == ["a", "b" * size]
    else:
        with pytest.raises(InputError, match="A record is longer than 2 MiB, or a quote is never closed"):
            read(packed)


@pytest.mark.parametrize("shard_rows", [None, 2])
def test_rows_that_cannot_be_read_are_left_out_if_the_user_wishes(tmp_path, monkeypatch, shard_rows):
    from airflow_provider_dtrain.train.inference.inputs import csv_format, json_format

    monkeypatch.setattr(csv_format, "START_BYTES", 10)
    monkeypatch.setattr(json_format, "FIRST_LINES", 1)
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2\n3,c,d\nfour,e\n5,f\n")
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n{"x": \n\n[]\n{"x": "four"}\n{"x": 5}\n')
    for name, first_bad in (("a.csv", "a.csv row 2"), ("b.jsonl", "b.jsonl line 2")):
        found = open_input(
            {"path": str(tmp_path / name), "shard_rows": shard_rows}, storage={}, passed=["x"], skips_bad_rows=True
        )
        batches = read(found)
        assert [int(x) for one in batches if one.rows for x in one.passed["x"].to_pylist()] == [1, 5]
        assert [i for one in batches for i in one.ids] == [0, 4]
        assert [row.row_id for one in batches for row in one.bad_rows] == [1, 2, 3]
        assert next(row.name for one in batches for row in one.bad_rows) == f"{tmp_path}/{first_bad}"
        with pytest.raises(InputError):
            read(opened(tmp_path / name))


def test_a_value_that_is_not_as_declared_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("day\n2024-02-29\n2024-13-01\n")
    with pytest.raises(InputError, match=r"row 2 has 'day' = '2024-13-01', expected date as declared\. Set"):
        read(opened(tmp_path, schema={"day": "date"}))


OPEN_QUOTES = ['1,"x\n2,y\n3,z\n', '1,x\n2,"', '"', '1,x\r\n"2""\r\n"",3\r\n', '1,x\n2,"y""', '1,x\n\n2,y\n\n3,"""']


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("start", [4, 1 << 20])
@pytest.mark.parametrize("rows", OPEN_QUOTES)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_that_ends_inside_a_quoted_value_is_refused(tmp_path, monkeypatch, name, start, rows, mark):
    """Its reader would take all rows behind the quote for one text."""
    from airflow_provider_dtrain.train.inference.inputs import csv_format

    header = f'{mark}"x",y\n'
    monkeypatch.setattr(csv_format, "START_BYTES", len(header.encode()) + start)
    write = gzip.compress if name.endswith("gz") else bytes
    for skips in (False, True):
        settings = {"path": str(tmp_path / name)}
        (tmp_path / name).write_bytes(write((header + rows).encode()))
        with pytest.raises(InputError, match=r"a\.csv\S* cannot be read as CSV: .* is never closed"):
            read(open_input(settings, storage={}, passed=["y"], skips_bad_rows=skips))
    # Oracle: Python's own module.
    with pytest.raises(csv.Error, match="unexpected end of data"):
        list(csv.reader(io.StringIO(rows, newline=""), strict=True))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_csv_whose_first_rows_are_all_left_out_is_read(tmp_path, name):
    write = gzip.compress if name.endswith("gz") else bytes
    (tmp_path / name).write_bytes(write(b"x,y\n1,2,3\n4\n"))
    found = open_input({"path": str(tmp_path / name)}, storage={}, passed=["x"], skips_bad_rows=True)
    assert [row.row_id for one in read(found) for row in one.bad_rows] == [0, 1]


def test_a_csv_that_is_no_utf_8_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("name\nJos\xe9\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.csv: column 'name' is no UTF-8 text"):
        opened(tmp_path).plan()


def test_messages_have_no_control_characters_of_a_file(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x\n1,\x1b[31m\x00\n")
    with pytest.raises(InputError) as caught:
        opened(tmp_path).plan()
    assert str(caught.value).isprintable()
