"""Columns that a batch inference passes through are written as they were read, whatever they hold.

Oracles: Python's modules csv and json, and pyarrow.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.train.errors import InputError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("torch")

import pyarrow.parquet as pq  # noqa: E402

from airflow_provider_dtrain.train.inference.column_types import parse_type, type_text  # noqa: E402
from airflow_provider_dtrain.train.inference.inputs import csv_format, json_format, text_cuts  # noqa: E402
from airflow_provider_dtrain.train.inference.inputs.csv_records import ClosedQuotes, csv_records  # noqa: E402
from airflow_provider_dtrain.train.inference.plain_types import plain_type, widest_type  # noqa: E402
from tests.support.budgets import budget  # noqa: E402
from tests.support.inference import passed_through  # noqa: E402

pytestmark = pytest.mark.torch

#: Texts that tools like to change.
CODES = [
    "00123", "1E5", "1e400", "-0", "+1", "1.0", "1.50", " 1", "12345678901234567890", "0.1234567890123456789", "NA",
    "nan", "null", "", "true", "FALSE", "2024-01-02", "12:30", "1,5", "0x1F", "1_000", "inf", "é", "a;b", "it's",
]  # fmt: skip
CELLS = st.one_of(
    st.sampled_from(CODES),
    st.text(alphabet="a\"',;\n\r\t 0é", max_size=6),
    st.integers(-(10**20), 10**20).map(str),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
)


@pytest.fixture(scope="module")
def folder():
    place = Path(tempfile.mkdtemp())
    yield place
    shutil.rmtree(place)


def written(parts: list[Path]) -> Any:
    """Return the rows of all Parquet parts."""
    return pa.concat_tables([pq.read_table(part) for part in parts])


@st.composite
def csv_documents(draw: Any) -> tuple[bytes, str]:
    width = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=30))
    file = io.StringIO()
    delimiter = draw(st.sampled_from(",;\t"))
    # The module writes line breaks without quotes if they are not the line's own end.
    needs_quotes = any(char in cell for row in rows for cell in row for char in "\r\n")
    quoting = csv.QUOTE_ALL if needs_quotes else draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerows([[f"c{i}" for i in range(width)], *rows])
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark + file.getvalue().encode(), delimiter


@settings(max_examples=budget(200))
@given(csv_documents(), st.sampled_from([None, 1, 3, 8]), st.sampled_from([40, 1 << 20]))
@example((b"zip,part\n00123,1E5\n", ","), None, 1 << 20)
def test_a_csv_column_is_the_text_that_was_read(
    folder: Path, document: tuple[bytes, str], shard_rows: int | None, start: int
) -> None:
    content, delimiter = document
    (folder / "in.csv").write_bytes(content)
    header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=delimiter)
    with mock.patch.object(csv_format, "START_BYTES", start), mock.patch.object(text_cuts, "PLACES_MOST", 2):
        settings = {"delimiter": delimiter, "shard_rows": shard_rows}
        try:
            parts, _ = passed_through(folder / "in.csv", header, **settings)
        except InputError:
            # A column of numbers in the first bytes has another value later.
            parts, _ = passed_through(folder / "in.csv", header, schema=dict.fromkeys(header, "string"), **settings)
    table = written(parts).sort_by("row")
    assert [list(row.values()) for row in table.select(header).to_pylist()] == [row for row in rows if row]
    assert table["row"].to_pylist() == list(range(table.num_rows))


@settings(max_examples=budget(200))
@given(st.text(alphabet='a",\r\n ', max_size=40))
@example('x"y,2\nz"w,3\n')
@example('"a\r\n""b",""\n')
def test_records_are_divided_as_pyarrow_does(text: str) -> None:
    content = text.encode()
    records, at = [], 0
    for size, is_row in csv_records(io.BytesIO(content), ","):
        if is_row:
            records.append(content[at : at + size])
        at += size
    assert at == len(content)
    assert [row for record in records for row in parsed(record)] == parsed(content)
    assert all(len(parsed(record)) == 1 for record in records)


@settings(max_examples=budget(200))
@given(st.text(alphabet='a",\r\n ', max_size=20), st.booleans(), st.integers(1, 8))
@example('"', True, 1)
@example('a\r\n"b""', False, 3)
def test_the_end_inside_a_quoted_value_is_found_in_pieces_of_any_size(text: str, mark: bool, size: int) -> None:
    content = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    try:
        sum(size for size, _ in csv_records(io.BytesIO(content), ",", is_whole=True))
        is_open = False
    except ValueError:
        is_open = True
    stream, found = ClosedQuotes(io.BytesIO(content), ","), b""
    try:
        while piece := stream.read(size):
            found += piece
        assert not is_open
    except ValueError:
        assert is_open
    assert found == content


def parsed(content: bytes) -> list[Any]:
    """Return the records of a CSV as pyarrow sees them: their values, or their text if they have other numbers."""
    from pyarrow import csv as arrow

    found: list[Any] = []
    if not content.strip(b"\r\n"):
        return found
    wrong: dict[int, Any] = {}

    def invalid(row: Any) -> str:
        wrong[row.number - 1] = row.text
        return "skip"

    names = ["a", "b"]
    read = arrow.ReadOptions(column_names=names, use_threads=False)
    parse = arrow.ParseOptions(newlines_in_values=True, invalid_row_handler=invalid)
    convert = arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    rows = arrow.read_csv(io.BytesIO(content), read, parse, convert).to_pylist()
    for number in range(len(rows) + len(wrong)):
        found.append(wrong[number] if number in wrong else rows.pop(0))
    return found


NUMBERS = st.one_of(
    st.sampled_from(["1.0", "1", "-0", "-0.0", "1e400", "1E5", "1.50", "0.1234567890123456789", "1e-400", "5e-324"]),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
LEAVES = st.one_of(
    NUMBERS,
    st.sampled_from(["null", "true", "false", '"\\ud800"', '"1"', '"null"', '"2024-01-02"', '"a\\u2028b"']),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(st.sampled_from("ab"), inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f'"{name}": {value}' for name, value in pairs) + "}"
        ),
    ),
    max_leaves=5,
)


@st.composite
def json_documents(draw: Any) -> list[dict[str, str]]:
    """Return lines: name -> text of a value. A column tends to have values of one kind."""
    several = [NUMBERS, LEAVES, VALUES, st.integers(0, 99).map(str), st.just('"a"')]
    kinds = [draw(st.sampled_from(several)) for _ in "xyz"]
    line = st.fixed_dictionaries({}, optional=dict(zip("xyz", kinds, strict=True)))
    first = draw(st.fixed_dictionaries(dict(zip("xyz", kinds, strict=True))))
    return [first, *draw(st.lists(line, max_size=20))]


def write_lines(path: Path, lines: list[dict[str, str]]) -> None:
    texts = ["{" + " , ".join(f'"{name}" :{value}' for name, value in line.items()) + "}" for line in lines]
    path.write_text("\n\n".join(texts), encoding="utf-8")


class Number(str):
    """The text of a number."""


def exact(text: str) -> Any:
    """Return a JSON value with numbers as texts and objects as pairs, so that no difference is lost."""
    number = {"parse_int": Number, "parse_float": Number}
    return json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs), **number)


@settings(max_examples=budget(200))
@given(json_documents(), st.sampled_from([None, 1, 4]), st.sampled_from([2, 1000]))
@example([{"x": "1.0", "y": "1e400", "z": '{"a": 1, "a": 2}'}], None, 1000)
def test_json_is_passed_to_json_lines_as_it_was_written(
    folder: Path, lines: list[dict[str, str]], shard_rows: int | None, first: int
) -> None:
    write_lines(folder / "in.jsonl", lines)
    with mock.patch.object(json_format, "FIRST_LINES", first):
        parts, _ = passed_through(
            folder / "in.jsonl", list("xyz"), kind="jsonl", shard_rows=shard_rows, schema={"x": "json"}, columns=["x"]
        )
    rows = [dict(exact(line)[1]) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
    assert [row["row"] for row in rows] == [str(i) for i in range(len(lines))]
    assert [[row[name] for name in "xyz"] for row in rows] == [
        [exact(line.get(name, "null")) for name in "xyz"] for line in lines
    ]


@settings(max_examples=budget(200))
@given(json_documents(), st.sampled_from([2, 1000]))
@example([{"x": "1", "y": '"a"', "z": "null"}, {"x": "2.5", "y": "1", "z": '"late"'}], 1000)
@example([{"x": "1", "y": "0.5", "z": "[0.5]"}, {}, {"y": "9007199254740993", "z": "[9007199254740993]"}], 2)
def test_json_is_passed_to_parquet_in_types_that_hold_it_or_as_its_text(
    folder: Path, lines: list[dict[str, str]], first: int
) -> None:
    write_lines(folder / "in.jsonl", lines)
    with mock.patch.object(json_format, "FIRST_LINES", first):
        try:
            parts, _ = passed_through(folder / "in.jsonl", list("xyz"), schema={"x": "json"}, columns=["x"])
        except InputError:
            # A later line has another type than the first ones.
            assert first < len(lines)
            schema = dict.fromkeys("xyz", "json")
            parts, _ = passed_through(folder / "in.jsonl", list("xyz"), schema=schema, columns=["x"])
    table = written(parts)
    for name in "xyz":
        texts, found = [line.get(name, "null") for line in lines], table[name].to_pylist()
        pairs = [(text, value) for text, value in zip(texts, found, strict=True) if value is not None]
        assert len(pairs) == len([text for text in texts if text != "null"])
        assert all(has_value(*pair) for pair in pairs) or all(has_text(*pair) for pair in pairs), pairs


def has_value(text: str, found: Any) -> bool:
    return same_value(json.loads(text, parse_float=Decimal), found)


def has_text(text: str, found: Any) -> bool:
    return isinstance(found, str) and exact(found) == exact(text)


def same_value(read: Any, found: Any) -> bool:
    """Return whether a value is the one that was read. A float has all digits of the decimal number."""
    if isinstance(read, list):
        return len(read) == len(found) and all(map(same_value, read, found))
    if isinstance(found, float):
        return Decimal(repr(found)) == Decimal(read)
    return type(read) is type(found) and bool(read == found)


SCALARS = [
    pa.int8(), pa.uint32(), pa.uint64(), pa.int64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ms", "Europe/Berlin"),
    pa.time64("ns"), pa.duration("us"), pa.decimal128(9, 2), pa.null(), pa.binary(2),
    *(getattr(pa, name)(5, 2) for name in ("decimal32", "decimal64") if hasattr(pa, name)),
]  # fmt: skip
#: Names of the fields of structs.
NAMES = ["a", "b: c", "a, b", "a<b", "c>", '"', '"a"', "", " a ", "a[3]", "\\", "\n"]
TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.list_(kind, 2)),
        st.tuples(st.sampled_from(NAMES), inner).map(lambda one: pa.struct([one, ("z", pa.int32())])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.sampled_from([pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.large_binary()]),
    ),
    max_leaves=3,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type as pyarrow takes them."""
    types = pa.types
    if types.is_null(kind):
        return st.none()
    if types.is_boolean(kind):
        found: Any = st.booleans()
    elif types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(1 << (kind.bit_width - 1))
        found = st.integers(low, low + (1 << kind.bit_width) - 1)
    elif types.is_floating(kind):
        found = st.floats(width=kind.bit_width)
    elif types.is_decimal(kind):
        found = st.decimals(-999, 999, places=2)
    elif types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind):
        found = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    elif types.is_fixed_size_binary(kind):
        found = st.binary(min_size=2, max_size=2)
    elif types.is_binary(kind) or types.is_large_binary(kind):
        found = st.binary(max_size=3)
    elif types.is_map(kind):
        found = st.dictionaries(st.text("ab", max_size=2), values_of(kind.item_type), max_size=2).map(
            lambda pairs: list(pairs.items())
        )
    elif types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif types.is_nested(kind):
        size = kind.list_size if types.is_fixed_size_list(kind) else None
        found = st.lists(values_of(kind.value_type), min_size=size or 0, max_size=3 if size is None else size)
    else:
        # Dates and times: days, or units of the type.
        found = st.integers(0, 80_000)
    return st.one_of(st.none(), found)


@st.composite
def tables(draw: Any) -> Any:
    kind = draw(TYPES)
    return pa.table({"x": pa.array(draw(st.lists(values_of(kind), min_size=1, max_size=20)), kind)})


@settings(max_examples=budget(200))
@given(tables(), st.sampled_from([None, 2]))
def test_parquet_is_passed_through_in_its_types(folder: Path, table: Any, shard_rows: int | None) -> None:
    pq.write_table(table, folder / "in.parquet", row_group_size=5)
    parts, batches = passed_through(folder / "in.parquet", ["x"], shard_rows=shard_rows)
    found = written(parts)
    read = pq.read_table(folder / "in.parquet")["x"]
    assert repr(found["x"].to_pylist()) == repr(read.to_pylist())
    assert plain_type(found.schema.field("x").type) == plain_type(read.type)
    assert sum(batch.rows for batch in batches) == len(read)


@settings(max_examples=budget(200))
@given(TYPES.map(plain_type), TYPES.map(plain_type), st.data())
def test_the_type_of_two_files_holds_the_values_of_both(one: Any, other: Any, data: Any) -> None:
    kind = widest_type(one, other)
    assert widest_type(other, one) == kind
    for own in (one, other) if kind is not None else ():
        column = pa.array(data.draw(st.lists(values_of(own), max_size=4)), own)
        # Back in the narrower type, no value differs. Only nulls become nulls.
        wide = column.cast(kind)
        assert repr((wide if "null" in type_text(own) else wide.cast(own)).to_pylist()) == repr(column.to_pylist())


@settings(max_examples=budget(200))
@given(TYPES.map(plain_type))
def test_the_text_of_a_type_names_it(kind: Any) -> None:
    assert parse_type(type_text(kind)) == kind
