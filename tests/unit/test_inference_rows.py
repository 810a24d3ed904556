"""Rows of a batch inference's output: results of every kind, and the checks of their number and types."""

from __future__ import annotations

import datetime
import io

import pytest

from airflow_provider_dtrain.train.errors import OutputError, ResultRowsError, SchemaError
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

from airflow_provider_dtrain.train.inference.column_types import parse_type, type_text  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.rows import to_rows  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.writers import PartWriter  # noqa: E402


def batch(rows=2, first_row=0, **passed):
    return InputBatch(None, rows, pa.RecordBatch.from_pydict(passed) if passed else None, first_row)


def table(result, rows=2, **settings):
    return to_rows(result, batch(rows), OutputOptions.parse(settings))


def types(result, rows=2, **settings):
    return {field.name: type_text(field.type) for field in table(result, rows, **settings).schema}


def test_results_of_every_kind_become_the_same_rows():
    import pandas as pd

    values = {"x": [1, 2], "s": ["a", None]}
    results = [
        values,
        {"x": torch.tensor([1, 2]), "s": ["a", None]},
        {"x": np.array([1, 2]), "s": np.array(["a", None], dtype=object)},
        {"x": [torch.tensor(1), torch.tensor(2)], "s": pa.array(["a", None]).dictionary_encode()},
        {"x": pd.Series([1, 2]), "s": pa.chunked_array([["a"], [None]])},
        [{"x": 1, "s": "a"}, {"x": 2}],
        pa.table(values),
        pa.RecordBatch.from_pydict(values),
        pd.DataFrame(values),
    ]
    for result in results:
        assert table(result).to_pydict() == values, type(result)
        assert types(result) == {"x": "int64", "s": "string"}, type(result)


def test_a_key_that_dicts_have_later_is_null_before_if_it_is_declared():
    options = OutputOptions.parse({"schema": {"why": "string"}})
    found = [to_rows([{"v": 1}, {"v": 2, **late}], batch(), options) for late in ({}, {"why": "late"}, {})]
    assert [one.to_pydict()["why"] for one in found] == [[None, None], [None, "late"], [None, None]]
    options = OutputOptions()
    to_rows([{"v": 1}, {"v": 2}], batch(), options)
    with pytest.raises(SchemaError, match=r"new column 'why'.* declare the keys that come later in outputs.schema"):
        to_rows([{"v": 1}, {"why": "late"}], batch(), options)


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[("a", 1)], None, []], MAP),
        ([[("a", "b")], []], pa.map_(pa.string(), pa.string())),
        ([[(1, 2), (3, 4)]], pa.map_(pa.int64(), pa.int64())),
        ([{"m": [("a", 1)]}, None], pa.struct([("m", MAP)])),
    ],
)
def test_a_map_column_is_returned_as_it_came_in(values, kind):
    rows = len(values)
    one = InputBatch(None, rows, None, 0, maps={"m": kind})
    found = to_rows({"m": pa.array(values, kind).to_pylist(), "n": [0] * rows}, one, OutputOptions())
    assert found.column("m").type == kind
    assert found.column("m").to_pylist() == values


def test_pairs_that_are_no_maps_of_the_input_are_lists_if_their_values_have_one_type():
    assert types({"box": [[(1, 2)], [(3, 4)]]}) == {"box": "list<list<int64>>"}
    assert types({"m": [[("a", 1)], []]}) == {"m": "map<string, int64>"}


@pytest.mark.parametrize("value", [{"a": 1}, [("a", 1)], [{"b": "x"}], datetime.timedelta(seconds=1)])
def test_a_column_of_any_type_may_be_null_in_later_batches(value):
    options = OutputOptions()
    kind = to_rows({"v": [value, value]}, batch(), options).schema
    options = OutputOptions()
    options.expect({field.name: type_text(field.type) for field in kind})
    assert to_rows({"v": [None, None]}, batch(), options).schema == kind


def test_one_array_is_the_column_output():
    for result in (torch.tensor([1.5, 2.5]), np.array([1.5, 2.5]), [1.5, 2.5], pa.array([1.5, 2.5])):
        assert table(result).to_pydict() == {"output": [1.5, 2.5]}


def test_tensors_keep_type_and_shape():
    expected = {
        "float32[3,4]": torch.zeros(2, 3, 4), "float16[1]": torch.zeros(2, 1, dtype=torch.float16),
        "float32": torch.zeros(2, dtype=torch.bfloat16), "bool[2]": torch.zeros(2, 2, dtype=torch.bool),
        "uint8": torch.zeros(2, dtype=torch.uint8), "float32[2]": torch.zeros(2, 3, requires_grad=True).t()[:2],
        "float64": torch.zeros(2, dtype=torch.float64),
    }  # fmt: skip
    for text, tensor in expected.items():
        assert types({"x": tensor}) == {"x": text}
        assert table({"x": tensor}).column(0).to_pylist() == tensor.tolist()


def test_values_of_tensors_in_any_layout_are_exact():
    source = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in (
        source,
        source.transpose(1, 2),
        source[:, 1:, ::2],
        source.expand(2, 3, 4),
        -source.to(torch.bfloat16),
    ):
        assert table({"x": tensor}).column(0).to_pylist() == tensor.tolist()
    assert table({"x": np.arange(4, dtype=">i4").reshape(2, 2)[:, ::-1]}).to_pydict() == {"x": [[1, 0], [3, 2]]}


def test_rows_do_not_change_when_the_processor_reuses_its_memory():
    tensor, array = torch.tensor([1.0, 2.0]), np.array([[1], [2]])
    rows = table({"t": tensor, "a": array})
    tensor.zero_()
    array[:] = 0
    assert rows.to_pydict() == {"t": [1.0, 2.0], "a": [[1], [2]]}


def test_lists_of_arrays_are_lists_of_any_length_or_tensors_of_one_shape():
    assert types({"x": [torch.ones(1), torch.ones(3)]}) == {"x": "list<float32>"}
    assert table({"x": [np.ones(1), None]}).to_pydict() == {"x": [[1.0], None]}
    assert table({"x": [torch.tensor([1]), np.array([0.5])]}).to_pydict() == {"x": [[1.0], [0.5]]}
    assert table({"x": [torch.tensor(1), torch.tensor(0.5)]}).to_pydict() == {"x": [1.0, 0.5]}
    assert types({"x": [torch.ones(3, 2), torch.ones(3, 2)]}) == {"x": "float32[3,2]"}
    with pytest.raises(SchemaError, match="Column 'x' of the result cannot be written"):
        table({"x": [torch.ones(3, 2), torch.ones(2, 2)]})


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"x": [1]}, "returned 1 rows in column 'x' for a batch of 2 rows"),
        ({"x": [1, 2], "y": torch.zeros(3)}, "returned 3 rows in column 'y'"),
        (torch.zeros(0), "returned 0 rows"), ([], "returned 0 rows"), (torch.tensor(1.0), "is a single value"),
    ],
)  # fmt: skip
def test_another_number_of_rows_is_refused(result, words):
    with pytest.raises(ResultRowsError, match=words):
        table(result)


@pytest.mark.parametrize(
    "result",
    [
        "ab", b"ab", 1, (torch.zeros(2), torch.zeros(2)), {"x": "ab"}, {"x": {"a": 1, "b": 2}}, {1: [1, 2]},
        {"": [1, 2]}, {}, {"x": [object(), object()]}, {"x": [1, "a"]}, {"x": [2**70, 1]}, {"x": ["\ud800", "a"]},
        {"x": torch.zeros(2, dtype=torch.complex64)}, {"x": torch.zeros(2, 2).to_sparse()}, {"x": torch.zeros(2, 0)},
        {"x": {1, 2}}, object(), (row for row in [1, 2]),
    ],
    # Workers compare the ids: no addresses.
    ids=lambda result: repr(result).partition(" at 0x")[0][:30],
)  # fmt: skip
def test_results_that_cannot_be_written_are_refused(result):
    with pytest.raises(SchemaError):
        table(result)


def test_row_ids_and_passed_columns_come_first():
    options = OutputOptions.parse({"columns": ["id"], "row_id": "row"})
    rows = to_rows({"y": [1.0, 2.0]}, batch(2, first_row=(3 << 40) + 5, id=["a", "b"], other=[1, 2]), options)
    assert rows.to_pydict() == {"row": [(3 << 40) + 5, (3 << 40) + 6], "id": ["a", "b"], "y": [1.0, 2.0]}


@pytest.mark.parametrize("name", ["id", "row"])
def test_columns_that_collide_are_refused(name):
    options = OutputOptions.parse({"columns": ["id"], "row_id": "row"})
    with pytest.raises(SchemaError, match=f"returns a column '{name}'"):
        to_rows({name: [1, 2]}, batch(id=["a", "b"]), options)
    with pytest.raises(SchemaError, match="have the column 'id' twice"):
        OutputOptions.parse({"columns": ["id"], "row_id": "id"})


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"x": [1, 2]}, {"x": [1.5, 2.5]}, "'x' of the result is float64, it was int64"),
        ({"x": [1, 2]}, {"x": ["1", "2"]}, "is string, it was int64"),
        ({"x": [1, 2]}, {"y": [1, 2]}, "has no column 'x'"),
        ({"x": [1, 2]}, {"x": [1, 2], "y": [1, 2]}, "has a new column 'y'"),
        (torch.zeros(2, 3), torch.zeros(2, 4), r"float32\[4\], it was float32\[3\]"),
        ({"x": torch.zeros(2, dtype=torch.float16)}, {"x": torch.zeros(2)}, "is float32, it was float16"),
        ({"x": [1, 2]}, None, "returned rows for earlier batches and None for this one"),
        (None, {"x": [1, 2]}, "returned None for earlier batches and rows for this one"),
    ],
)
def test_other_columns_or_types_than_before_are_refused(first, second, words):
    options = OutputOptions.parse({})
    to_rows(first, batch(), options)
    with pytest.raises((SchemaError, ResultRowsError), match=words):
        to_rows(second, batch(), options)
    to_rows(first, batch(), options)


def test_a_run_that_resumes_requires_the_columns_of_the_parts_that_exist():
    options = OutputOptions.parse({})
    options.expect({"x": "float32[2]", "s": "list<string>"})
    assert to_rows({"s": [["a"], None], "x": torch.zeros(2, 2)}, batch(), options).schema.names == ["x", "s"]
    with pytest.raises(SchemaError, match=r"it was float32\[2\]"):
        to_rows({"s": [["a"], None], "x": torch.zeros(2, 3)}, batch(), options)


def test_narrower_and_null_columns_take_the_type_of_earlier_rows():
    options = OutputOptions.parse({})
    to_rows({"i": [1, 2], "f": [1.0, 2.0], "s": ["a", "b"], "l": [[1], [2, 3]]}, batch(), options)
    rows = to_rows(
        {
            "i": torch.tensor([1, 2], dtype=torch.int8), "f": torch.ones(2), "s": [None, None],
            "l": torch.ones(2, 2, dtype=torch.int32),
        },
        batch(), options,
    )  # fmt: skip
    assert [type_text(field.type) for field in rows.schema] == ["int64", "float64", "string", "list<int64>"]
    assert rows.to_pydict() == {"i": [1, 2], "f": [1.0, 1.0], "s": [None, None], "l": [[1, 1], [1, 1]]}


def test_declared_types_convert_numbers_without_loss():
    declared = {"label": "int64", "score": "float32", "text": "string", "v": "list<float64>", "t": "float16[2]"}
    result = {
        "label": torch.tensor([1.0, 2.0]), "score": [0.5, None], "text": [None, None],
        "v": torch.ones(2, 2), "t": torch.ones(2, 2),
    }  # fmt: skip
    assert types(result, schema=declared) == declared
    assert table(result, schema=declared).column("score").to_pylist() == [0.5, None]


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1.5, 2.0], "int64"), ([300, 1], "uint8"), (["1", "2"], "int64"), ([1, 2], "string"), ([True, False], "int64"),
     ([[1], [2, 3]], "int64[2]"), ([b"a", b"b"], "string"), ([1, 2], "timestamp")],
)  # fmt: skip
def test_values_that_do_not_fit_the_declared_type_are_refused(values, kind):
    with pytest.raises(SchemaError, match="outputs.schema declares"):
        table({"x": values}, schema={"x": kind})


def test_a_declared_column_that_is_missing_and_a_type_that_does_not_exist_are_refused():
    with pytest.raises(SchemaError, match="declares the column 'y', the result has only: x"):
        table({"x": [1, 2]}, schema={"y": "int64"})
    with pytest.raises(SchemaError, match="'integer64' in outputs.schema is no type"):
        table({"x": [1, 2]}, schema={"x": "integer64"})


@pytest.mark.parametrize("text", ["int64", "list<float32>", "float32[3,224]", "list<list<int8>>", "list<int64[2]>",
                                  "timestamp[ns]", "date", "decimal128(5, 2)", "bool[1]", "binary"])  # fmt: skip
def test_the_text_of_a_type_and_the_type_belong_together(text):
    assert type_text(parse_type(text)) == text


@pytest.mark.parametrize(
    "text", ["float32[0]", "float32[99999999999999999999]", "list<" * 2000 + "int8", "decimal128(99, 1)", "", "x[1]"]
)
def test_types_that_cannot_exist_are_refused(text):
    with pytest.raises(SchemaError, match=r"outputs\.schema"):
        OutputOptions.parse({"schema": {"x": text}})


def written(options, *results, rows=2):
    file = io.BytesIO()
    writer = PartWriter(file, options)
    for result in results:
        writer.write(to_rows(result, batch(rows), options))
    info = writer.close()
    assert not file.closed
    return info, io.BytesIO(file.getvalue())


def test_a_parquet_part_holds_all_rows_and_types():
    day = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    result = {
        "x": torch.ones(2, 3),
        "s": ["a", None],
        "b": [b"1", b""],
        "t": [day, None],
        "n": [{"a": [1]}, None],
        "e": [float("nan"), None],
    }
    info, file = written(OutputOptions.parse({}), result, result)
    found = pq.read_table(file)
    assert info.rows == found.num_rows == 4
    assert info.schema["x"] == "float32[3]"
    for name in ("x", "s", "b", "t", "n"):
        assert found.column(name).to_pylist() == table(result).column(name).to_pylist() * 2
    assert str(found.column("e").to_pylist()) == "[nan, None, nan, None]"


def test_a_column_that_begins_with_nulls_has_the_type_of_its_later_values():
    info, file = written(OutputOptions.parse({}), {"s": [None, None]}, {"s": ["a", "b"]}, {"s": [None, None]})
    assert dict(info.schema) == {"s": "string"}
    assert pq.read_table(file).column("s").to_pylist() == [None, None, "a", "b", None, None]


def test_a_column_of_nulls_whose_type_comes_too_late_is_refused(monkeypatch):
    from airflow_provider_dtrain.train.inference.outputs import parquet

    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    with pytest.raises(SchemaError, match="Declare its type in outputs.schema"):
        written(OutputOptions.parse({}), {"s": [None, None]}, {"s": ["a", "b"]})
    info, _ = written(OutputOptions.parse({"schema": {"s": "string"}}), {"s": [None, None]}, {"s": ["a", "b"]})
    assert dict(info.schema) == {"s": "string"}


def test_row_groups_bound_the_memory_of_a_part(monkeypatch):
    from airflow_provider_dtrain.train.inference.outputs import parquet

    monkeypatch.setattr(parquet, "GROUP_ROWS", 10)
    _, file = written(OutputOptions.parse({}), *({"x": [i] * 4} for i in range(25)), rows=4)
    facts = pq.ParquetFile(file).metadata
    assert [facts.row_group(i).num_rows for i in range(facts.num_row_groups)] == [12] * 8 + [4]


class FullDisk(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_output_error():
    options = OutputOptions.parse({})
    writer = PartWriter(FullDisk(), options)
    writer.write(to_rows([1, 2], batch(), options))
    with pytest.raises(OutputError, match="No space left on device"):
        writer.close()
