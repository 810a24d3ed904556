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
    assert pages.main("--all") == 0
    assert "Skipped: lint, types, tests and bundle of the pages" in capsys.readouterr().out


@pytest.fixture
def tree(monkeypatch, tmp_path):
    """A repository with pages, whose checks append to a list and pass."""
    for name, path in {"ROOT": "", "UI": "ui", "WWW": "www", "CHECKED": "ui/checked", "VERSION": "version"}.items():
        monkeypatch.setattr(pages, name, tmp_path / path)
    files(tmp_path / "ui", source="1")
    files(tmp_path / "ui" / "node_modules", library="1")
    files(tmp_path / "www", bundle="1")
    (tmp_path / "version").write_text("1")
    for program in ("node", "npm"):
        (tmp_path / program).write_text("#!/bin/sh\necho v22.1.0\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_pages_are_checked_again_only_after_a_change(tree, monkeypatch):
    checked = []
    monkeypatch.setattr(pages, "check", lambda: checked.append(pages.digest()) or 0)
    # The new record must be committed.
    assert [pages.main(), pages.main(), len(checked)] == [1, 0, 1]
    assert [pages.main("--all"), len(checked)] == [0, 2]
    for path in ("ui/source", "ui/new", "www/bundle", "version"):
        (tree / path).write_text("2")
        assert [pages.main(), pages.main()] == [1, 0], path
    (tree / "ui" / "source").rename(tree / "ui" / "renamed")
    assert [pages.main(), pages.main()] == [1, 0]
    (tree / "ui" / "node_modules" / "library").write_text("2")
    assert pages.main() == 0
    assert len(set(checked)) == 6


def test_pages_whose_checks_fail_are_not_recorded(tree, monkeypatch):
    monkeypatch.setattr(pages, "check", lambda: 3)
    assert [pages.main(), pages.main()] == [3, 3]
    assert not (tree / "ui" / "checked").exists()


def test_the_lock_file_names_no_package_index():
    lock = json.loads((ROOT / "ui" / "package-lock.json").read_text())
    assert all("resolved" not in entry for entry in lock["packages"].values())
    assert not re.search(r"https?://[^\"/]*(npm|registry)", (ROOT / "ui" / "package-lock.json").read_text())


def test_the_bundle_is_in_the_package():
    text = (ROOT / "airflow_provider_dtrain" / "www" / "main.js").read_text()
    assert "dtrain/api/v1/" in text
