"""Copies of files of hosts are put in place whole, and a sweep removes only the partial copies of dead processes."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.copies import mirror
from airflow_provider_dtrain.engine.copies.mirror import (
    PARTIAL,
    DamagedCopyError,
    fetched,
    partial_copy,
    put_in_place,
    sweep,
)
from airflow_provider_dtrain.hosts.channel import archive_reader
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError
from tests.support.archives import archive, member

COPIER = """
import sys
from pathlib import Path
from airflow_provider_dtrain.engine.copies.mirror import partial_copy
with partial_copy(Path(sys.argv[1])) as folder:
    (folder / "state.pt").write_text("half")
    print("copying", flush=True)
    sys.stdin.read()
"""


def test_a_copy_of_another_process_is_swept_only_after_its_death(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", COPIER, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as copier:
        assert copier.stdout is not None
        assert copier.stdout.readline() == "copying\n"
        sweep(tmp_path)
        assert [path.read_text() for path in tmp_path.glob(f"{PARTIAL}*/files/state.pt")] == ["half"]
        copier.kill()
    assert list(tmp_path.iterdir()) != []
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_the_same_process_is_not_swept(tmp_path: Path) -> None:
    with partial_copy(tmp_path) as folder:
        sweep(tmp_path)
        assert folder.is_dir()
        folder.rename(tmp_path / "step-1")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = mirror._open, []

    def open_after_a_sweep(folder: Path) -> int:
        found = make(folder)
        made.append(folder)
        # The second folder is opened by the sweep, the third one by the second try.
        if len(made) == 1:
            sweep(tmp_path)
        return found

    monkeypatch.setattr(mirror, "_open", open_after_a_sweep)
    with partial_copy(tmp_path) as folder:
        assert folder.is_dir()
        assert made[0] == made[1] != made[2] == folder.parent
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (archive(member("link", tarfile.SYMTYPE, "/etc/passwd")), DamagedCopyError),
        (archive(member("../above", content=b"1")), DamagedCopyError),
        (archive(member("a", content=bytes(2000))), ArchiveLimitError),
        (archive(member("a"), member("b"), member("c")), ArchiveLimitError),
        (io.BytesIO(b"no archive"), DamagedCopyError),
    ],
    ids=["link", "above", "bytes", "files", "damaged"],
)
def test_what_no_host_may_send_leaves_nothing(tmp_path: Path, sent: io.BytesIO, error: type[Exception]) -> None:
    with (
        pytest.raises(error),
        fetched(tmp_path / "trial-1", contextlib.nullcontext(sent), limit_bytes=1000, limit_files=2),
    ):
        pytest.fail("it was accepted")
    assert list((tmp_path / "trial-1").iterdir()) == []


def test_a_folder_is_on_the_disk_before_it_gets_its_name_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "step-1", []

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, target.exists()))

    monkeypatch.setattr(archive_reader.os, "fsync", fsync)
    with partial_copy(tmp_path) as folder:
        (folder / "state.pt").write_text("whole")
        put_in_place(folder, target)
    assert synced == [("state.pt", False), ("files", False), (tmp_path.name, True)]
