"""The ledger of an output folder decides what is missing, and whether a run may continue."""

from __future__ import annotations

import contextlib
import hashlib
import json

import pytest

from airflow_provider_dtrain.train.errors import FolderInUseError, OtherRunError, OutputFolderError
from airflow_provider_dtrain.train.files.local import LocalPlace
from airflow_provider_dtrain.train.inference.ledger import DONE, MANIFEST, PARTS, FinishedShard, Ledger
from airflow_provider_dtrain.train.inference.output_folder import OWN, TEMPORARY, open_folder
from airflow_provider_dtrain.train.inference.shards import Shard

FACTS = {"inputs": {"files": [], "rows": 20}, "weights": {"step": 5}, "settings": {"processor": "m:P"}}
SHARDS = [Shard(index, "a.parquet", index * 10, index * 10 + 10, 10, index * 10) for index in range(2)]


@pytest.fixture
def folder(tmp_path):
    return open_folder(str(tmp_path / "out"), {}, "run-1")


def ledger(folder, run="run-1", key="task"):
    return Ledger(folder, run=run, key=key, suffix="parquet")


def compute(book, shard, content=b"rows", metrics=None):
    """Deliver and record a part, as a rank does it."""
    with book.folder.scratch() as file:
        file.write_bytes(content)
        book.folder.deliver(file, book.delivery_name(shard))
    name = book.part_name(shard)
    entry = FinishedShard(
        shard,
        book.run,
        name,
        10,
        len(content),
        hashlib.sha256(content).hexdigest(),
        {"label": "int64"},
        metrics or {},
        10,
    )
    book.add(entry)
    return entry


def opened(folder, **options):
    book = ledger(folder, **options)
    book.open(FACTS, SHARDS, overwrite=False)
    return book


def test_a_second_run_finds_what_the_first_one_has_done(folder):
    entry = compute(opened(folder), 1)

    later = opened(folder, run="run-2", key="other")

    assert later.planned() == SHARDS
    assert later.entries() == {1: entry}


def test_a_part_that_was_cut_or_removed_is_missing(folder):
    book = opened(folder)
    compute(book, 0)
    compute(book, 1)
    (folder._root / book.delivery_name(0)).write_bytes(b"r")
    (folder._root / book.delivery_name(1)).unlink()

    assert book.entries() == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"crc32": 1, "document": {"shard": 0}}', b"\x00" * 40], ids=repr)
def test_an_entry_that_was_cut_does_not_count(folder, content):
    book = opened(folder)
    entry = compute(book, 0)
    (folder._root / entry.name).write_bytes(content)

    assert book.entries() == {}


def test_the_first_of_two_entries_counts_and_the_other_part_is_removed(folder):
    first = compute(opened(folder, run="run-1"), 0)
    book = opened(folder, run="run-2")
    compute(book, 0, b"other rows")

    assert book.entries() == {0: first}
    book.publish([first, compute(book, 1)], [], FACTS, {})
    assert folder.names() == [MANIFEST, "part-00000.parquet", "part-00001.parquet"]
    assert folder.names(PARTS) == []


def test_the_published_part_of_one_run_is_not_taken_for_the_lost_part_of_another_one(folder):
    first = compute(opened(folder, run="run-1"), 0, b"rows A")
    book = opened(folder, run="run-2")
    second = compute(book, 0, b"rows B")
    book.publish([second], [], FACTS, {})
    # The entry of a rank that was stopped for long, and whose part has been removed.
    book.add(first)

    assert opened(folder, run="run-3").entries() == {0: second}


def test_a_publication_leaves_no_entry_of_another_run(folder):
    compute(opened(folder, run="run-1"), 0)
    book = opened(folder, run="run-2")
    second = compute(book, 0)

    book.publish([second], [], FACTS, {})

    assert folder.names(DONE) == ["00000.run-2.json"]


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_run_that_was_replaced_while_it_publishes_removes_no_entry_and_writes_no_manifest(folder, call):
    book = opened(folder)
    entry = compute(book, 0)
    calls = []

    def confirm():
        calls.append(folder.read(MANIFEST))
        if len(calls) == call:
            raise FolderInUseError("replaced")

    with pytest.raises(FolderInUseError):
        book.publish([entry], [], FACTS, {}, confirm=confirm)
    assert folder.read(MANIFEST) is None
    assert book.entries() == {0: entry}
    assert folder.names() == ([] if call == 1 else ["part-00000.parquet"])


def test_a_removal_of_old_results_that_was_cut_off_is_continued(folder):
    book = opened(folder)
    book.publish([compute(book, 0), compute(book, 1)], [], FACTS, {})
    facts = {**FACTS, "weights": {"step": 6}}
    count = sum(1 for path in folder._root.rglob("*") if path.is_file())
    later = ledger(folder, run="run-2", key="other")

    for _ in range(count):
        # One file is removed, then the process ends.
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(InterruptedError):
            removed = []
            patch.setattr(folder, "remove", lambda name, gone=removed: _remove_first(folder, name, gone))
            later.refuse_foreign()
            later.open(facts, SHARDS, overwrite=True)

    later.refuse_foreign()
    later.open(facts, SHARDS, overwrite=True)
    assert later.entries() == {}
    assert folder.names() == []


def _remove_first(folder, name, gone):
    if gone:
        raise InterruptedError
    if folder.read(name) is not None:
        LocalPlace.remove(folder, name)
        gone.append(name)


def test_the_proof_of_a_common_folder_that_an_ended_run_left_is_removed(folder):
    book = opened(folder)
    folder.write(f"{OWN}/common-run-0", b"x")

    book.sweep()

    assert folder.names(OWN) == ["plan.json", "run.json"]


def test_nothing_but_the_ledger_is_there_before_the_end(folder):
    compute(opened(folder), 0)

    assert list(folder.entries()) == [OWN]


def test_a_published_folder_is_published_again_without_a_change(folder):
    book = opened(folder)
    entries = [compute(book, 0), compute(book, 1)]
    first = book.publish(entries, [], FACTS, {"accuracy": 0.5})
    later = opened(folder, run="run-2", key="other")

    assert later.publish(later.entries().values(), [], FACTS, {"accuracy": 0.5}) == first


def test_a_publication_that_was_cut_off_is_completed_by_the_next_run(folder):
    book = opened(folder)
    entries = [compute(book, 0), compute(book, 1)]
    folder.rename(f"{PARTS}/{entries[0].part}", "part-00000.parquet")
    later = opened(folder, run="run-2")

    assert set(later.entries()) == {0, 1}
    manifest, _ = later.publish(later.entries().values(), [], FACTS, {})
    assert [one["name"] for one in manifest["objects"]] == ["part-00000.parquet", "part-00001.parquet"]


def test_the_manifest_is_plain_json(folder):
    book = opened(folder)
    book.publish([compute(book, 0), compute(book, 1)], [], FACTS, {})

    assert json.loads(folder.read(MANIFEST))["rows"] == 20


@pytest.mark.parametrize("part", ["inputs", "weights", "settings"])
def test_other_facts_are_refused_with_both_values(folder, part):
    opened(folder)
    facts = {**FACTS, part: {**FACTS[part], "rows": 21, "step": 6, "processor": "m:Q"}}

    with pytest.raises(OtherRunError, match=rf"depend on other {part}.*overwrite: true"):
        ledger(folder, key="other").open(facts, SHARDS, overwrite=False)


def test_the_message_names_the_value_before_and_now(folder):
    opened(folder)

    with pytest.raises(OtherRunError, match=r"weights: step: was 5, is 6"):
        ledger(folder).open({**FACTS, "weights": {"step": 6}}, SHARDS, overwrite=False)


def test_overwrite_removes_the_results_of_another_task(folder):
    book = opened(folder)
    book.publish([compute(book, 0), compute(book, 1)], [], FACTS, {})
    facts = {**FACTS, "weights": {"step": 6}}

    later = ledger(folder, run="run-2", key="other")
    later.open(facts, SHARDS, overwrite=True)

    assert later.entries() == {}
    assert folder.names() == []


def test_overwrite_keeps_what_an_earlier_attempt_of_the_same_task_has_done(folder):
    entry = compute(opened(folder), 0)

    later = ledger(folder, run="run-2")
    later.open(FACTS, SHARDS, overwrite=True)

    assert later.entries() == {0: entry}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_foreign_files_is_refused_and_left_alone(folder, overwrite):
    folder._root.mkdir()
    (folder._root / "thesis.txt").write_text("mine")

    with pytest.raises(OtherRunError, match=r"It holds thesis\.txt, which no run wrote"):
        ledger(folder).open(FACTS, SHARDS, overwrite=overwrite)
    assert [path.name for path in folder._root.iterdir()] == ["thesis.txt"]


def test_overwrite_removes_no_foreign_file(folder):
    book = opened(folder)
    book.publish([compute(book, 0), compute(book, 1)], [], FACTS, {})
    (folder._root / "thesis.txt").write_text("mine")

    with pytest.raises(OtherRunError, match=r"thesis\.txt"):
        ledger(folder, key="other").open(FACTS, SHARDS, overwrite=True)
    assert MANIFEST in folder.names()


def test_a_skipped_shard_stays_skipped_for_the_task_and_is_tried_by_another_one(folder):
    opened(folder).set_aside(SHARDS[0], "ValueError: broken")

    assert set(opened(folder, run="run-2").skipped()) == {0}
    assert opened(folder, run="run-3", key="other").skipped() == {}


def test_a_skipped_shard_that_another_task_has_computed_is_done(folder):
    opened(folder).set_aside(SHARDS[0], "ValueError: broken")
    compute(opened(folder, run="run-2", key="other"), 0)
    book = opened(folder, run="run-3")

    assert book.skipped(book.entries()) == {}


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(OutputFolderError, match="output folder .*file/out cannot be used"):
        open_folder(str(tmp_path / "file" / "out"), {}, "run-1").write("a", b"")


def test_entries_lie_in_the_ledger(folder):
    entry = compute(opened(folder), 0)

    assert folder.names(DONE) == ["00000.run-1.json"]
    assert entry.name == f"{DONE}/00000.run-1.json"


def test_incomplete_files_of_ended_runs_are_removed_and_those_of_the_run_stay(tmp_path):
    dead = open_folder(str(tmp_path / "out"), {}, "run-1")
    book = ledger(open_folder(str(tmp_path / "out"), {}, "run-10"), run="run-10")
    left = dead.scratch()
    left.__enter__()

    with book.folder.scratch() as own:
        book.sweep()

        assert book.folder.names(TEMPORARY) == [own.name]
