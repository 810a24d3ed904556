"""Batch inference on real ranks: the union of all outputs equals that of one process, whatever happens."""

from __future__ import annotations

import json
import os

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("torch")

import pyarrow.parquet as pq  # noqa: E402

from tests.support.inference import ROWS, rows, rows_of_a_loop, write_input  # noqa: E402
from tests.support.inference_ranks import events, infer, well  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path):
    write_input(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def alone():
    return rows_of_a_loop()


@pytest.mark.nightly("1", "3")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_union_of_the_outputs_is_that_of_one_process_row_for_row(place, alone, size):
    ranks = well(infer(place, size))

    assert rows(place) == alone
    (manifest,) = events(ranks, "manifest")
    assert manifest["rows"] == ROWS
    (validation,) = events(ranks, "validation")
    assert 0 <= validation["metrics"]["positive"] <= 1
    assert len(events(ranks, "shard_done")) == 20


def test_a_killed_rank_costs_only_its_shards_and_another_number_of_ranks_computes_them(place, alone):
    ranks = infer(place, 1, processor="processors:DiesOnce")
    assert ranks[0].exit_code == -9
    # The last shard may be in the ledger although its rank was killed before it could say so.
    before = {int(entry.name.partition(".")[0]) for entry in (place / "out/_dtrain/done").iterdir()}
    reported = {event["shard"] for event in events(ranks, "shard_done")}
    assert reported <= before
    assert len(before - reported) <= 1
    started = {event["shard"] for event in events(ranks, "shard_started")}
    assert 0 < len(before) < 20
    assert 9 in started - before

    again = well(infer(place, 2, run="t1.2.8", processor="processors:DiesOnce", failures={"9": 1}))

    assert {event["shard"] for event in events(again, "shard_done")} == set(range(20)) - before
    assert rows(place) == alone


def test_a_processor_that_ends_its_process_with_success_has_failed_in_its_shard(place):
    (rank,) = infer(place, processor="processors:Leaves")

    assert rank.exit_code == 67
    started = {event["shard"] for event in events([rank], "shard_started")}
    assert 9 in started - {event["shard"] for event in events([rank], "shard_done")}
    assert os.listdir(place / "out") == ["_dtrain"]


def test_a_run_whose_folder_was_taken_over_publishes_nothing(place):
    (rank,) = infer(place, processor="processors:Robbed")

    assert rank.exit_code == 1
    assert rank.said("has been taken over by run thief on host gpu-9")
    assert os.listdir(place / "out") == ["_dtrain"]


def test_a_slow_rank_does_not_hold_up_the_others(place, alone):
    ranks = well(infer(place, 2, processor="processors:Slow"))

    slow, fast = (len([event for event in rank.events if event["kind"] == "shard_done"]) for rank in ranks)
    assert slow + fast == 20
    assert fast > 3 * slow
    assert rows(place) == alone


def test_a_second_run_computes_nothing_again(place, alone):
    well(infer(place, 2))
    before = (place / "out" / "_manifest.json").read_bytes()

    ranks = well(infer(place, 1, run="t2.1.9"))

    assert events(ranks, "shard_started") == []
    assert ranks[0].said(r"20 of 20 shards done in .*: nothing is left to compute")
    (shards,) = events(ranks, "shards")
    assert (shards["total"], shards["missing"], shards["rows"], shards["rows_done"]) == (20, 0, ROWS, ROWS)
    assert len(events(ranks, "manifest")) == len(events(ranks, "validation")) == 1
    assert (place / "out" / "_manifest.json").read_bytes() == before


def test_a_lost_part_of_a_published_folder_is_computed_again(place, alone):
    well(infer(place))
    (place / "out" / "part-00003.parquet").unlink()

    ranks = well(infer(place, run="t2.1.9"))

    assert [event["shard"] for event in events(ranks, "shard_done")] == [3]
    assert rows(place) == alone


def test_a_poisoned_shard_is_tried_three_times_and_fails_the_run_with_its_rows(place):
    (rank,) = infer(place, processor="processors:Poisoned")

    assert rank.exit_code == 66
    words = r"Shard 9 \(a\.parquet rows 450-499\) failed 3 times; the last error: ValueError: row 450 is poison"
    assert rank.said(words)
    assert "BadShardError" in rank.error["message"]
    assert [event["tries"] for event in rank.events if event["kind"] == "shard_failed"] == [1, 2, 3]
    assert not (place / "out" / "_manifest.json").exists()
    assert os.listdir(place / "out") == ["_dtrain"]


def test_rows_of_a_shard_that_is_computed_twice_count_once(place, alone):
    (rank,) = well(infer(place, processor="processors:Flaky"))

    assert rank.said("Shard 9 .* failed, try 1 of 3: ValueError: once")
    assert rank.said(r"(?m)20 of 20 shards, 1,000 rows, [\d,]+ rows/s$")
    assert rows(place) == alone


@pytest.mark.parametrize("size", [1, 2])
def test_a_column_that_has_values_in_one_shard_only_has_one_type_in_all_parts(place, size):
    well(infer(place, size, processor="processors:Sparse", outputs={"columns": []}))

    found = rows(place)
    assert [row["note"] for row in found] == [None] * 470 + ["late"] + [None] * 529
    parts = [pq.read_schema(part) for part in (place / "out").glob("part-*")]
    assert {str(schema.field("note").type) for schema in parts} == {"string"}
    manifest = json.loads((place / "out" / "_manifest.json").read_text())
    assert manifest["schema"]["note"] == "string"
    # A later run finds every part.
    again = well(infer(place, run="t2.1.9", processor="processors:Sparse", outputs={"columns": []}))
    assert events(again, "shard_started") == []


def test_an_input_that_cannot_be_read_is_tried_once_and_has_no_traceback(place):
    lines = [*['{"text": "a"}'] * 1500, '{"text": "b", "late": 1}']
    (place / "in.jsonl").write_text("\n".join(lines))
    inputs = {"path": str(place / "in.jsonl")}

    (rank,) = infer(place, processor="processors:echo", inputs=inputs, outputs={"columns": []})

    assert rank.exit_code == 66
    (failed,) = [event for event in rank.events if event["kind"] == "shard_failed"]
    assert (failed["tries"], failed["is_final"]) == (1, True)
    assert rank.said(r"has the field 'late'")
    assert not rank.said(r"json_format\.py")
    assert not rank.said(r"\.\.")


@pytest.mark.nightly("csv")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_one_text_file_keeps_all_ranks_busy_and_its_codes_are_unchanged(place, kind):
    codes = [f"{i:05}" for i in range(3000)]
    if kind == "csv":
        (place / "in.csv").write_text("code,text\n" + "".join(f'{code},"a\nb"\n' for code in codes))
    else:
        (place / "in.jsonl").write_text("".join(f'{{"code": "{code}", "text": "abc"}}\n' for code in codes))
    inputs = {"path": str(place / f"in.{kind}"), "columns": ["text"]}

    ranks = well(infer(place, 2, processor="processors:echo", inputs=inputs, outputs={"columns": ["code"]}))

    assert all(len(events([rank], "shard_done")) > 1 for rank in ranks)
    assert rows(place) == [{"row": i, "code": code, "n": 3} for i, code in enumerate(codes)]


def test_a_row_that_cannot_be_read_is_left_out_and_named_in_the_manifest(place):
    (place / "in.jsonl").write_text('{"text": "a"}\n{"text": \n{"text": "abc"}\n')
    inputs = {"path": str(place / "in.jsonl")}

    ranks = well(infer(place, processor="processors:echo", inputs=inputs, outputs={"columns": []}, on_bad_row="skip"))

    assert rows(place) == [{"row": 0, "n": 1}, {"row": 2, "n": 3}]
    manifest = json.loads((place / "out" / "_manifest.json").read_text())
    assert (manifest["rows_bad"], [row["row"] for row in manifest["bad_rows"]]) == (1, [1])
    assert manifest["bad_rows"][0]["name"] == f"{place}/in.jsonl line 2"
    assert events(ranks, "manifest")[0]["rows_bad"] == 1
    assert ranks[0].said("2 rows in .*; 1 bad row")


@pytest.mark.parametrize("option", ["on_bad_shard", "on_bad_row"])
def test_a_run_that_is_left_without_rows_fails_with_the_first_error(place, option):
    good = '{"text": "a"}\n' * 1200 if option == "on_bad_shard" else ""
    (place / "in.jsonl").write_text(good + '{"text": \n')
    inputs = {"path": str(place / "in.jsonl"), "shard_rows": 2000, "schema": {"text": "string"}}

    (rank,) = infer(place, processor="processors:echo", inputs=inputs, outputs={"columns": []}, **{option: "skip"})

    assert rank.exit_code == 66
    assert "No row of the input is left" in rank.error["message"]
    assert f"line {1201 if good else 1} is no JSON object" in rank.error["message"]
    assert not (place / "out" / "_manifest.json").exists()


def test_a_processor_that_fails_in_every_shard_ends_the_run_after_two_of_them_and_shows_its_line(place):
    (rank,) = infer(place, processor="processors:Typo")

    assert rank.exit_code == 66
    failed = [event["shard"] for event in rank.events if event["kind"] == "shard_failed"]
    assert (set(failed), failed.count(0)) == ({0, 1}, 3)
    assert rank.said(r'File ".*processors\.py", line \d+, in process_batch')


def test_a_poisoned_shard_is_set_aside_and_named_in_the_manifest(place, alone):
    ranks = well(infer(place, 2, processor="processors:Poisoned", on_bad_shard="skip"))

    assert rows(place) == [row for row in alone if not 450 <= row["id"] < 500]
    manifest = json.loads((place / "out" / "_manifest.json").read_text())
    (aside,) = manifest["skipped"]
    assert aside == {"shard": 9, "label": "a.parquet rows 450-499", "error": "ValueError: row 450 is poison"}
    assert events(ranks, "manifest")[0]["skipped"] == [9]


def test_a_shard_that_crashed_three_attempts_is_not_touched_again(place):
    ranks = well(infer(place, processor="processors:DiesOnce", on_bad_shard="skip", failures={"9": 3}))

    assert 9 not in {event["shard"] for event in events(ranks, "shard_started")}
    assert events(ranks, "manifest")[0]["skipped"] == [9]


def test_after_a_death_in_a_shard_each_shard_is_computed_alone(place):
    (rank,) = well(infer(place, failures={"5": 1}))

    found = [(event["kind"], event["shard"]) for event in rank.events if event["kind"].startswith("shard_")]
    assert found == [(kind, shard) for shard in range(20) for kind in ("shard_started", "shard_done")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"processor": "processors:double"}, r"depend on other settings.*processor: was .*Model"),
        ({"outputs": {"columns": []}}, r"depend on other settings.*columns"),
        ({"batch_size": 32}, r"batches of 16 rows, and inference\.batch_size is 32"),
    ],
    ids=["processor", "columns", "batch size"],
)
def test_a_used_folder_refuses_other_settings(place, change, words):
    well(infer(place))

    (rank,) = infer(place, run="t2.1.9", **change)

    assert rank.exit_code == 1
    assert rank.said(rf"(?s){words}")


def test_changed_inputs_are_refused_and_overwrite_begins_anew(place):
    well(infer(place))
    pq.write_table(pa.table({"id": [0], "x": [0.0], "y": [0.0]}), place / "in" / "b.parquet")

    (refused,) = infer(place, run="t2.1.9")
    assert refused.exit_code == 1
    assert refused.said(r"depend on other inputs")
    well(infer(place, run="t3.1.9", outputs={"overwrite": True}))
    assert len(rows(place)) == 601


def test_a_run_that_is_asked_to_stop_ends_between_shards_and_resumes(place, alone):
    ranks = infer(place, processor="processors:Stops")

    assert ranks[0].exit_code == 0
    assert len(events(ranks, "stopped")) == 1
    assert not events(ranks, "manifest")
    done = {event["shard"] for event in events(ranks, "shard_done")}
    assert 3 in done
    assert len(done) < 20
    again = well(infer(place, 2, run="t1.2.8", processor="processors:Stops"))
    assert done.isdisjoint(event["shard"] for event in events(again, "shard_done"))
    assert rows(place) == alone


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "kind", "off_most"),
    [
        ({"compile": True}, "OptimizedModule", 1e-5),
        ({"config": {"optimizations": {"mixed_precision": "bf16"}}}, "Linear", 0.02),
    ],
    ids=["compiled", "bf16"],
)
def test_a_prepared_model_is_compiled_or_computes_in_16_bits(place, alone, options, kind, off_most):
    (rank,) = well(infer(place, **options))

    assert rank.said(f"the model is of type {kind}")
    found = [row["score"] for row in rows(place)]
    expected = [row["score"] for row in alone]
    assert found == pytest.approx(expected, abs=off_most)
    assert kind == "OptimizedModule" or found != expected


def test_a_plain_function_is_a_processor(place):
    well(infer(place, processor="processors:double"))

    assert rows(place)[8] == {"twice": 2.0, "id": 8, "row": 8}


def test_a_processor_with_too_few_rows_is_named(place):
    (rank,) = infer(place, processor="processors:short")

    assert rank.exit_code == 66
    assert rank.said(r"15.*16|16.*15")


def test_the_batch_size_is_found_once_and_kept(place, alone):
    first = well(infer(place, batch_size="auto"))
    (chosen,) = events(first, "shards")
    assert 1 <= chosen["batch_size"] <= 50
    (place / "out" / "part-00003.parquet").unlink()

    again = well(infer(place, run="t2.1.9", batch_size="auto"))

    assert events(again, "shards")[0]["batch_size"] == chosen["batch_size"]


TRIAL = '''
import torch
from torch.utils.data import TensorDataset
import airflow_provider_dtrain.train as dtrain

class Digits(dtrain.PyTorchTrial):
    """Evaluation alone: no training loader, no optimizer, no train_batch."""
    def __init__(self, context):
        super().__init__(context)
        torch.manual_seed(1)
        self.model = context.wrap_model(torch.nn.Linear(2, 3))

    def build_validation_data_loader(self):
        x = torch.arange(200.0).reshape(100, 2)
        return dtrain.DataLoader(TensorDataset(x, (x[:, 0] % 3).long()), batch_size=7, shuffle=True)

    def evaluate_batch(self, batch):
        x, target = batch
        found = self.model(x).argmax(1)
        return {"accuracy": (found == target).float().mean(), "label": found}

class Whole(Digits):
    evaluate_batch = dtrain.PyTorchTrial.evaluate_batch
    def evaluate_full_dataset(self, data_loader):
        found = [Digits.evaluate_batch(self, batch)["accuracy"] for batch in data_loader]
        return {"accuracy": torch.stack(found).mean()}

class Reduced(Digits):
    def __init__(self, context):
        super().__init__(context)
        context.wrap_reducer(sum, name="total")
'''


def expected_accuracy():
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(2, 3)
    x = torch.arange(200.0).reshape(100, 2)
    return float((model(x).argmax(1) == (x[:, 0] % 3).long()).float().mean())


@pytest.mark.parametrize("kind", ["Digits", "Whole"])
def test_a_trial_class_is_evaluated_without_dummies_and_metrics_weigh_right(place, kind):
    ranks = well(
        infer(place, 2, code=TRIAL, processor=f"processors:{kind}", inputs={"shard_rows": 23}, outputs={"columns": []})
    )

    (validation,) = events(ranks, "validation")
    assert validation["metrics"]["accuracy"] == pytest.approx(expected_accuracy(), abs=1e-7)
    manifest = json.loads((place / "out" / "_manifest.json").read_text())
    assert manifest["rows_read"] == 100
    if kind == "Digits":
        assert [row["row"] for row in rows(place)] == list(range(100))
    else:
        assert manifest["objects"] == []


def test_a_reducer_over_all_batches_is_refused_by_name(place):
    (rank,) = infer(place, code=TRIAL, processor="processors:Reduced", inputs={}, outputs={"columns": []})

    assert rank.exit_code == 1
    assert rank.said("wrap_reducer is not supported in batch inference")
