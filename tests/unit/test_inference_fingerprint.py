"""Facts on which the results of a batch inference depend: each of them is compared before a run continues."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.inference import fingerprint
from airflow_provider_dtrain.train.inference.read_files import ReadFiles

SETTINGS: dict[str, Any] = {
    "processor": "m:P",
    "inputs": {"path": ["/in"]},
    "outputs": {"path": "/out", "format": "parquet", "columns": ["id"], "overwrite": False},
    "compile": False,
    "on_bad_shard": "fail",
    "collect": False,
    "batch_size": 64,
}
WEIGHTS = {"step": 5, "sha256": "ab"}


def facts(
    *, weights: Any = WEIGHTS, identity: Any = None, hparams: Any = None, config: Any = None, **changes: Any
) -> dict[str, Any]:
    env = RankEnvironment(hparams=hparams or {"hidden": 8}, seed=0, config=config or {})
    settings = {**SETTINGS, **changes, "outputs": {**SETTINGS["outputs"], **changes.get("outputs", {})}}
    return fingerprint.facts(env, settings, identity or {"rows": 20}, weights)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("weights", {"weights": {"step": 5, "sha256": "cd"}}),
        ("weights", {"weights": None}),
        ("inputs", {"identity": {"rows": 21}}),
        ("settings", {"processor": "m:Q"}),
        ("settings", {"compile": True}),
        ("settings", {"hparams": {"hidden": 16}}),
        ("settings", {"config": {"optimizations": {"mixed_precision": "bf16"}}}),
        ("settings", {"outputs": {"format": "jsonl"}}),
        ("settings", {"outputs": {"row_id": "row"}}),
        ("settings", {"on_bad_row": "skip"}),
    ],
)
def test_what_changes_a_row_changes_one_part_of_the_facts(part, change):
    before, now = facts(), facts(**change)

    assert [name for name in before if before[name] != now[name]] == [part]


@pytest.mark.parametrize(
    "change",
    [
        {"on_bad_shard": "skip"},
        {"collect": True},
        {"batch_size": "auto"},
        {"outputs": {"path": "/x", "overwrite": True}},
    ],
)
def test_what_changes_no_row_does_not_change_the_facts(change):
    assert facts(**change) == facts()


def test_a_file_of_the_code_folder_that_the_processor_reads_belongs_to_the_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("weights.pt", "other.pt", "written.txt", "below/labels.json", "late.txt", "module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    read = ReadFiles(tmp_path)
    with read.recording():
        Path("weights.pt").read_bytes()
        os.close(os.open(os.fsencode(tmp_path / "below" / "labels.json"), os.O_RDONLY))
        sys.audit("open", "of another library")
        Path("written.txt").write_text("2")
        Path("module.py").read_text()
        Path(__file__).read_text()
        open(os.devnull).close()
    Path("late.txt").read_text()

    before = code(read)
    assert set(before) == {"weights.pt", "below/labels.json"}
    (tmp_path / "weights.pt").write_text("2")
    assert {name for name, digest in code(read).items() if before[name] != digest} == {"weights.pt"}


def test_model_files_that_are_opened_outside_python_belong_to_the_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.safetensors").write_bytes(b"1")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "other.safetensors").write_bytes(b"1")

    assert set(code(ReadFiles(tmp_path))) == {"net.safetensors"}


def code(read: ReadFiles) -> dict[str, str]:
    return fingerprint.facts(RankEnvironment(hparams={}, seed=0, config={}), SETTINGS, {}, None, read.paths())["code"]
