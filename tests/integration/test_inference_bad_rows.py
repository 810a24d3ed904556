"""Bad rows of a batch inference on real ranks: they are left out or marked alone, and all other rows have results."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from tests.support.inference import ROWS, rows, rows_of_a_loop, write_input  # noqa: E402
from tests.support.inference_ranks import events, infer, well  # noqa: E402

pytestmark = pytest.mark.torch
BAD = [450, 470]


@pytest.fixture
def place(tmp_path):
    write_input(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def alone():
    return rows_of_a_loop()


def manifest(place, folder="out"):
    return json.loads((place / folder / "_manifest.json").read_text())


@pytest.mark.parametrize("policy", ["skip", "mark"])
def test_rows_that_cannot_be_computed_are_set_aside_alone(place, alone, policy):
    ranks = well(infer(place, 2, processor="processors:BadRows", on_bad_row=policy))

    found = rows(place)
    good = [row for row in found if row["row"] not in BAD]
    expected = [row for row in alone if row["row"] not in BAD]
    assert [{name: row[name] for name in expected[0]} for row in good] == expected
    assert [row["row"] for row in found] == (
        [i for i in range(ROWS) if i not in BAD] if policy == "skip" else [*range(ROWS)]
    )
    marked = [row for row in found if row.get("error") is not None]
    if policy == "mark":
        assert [(row["row"], row["label"], row["score"], row["id"]) for row in marked] == [
            (i, None, None, None) for i in BAD
        ]
        assert [row["error"] for row in marked] == [f"a.parquet rows 450-499: ValueError: row {i} is bad" for i in BAD]
    about = manifest(place)
    assert (about["rows"], about["rows_read"], about["rows_bad"]) == (len(found), ROWS - 2, 2)
    assert [row["row"] for row in about["bad_rows"]] == BAD
    # Metrics that were added before an exception do not count.
    assert about["metrics"]["seen"] == ROWS - 2
    assert sorted(event["rows_bad"] for event in events(ranks, "shard_done"))[-2:] == [0, 2]
    named = [row for event in events(ranks, "shard_done") for row in event["bad_rows"]]
    assert [row[0] for row in named] == BAD
    assert all("is bad" in row[2] for row in named)
    assert [event["tries"] for event in events(ranks, "shard_failed")] == [1, 2]


def test_a_run_that_goes_on_after_bad_rows_computes_only_what_is_missing(place):
    well(infer(place, processor="processors:BadRows", on_bad_row="mark", run="t1.1.1"))
    before = manifest(place)
    (place / "out" / before["objects"][3]["name"]).unlink()
    ranks = well(infer(place, 2, processor="processors:BadRows", on_bad_row="mark", run="t1.2.2"))
    after = manifest(place)
    assert [event["shard"] for event in events(ranks, "shard_done")] == [3]
    assert {one["shard"]: one["sha256"] for one in after["objects"]} == {
        one["shard"]: one["sha256"] for one in before["objects"]
    }
    assert after["rows_bad"] == 2
    assert events(ranks, "shards")[0]["rows_bad"] == 2


def test_a_killed_run_and_its_continuation_have_the_bits_of_a_run_that_was_not_killed(place):
    bad = {"on_bad_row": "mark", "processor": "processors:BadRowsDiesOnce"}
    (place / "died").touch()
    well(infer(place, 2, folder="whole", run="t2.1.1", **bad))
    (place / "died").unlink()
    ranks = infer(place, 1, run="t1.1.7", **bad)
    assert ranks[0].exit_code == -9
    assert 0 < len(events(ranks, "shard_done")) < 20
    well(infer(place, 2, run="t1.2.8", failures={"17": 1}, **bad))
    first, second = manifest(place, "whole"), manifest(place)
    assert [one["sha256"] for one in second["objects"]] == [one["sha256"] for one in first["objects"]]
    assert (second["rows"], second["rows_bad"], second["bad_rows"]) == (ROWS, 2, first["bad_rows"])


@pytest.mark.parametrize(("processor", "message"), [("BadShard", "No row of the shard"), ("BadBatch", "too many rows")])
def test_a_shard_without_a_good_row_and_an_error_of_no_single_row_are_of_the_shard(place, processor, message):
    (rank,) = infer(place, processor=f"processors:{processor}", on_bad_row="skip")
    assert rank.exit_code == 66
    assert message in rank.error["message"]
    ranks = well(infer(place, processor=f"processors:{processor}", on_bad_row="skip", on_bad_shard="skip", folder="b"))
    assert [one["shard"] for one in manifest(place, "b")["skipped"]] == [9]
    assert len(rows(place, "b")) == ROWS - 50
    assert ranks


def test_rows_that_cannot_be_read_are_marked_between_the_others(place):
    lines = ["x,text", "1,a", "2,b,too,many", "3,c", "4,d,more"]
    (place / "in.csv").write_bytes("\r\n".join(lines).encode())
    inputs = {"path": str(place / "in.csv")}
    well(infer(place, processor="processors:echo", inputs=inputs, outputs={"columns": ["x"]}, on_bad_row="mark"))
    found = rows(place)
    assert [(row["row"], row["x"], row["n"]) for row in found] == [
        (0, "1", 1),
        (1, None, None),
        (2, "3", 1),
        (3, None, None),
    ]
    assert [row["error"] is None for row in found] == [True, False, True, False]
    assert f"{place}/in.csv" in found[1]["error"]


def test_a_column_of_the_name_error_is_refused_where_bad_rows_are_marked(place):
    (place / "in.jsonl").write_text('{"text": "a", "error": "e"}\n')
    inputs = {"path": str(place / "in.jsonl")}
    (rank,) = infer(
        place, processor="processors:echo", inputs=inputs, outputs={"columns": ["error"]}, on_bad_row="mark"
    )
    assert rank.exit_code != 0
    assert "adds the column 'error'" in rank.error["message"]


def test_the_first_rows_of_the_results_are_reported_once_per_attempt(place):
    ranks = well(infer(place, 2))
    (event,) = events(ranks, "results_preview")
    assert [name for name, _ in event["columns"]] == ["row", "id", "label", "score"]
    assert len(event["rows"]) == 20
    published = {str(row["row"]): row for row in rows(place)}
    for row in event["rows"]:
        assert row[2] == str(published[row[0]]["label"])
        assert float(row[3]) == pytest.approx(published[row[0]]["score"], rel=1e-4)
    ranks = well(infer(place, 2, folder="none", outputs={"preview": 0}))
    assert events(ranks, "results_preview") == []
