"""The check of the pages' bundle, scripts/tools/pages.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "tools"))
import pages  # noqa: E402


def files(folder: Path, **content: str) -> Path:
    """Return a folder with files."""
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    return folder


def test_a_changed_a_missing_and_an_additional_file_are_drift(tmp_path):
    built = files(tmp_path / "built", main="1", same="x", new="y")
    committed = files(tmp_path / "committed", main="2", same="x", old="z")
    assert pages.drift(built, committed) == ["main", "new", "old"]


def test_equal_folders_have_no_drift(tmp_path):
    assert pages.drift(files(tmp_path / "a", main="1"), files(tmp_path / "b", main="1")) == []


@pytest.mark.parametrize(("version", "runs"), [("v20.19.0", True), ("v22.1.0", True), ("v20.18.9", False), ("", False)])
def test_an_old_node_is_named_with_the_version_that_is_needed(monkeypatch, tmp_path, version, runs):
    for name in ("node", "npm"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    reason = pages.missing_node()
    assert (reason is None) is runs
    assert runs or "20.19" in str(reason)


def test_without_node_the_check_says_what_it_skips(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pages.main() == 0
    assert "Skipped: lint, types, tests and bundle of the pages" in capsys.readouterr().out


def test_the_lock_file_names_no_package_index():
    lock = json.loads((ROOT / "ui" / "package-lock.json").read_text())
    assert all("resolved" not in entry for entry in lock["packages"].values())
    assert not re.search(r"https?://[^\"/]*(npm|registry)", (ROOT / "ui" / "package-lock.json").read_text())


def test_the_bundle_is_in_the_package():
    text = (ROOT / "airflow_provider_dtrain" / "www" / "main.js").read_text()
    assert "dtrain/api/v1/" in text
