"""Threads use a library that another thread imports only when its import is complete."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.process.imported import imported

ROOT = Path(__file__).resolve().parents[2]
#: Modules that look into ``sys.modules`` themselves, and why that is safe.
ALLOWED = {
    "process/imported.py": "it is the check",
    "process/rendezvous.py": "a missing name is expected",
    "process/import_hooks.py": "it waits for the end of an import that has begun",
    "function.py": "it adds a module",
    "foreign_names/finder.py": "it adds names",
    "determined/core.py": "only whether torch was ever imported",
    "inference/fingerprint.py": "only the paths of modules",
}
SLOW = """
import builtins
builtins.slow_begun.set()
assert builtins.slow_go.wait(30)
DataFrame = Series = ndarray = type("DataFrame", (), {})
"""


@pytest.fixture
def half(tmp_path, monkeypatch):
    """Yield a function that lets another thread import a module up to its middle, and one that lets it end."""
    import builtins

    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("slow_begun", "slow_go"):
        monkeypatch.setattr(builtins, name, threading.Event(), raising=False)
    threads = []

    def begin(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(SLOW)
        importlib.invalidate_caches()
        threads.append(threading.Thread(target=importlib.import_module, args=(name,)))
        threads[0].start()
        assert builtins.slow_begun.wait(30)

    def end():
        builtins.slow_go.set()
        threads[0].join(30)

    yield begin, end
    end()


def test_a_module_counts_as_imported_when_its_import_is_complete(half):
    begin, end = half
    assert imported("slow_library") is None
    begin("slow_library")
    assert "slow_library" in sys.modules
    assert imported("slow_library") is None
    end()
    assert imported("slow_library").DataFrame


@pytest.mark.torch
@pytest.mark.parametrize("name", ["pandas", "numpy"])
def test_results_are_copied_while_another_thread_imports_a_library(half, monkeypatch, name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    from airflow_provider_dtrain.train.inference.outputs.result_copy import copied

    monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    half[0](name)
    buffer = torch.zeros(2)
    result = copied({"a": ["x"], "b": [None, buffer], "c": buffer})
    buffer += 1
    assert [value.sum() for value in (result["b"][1], result["c"])] == [0, 0]


def test_the_training_library_looks_into_the_modules_of_the_process_at_one_place():
    folder = ROOT / "airflow_provider_dtrain" / "train"
    found = set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "sys.modules" in text else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules":
                found.add(str(path.relative_to(folder)))
    assert found == set(ALLOWED)


THREADS = """
import sys, threading
seen = []
def hook(event, arguments):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        if not arguments[0].startswith("encodings"):
            seen.append(arguments[0])
sys.addaudithook(hook)
import pathlib, torch
import pyarrow as pa, pyarrow.parquet as pq
from airflow_provider_dtrain.train.inference.inputs import open_input
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
from airflow_provider_dtrain.train.inference.outputs.rows import to_rows
from airflow_provider_dtrain.train.inference.outputs.writers import PartWriter
place = pathlib.Path(sys.argv[1])
pq.write_table(pa.table({"x": [1], "t": pa.array([1], pa.timestamp("ns", "Europe/Berlin"))}), place / "a.parquet")
(place / "a.csv").write_text("x,t\\n1,a\\n")
(place / "a.jsonl").write_text('{"x": 1, "t": {"a": [1.5]}}\\n')
import PIL.Image
PIL.Image.new("RGB", (2, 2)).save(place / "a.webp")
def work(found, shards, columns, kind):
    options = OutputOptions(kind, columns)
    with open(place / f"out.{kind}", "wb") as file:
        writer = PartWriter(file, options)
        for shard in shards:
            for batch in found.batches(shard, 8):
                result = {"s": ["a"] * batch.rows, "l": [[1.5]] * batch.rows, "n": torch.zeros(batch.rows)}
                writer.write(to_rows(result, batch, options))
        writer.close()
for name in ("a.parquet", "a.csv", "a.jsonl", "a.webp"):
    for kind in ("parquet", "jsonl"):
        columns = ("path",) if name == "a.webp" else ("x", "t")
        settings = {"path": str(place / name)}
        shards = open_input(settings, storage={}, passed=columns, writes_json=kind == "jsonl").plan().shards
        # Another rank has not planned.
        found = open_input(settings, storage={}, passed=columns, writes_json=kind == "jsonl")
        found.prepare(shards)
        thread = threading.Thread(target=work, args=(found, shards, columns, kind))
        thread.start()
        thread.join()
print(sorted(set(seen)))
"""


@pytest.mark.nightly
@pytest.mark.torch
def test_threads_that_read_and_write_shards_import_nothing(tmp_path):
    for name in ("torch", "pyarrow", "PIL"):
        pytest.importorskip(name)
    command = [sys.executable, "-c", THREADS, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.torch
def test_a_library_is_complete_once_it_is_required(monkeypatch):
    pa, image = pytest.importorskip("pyarrow"), pytest.importorskip("PIL.Image")
    from airflow_provider_dtrain.train.inference.libraries import require

    monkeypatch.setattr(image, "_initialized", 0)
    assert require("PIL.Image", "Reading") is image
    assert image._initialized == 2
    made = []
    monkeypatch.setattr(pa, "array", lambda *arguments: made.append(arguments) or pa.nulls(1))
    require("pyarrow", "Reading")
    assert made
