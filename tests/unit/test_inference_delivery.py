"""Order of a delivery: a part is durable before its entry, and each name is given to a complete file."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import pyarrow.parquet as pq  # noqa: E402

from airflow_provider_dtrain.train.errors import FolderInUseError, OutputError, OutputFolderError  # noqa: E402
from airflow_provider_dtrain.train.inference.early_exit import EXIT_EARLY, without_early_success  # noqa: E402
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch  # noqa: E402
from airflow_provider_dtrain.train.inference.ledger import DONE, PARTS, Ledger  # noqa: E402
from airflow_provider_dtrain.train.inference.output_folder import OWN, open_folder  # noqa: E402
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions  # noqa: E402
from airflow_provider_dtrain.train.inference.pipeline import PartOutput, Pipeline, Work  # noqa: E402
from airflow_provider_dtrain.train.inference.shard_loop import ShardLoop, _is_of_shard  # noqa: E402
from airflow_provider_dtrain.train.inference.shards import Shard  # noqa: E402

SHARD = Shard(0, "a.parquet", 0, 4, 4, 0)


class Rows:
    """An input with one shard of two batches."""

    def batches(self, shard, batch_size):
        yield InputBatch(torch.arange(2), 2, None, 0)
        yield InputBatch(torch.arange(2, 4), 2, None, 2)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(open_folder(str(tmp_path / "out"), {}, "run-1"), run="run-1", key="task", suffix="parquet")


@pytest.fixture
def calls(monkeypatch):
    """Calls that make files durable, in their order: (call, name of the file or folder)."""
    found = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def synced(descriptor):
        found.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def named(call, old, new):
        found.append(("name", os.path.basename(old), os.path.basename(new)))
        call(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda old, new: named(replace, old, new))
    monkeypatch.setattr(os, "link", lambda old, new: named(link, old, new))
    return found


def compute(ledger, process=lambda batch, index: {"label": batch}, **options):
    """Compute the shard, and return the work and the entries."""
    entries = []
    pipeline = Pipeline(
        Rows(),
        lambda: PartOutput(ledger, OutputOptions.parse(options)),
        process,
        begin=lambda *_: None,
        move=lambda batch: batch,
        beat=lambda: None,
        record=lambda work, entry: entries.append((work, entry)),
        pins=False,
    )
    work = pipeline.read(SHARD, 2)
    pipeline.compute(work)
    pipeline.close()
    return pipeline, entries


def test_a_part_is_in_the_folder_before_its_entry_is_written(ledger):
    _, ((_, entry),) = compute(ledger)

    assert ledger.place_of(entry) is not None
    assert ledger.folder.names(DONE) == []


def test_a_part_that_could_not_be_delivered_has_no_entry(ledger, monkeypatch):
    deliver = ledger.folder.deliver

    def full(file, name):
        if name.startswith(PARTS):
            raise OutputFolderError("No space left on device")
        deliver(file, name)

    monkeypatch.setattr(ledger.folder, "deliver", full)
    pipeline, entries = compute(ledger)

    assert entries == []
    assert ledger.folder.names(DONE) == []
    assert [str(work.error) for work in pipeline.failures()] == ["No space left on device"]


def test_a_shard_with_a_failed_batch_is_not_recorded_and_leaves_no_file(ledger):
    def process(batch, index):
        if index:
            raise ValueError("broken row")
        return {"label": batch}

    pipeline, entries = compute(ledger, process)

    assert entries == []
    assert [type(work.error) for work in pipeline.failures()] == [ValueError]
    assert [path for path in ledger.folder._root.rglob("*") if path.is_file()] == []


def test_a_second_try_of_a_shard_begins_without_the_rows_of_the_first_one(ledger):
    tries = []

    def process(batch, index):
        tries.append(index)
        if tries == [0, 1]:
            raise ValueError("once")
        return {"label": batch}

    compute(ledger, process)
    _, ((work, entry),) = compute(ledger, process)

    assert (entry.rows, work.rows, entry.rows_read) == (4, 4, 4)


@pytest.mark.parametrize("call", ["write", "deliver", "rename", "create"])
def test_a_file_is_durable_before_it_has_its_name(ledger, calls, call):
    folder = ledger.folder
    if call == "deliver":
        with folder.scratch() as file:
            file.write_bytes(b"rows")
            folder.deliver(file, "parts/a")
    elif call == "rename":
        folder.write("parts/b", b"rows")
        calls.clear()
        folder.rename("parts/b", "a")
    else:
        getattr(folder, call)("parts/a" if call == "write" else f"{OWN}/a", b"rows")

    ((at, (_, old, _)),) = [(at, one) for at, one in enumerate(calls) if one[0] == "name"]
    if call != "rename":
        assert ("sync", old) in calls[:at]
    if call in ("write", "deliver"):
        # The folder, which is new, has a name to keep as well.
        assert calls[at + 1 :][:2] == [("sync", "parts"), ("sync", "out")]
    elif call == "rename":
        assert calls[at + 1 :] == [("sync", "out")]


def test_work_without_rows_has_an_entry_without_a_part(ledger):
    _, ((work, entry),) = compute(ledger, lambda batch, index: None)

    assert isinstance(work, Work)
    assert (entry.part, entry.rows, entry.rows_read) == (None, 0, 4)


class LostFolder:
    """The claim of a run whose folder belongs to another one by now."""

    def check(self):
        raise FolderInUseError("run-2 has taken it over")


def test_a_run_that_lost_its_folder_records_no_shard(ledger):
    ((work, entry),) = compute(ledger)[1]
    loop = ShardLoop.__new__(ShardLoop)
    loop._owner = LostFolder()
    loop._ledger = ledger

    with pytest.raises(FolderInUseError, match="run-2"):
        loop._record(work, entry)
    assert ledger.folder.names(DONE) == []


@pytest.mark.parametrize("kind", ["tensor", "column", "array", "list of arrays"])
def test_a_processor_may_use_the_memory_of_its_result_again(ledger, kind):
    buffer = torch.zeros(2, dtype=torch.int64)
    forms = {
        "tensor": lambda: buffer,
        "column": lambda: {"output": buffer[:]},
        "array": buffer.numpy,
        "list of arrays": lambda: [buffer[0:1].numpy(), buffer[1:2].numpy()],
    }

    def process(batch, index):
        if index:
            # The first batch may not be written yet.
            buffer.fill_(99)
        buffer.copy_(batch)
        return forms[kind]()

    _, ((_, entry),) = compute_slowly(ledger, process)

    table = pq.read_table(ledger.folder.location + "/" + ledger.place_of(entry))
    values = table.column("output").to_pylist()
    assert [value[0] if kind == "list of arrays" else value for value in values] == [0, 1, 2, 3]


def compute_slowly(ledger, process):
    """Compute the shard with a writer that begins after the last batch."""
    computed = threading.Event()

    class Late(PartOutput):
        def write(self, result, batch):
            assert computed.wait(20)
            super().write(result, batch)

    entries = []
    pipeline = Pipeline(
        Rows(),
        lambda: Late(ledger, OutputOptions.parse({})),
        process,
        begin=lambda *_: None,
        move=lambda batch: batch,
        beat=lambda: None,
        record=lambda work, entry: entries.append((work, entry)),
        pins=False,
    )
    pipeline.compute(pipeline.read(SHARD, 2))
    computed.set()
    pipeline.close()
    return pipeline, entries


def test_a_processor_that_calls_sys_exit_has_failed(ledger):
    pipeline, entries = compute(ledger, lambda batch, index: sys.exit(0))

    assert entries == []
    (work,) = pipeline.failures()
    assert str(work.error) == "The processor called sys.exit(0)."


def test_a_generator_is_refused_by_name(ledger):
    def rows():
        yield {"label": 1}

    pipeline, entries = compute(ledger, lambda batch, index: rows())

    assert entries == []
    (work,) = pipeline.failures()
    assert "process_batch returned a generator" in str(work.error)


def test_only_the_own_process_cannot_end_early_with_success():
    code = (
        "import os\n"
        "from airflow_provider_dtrain.train.inference.early_exit import without_early_success\n"
        "with without_early_success():\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(0)\n"
        "    print(os.waitpid(child, 0)[1], flush=True)\n"
        "    os._exit({status})"
    )
    for status, expected in ((0, EXIT_EARLY), (3, 3)):
        done = subprocess.run([sys.executable, "-c", code.format(status=status)], capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("0\n", expected)
    with pytest.raises(RuntimeError, match="before the inference was complete"), without_early_success():
        sys.exit()
    with pytest.raises(SystemExit), without_early_success():
        sys.exit(3)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_disk_that_is_full_in_the_middle_of_a_part_is_no_fault_of_the_shard(ledger, monkeypatch, kind):
    monkeypatch.setattr(ledger.folder, "scratch", lambda: contextlib.nullcontext(Path("/dev/full")))
    wide = {"label": torch.zeros(2, 100_000)}

    pipeline, entries = compute(ledger, lambda batch, index: wide, format=kind)

    assert entries == []
    (work,) = pipeline.failures()
    assert isinstance(work.error, OutputError)
    assert "No space left on device" in str(work.error)
    assert not _is_of_shard(work.error)
