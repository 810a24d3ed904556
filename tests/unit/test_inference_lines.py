"""Plain lines as input of a batch inference, and text files that are cut at the bytes of their rows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import random

import pytest

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs import open_input, text_tables
from airflow_provider_dtrain.train.inference.shards import Shard

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.torch
BOM = b"\xef\xbb\xbf"


def opened(path, passed=(), **settings):
    return open_input(
        {"path": str(path), **settings}, storage={}, passed=passed, skips_bad_rows=settings.pop("skips", False)
    )


def read(found, batch_size=16):
    plan = found.plan()
    sent = [Shard.from_dict(json.loads(json.dumps(shard.to_dict()))) for shard in plan.shards]
    return plan, [batch for shard in sent for batch in found.batches(shard, batch_size)]


@pytest.mark.parametrize("mark", [b"", BOM], ids=["plain", "bom"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r\n"], ids=["no-end", "lf", "crlf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_each_line_is_a_row_whatever_its_end_and_the_file_is_cut(tmp_path, end, last, mark):
    texts = [f"line {i} \u00e4 \r{'' if i % 3 else ' , '}" if i % 7 else "" for i in range(500)] + ["the last"]
    content = mark + end.join(text.encode() for text in texts) + last
    (tmp_path / "a.txt").write_bytes(content)
    plan, batches = read(opened(tmp_path / "a.txt", passed=["text"], shard_rows=64))
    assert (len(plan.shards), plan.rows) == (8, 501)
    # A carriage return alone is part of the line, and one before a line feed is not.
    expected = content.removeprefix(BOM).decode().split("\n")
    expected = [text.removesuffix("\r") for text in expected[:-1]] + ([expected[-1]] if expected[-1] else [])
    assert [text for one in batches for text in one.data["text"]] == expected
    assert [text for one in batches for text in one.passed["text"].to_pylist()] == expected
    assert [i for one in batches for i in one.ids] == list(range(501))


def test_a_line_that_is_no_utf_8_is_a_bad_row(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\xff\xfe\nthree")
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        read(opened(tmp_path / "a.txt"))
    _, (batch,) = read(opened(tmp_path / "a.txt", skips=True))
    assert (batch.data["text"], list(batch.ids), [row.row_id for row in batch.bad_rows]) == (
        ["one", "three"],
        [0, 2],
        [1],
    )


def test_a_compressed_file_is_one_shard_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(text_tables, "NOTED_BYTES", 10)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\n".join(b"%d" % i for i in range(1000))))
    with caplog.at_level(logging.WARNING):
        plan, batches = read(opened(tmp_path / "a.txt.gz", shard_rows=10))
    assert len(plan.shards) == 1
    assert sum(one.rows for one in batches) == 1000
    assert "cannot be cut" in caplog.text


def test_other_columns_and_an_empty_file_are_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match="only the column 'text'"):
        opened(tmp_path / "a.txt", passed=["id"]).plan()
    with pytest.raises(InputError):
        opened(tmp_path / "a.txt").plan()


@pytest.mark.parametrize("seed", range(6))
def test_pieces_of_a_csv_are_what_pythons_reader_reads_of_the_whole_file(tmp_path, seed):
    """Quoted line breaks, doubled quotes, both line ends, a mark and no last line end, cut at every row."""
    rng = random.Random(seed)  # noqa: S311
    pieces = ["a", '"', "\n", "\r\n", ",", " ", "\u00e4", "7"]
    rows = [["".join(rng.choices(pieces, k=rng.randrange(6))), str(i), rng.choice(["x", '"y"\n'])] for i in range(60)]
    end = rng.choice(["\n", "\r\n"])
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator=end)
    writer.writerows([["text", "id", "note"], *rows])
    content = buffer.getvalue()
    content = content if rng.random() < 0.5 else content.removesuffix(end)
    (tmp_path / "a.csv").write_bytes((BOM if seed % 2 else b"") + content.encode())
    expected = list(csv.reader(io.StringIO(content, newline="")))[1:]
    for shard_rows in (1, 7):
        plan, batches = read(opened(tmp_path / "a.csv", passed=["text", "id", "note"], shard_rows=shard_rows), 3)
        found = [[row["text"], row["id"], row["note"]] for one in batches for row in one.passed.to_pylist()]
        assert (found, len(plan.shards)) == (expected, -(-60 // shard_rows))
