"""Files of packed code by their digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from airflow_provider_dtrain.core import code_files as module
from airflow_provider_dtrain.core.code_files import code_files
from airflow_provider_dtrain.hosts.payload import pack


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "train.py").write_text("a")
    (tmp_path / "models" / "net.py").write_text("b")
    (tmp_path / "models" / "link.py").symlink_to("net.py")
    (tmp_path / "run.sh").write_text("c")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_each_file_has_its_digest_and_each_link_its_target(code: Path) -> None:
    assert code_files(pack(code).content) == {
        "train.py": digest("a"),
        "models/net.py": digest("b"),
        "models/link.py": "-> net.py",
        "run.sh": f"{digest('c')}+x",
    }


def test_code_with_too_many_files_and_bytes_that_are_no_archive_have_no_list(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pack(code).content
    assert code_files(b"code") is None
    assert code_files(whole[:-20]) is None
    monkeypatch.setattr(module, "FILES_MOST", 3)
    assert code_files(whole) is None
