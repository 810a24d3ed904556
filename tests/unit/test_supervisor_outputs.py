"""Files of ranks are distinguished from the user's code, limited, and never sent half-written."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.files import outputs as outputs_module
from airflow_provider_dtrain.supervisor.files.layout import Layout, RunFolder
from airflow_provider_dtrain.supervisor.files.outputs import (
    OutputSender,
    Padded,
    WrittenFile,
    note_baseline,
    take_carried,
)
from airflow_provider_dtrain.supervisor.limits import OUTPUT_DEPTH
from airflow_provider_dtrain.supervisor.machine.processes import identity


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run whose code is ``code.py`` and ``data/x``."""
    made = Layout(str(tmp_path / "remote"), str(tmp_path / "state")).run("t1.1.1")
    for name, text in (("work/code.py", "code"), ("work/data/x", "x")):
        write(made, name, text)
    os.makedirs(made.file("checkpoints"))
    note_baseline(made)
    return made


def write(folder: RunFolder, name: str, text: str) -> None:
    path = Path(folder.file(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    # Long ago: its writer is done.
    os.utime(path, (1e9, 1e9))


def sent(folder: RunFolder, known: dict[str, str] | None = None, *, limit: int = 10_000, files: int = 100) -> Any:
    target = io.BytesIO()
    OutputSender(folder, known or {}, limit, files).send(target)
    target.seek(0)
    with tarfile.open(fileobj=target) as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}  # type: ignore[union-attr]
    return members, json.loads(members.pop("end.json"))


def test_new_and_changed_files_are_sent_and_the_code_is_not(folder: RunFolder) -> None:
    write(folder, "work/snapshot.pt", "s")
    write(folder, "work/data/x", "changed")
    write(folder, "work/__pycache__/code.pyc", "cache")
    write(folder, "checkpoints/last", "c")
    members, end = sent(folder)
    assert members == {"work/snapshot.pt": b"s", "work/data/x": b"changed", "checkpoints/last": b"c"}
    assert set(end["files"]) == set(members)
    assert (end["unsettled"], end["others"], end["left_out"]["files"]) == ([], 0, 0)


def test_what_the_other_side_has_is_named_and_not_sent(folder: RunFolder) -> None:
    write(folder, "work/a", "1")
    write(folder, "work/b", "2")
    versions = {path: entry[2] for path, entry in sent(folder)[1]["files"].items()}
    write(folder, "work/b", "changed")
    members, end = sent(folder, versions)
    assert set(members) == {"work/b"}
    assert set(end["files"]) == {"work/a", "work/b"}


def test_links_sockets_and_odd_names_are_counted_and_left(folder: RunFolder) -> None:
    os.symlink("/etc/passwd", folder.file("work", "link"))
    os.symlink("/etc", folder.file("work", "folder"))
    os.mkfifo(folder.file("work", "fifo"))
    write(folder, "work/a\nb", "1")
    Path(os.fsdecode(os.fsencode(folder.file("work")) + b"/\xff")).write_text("1")
    members, end = sent(folder)
    assert (members, end["others"]) == ({}, 5)


def test_checkpoints_come_first_then_what_changed_last(folder: RunFolder) -> None:
    for name, size, at in (("work/old", 50, 1), ("work/new", 50, 3), ("work/huge", 500, 4), ("checkpoints/c", 50, 0)):
        write(folder, name, "x" * size)
        os.utime(folder.file(name), (1e9 + at, 1e9 + at))
    members, end = sent(folder, limit=100)
    assert set(members) == {"checkpoints/c", "work/new"}
    assert end["left_out"] == {"files": 2, "bytes": 550, "largest": ["work/huge", "work/old"]}
    assert set(sent(folder, files=1)[0]) == {"checkpoints/c"}


@pytest.fixture
def writer(folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process, which acts as the supervisor. The child has ``work/half`` open for writing."""
    Path(folder.file("supervisor.json")).write_text(json.dumps(identity()))
    code = "import sys; file = open(sys.argv[1], 'w'); file.write('half'); file.flush(); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, folder.file("work/half")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


def test_a_file_that_is_open_for_writing_is_waited_for_and_then_not_sent(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, writer: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(outputs_module, "SETTLE_WAIT_S", 0.1)
    write(folder, "work/whole", "1")
    os.utime(folder.file("work/half"))
    members, end = sent(folder)
    assert (set(members), end["unsettled"]) == ({"work/whole"}, ["work/half"])
    # A log is kept open for hours, and nothing was written to it for some seconds.
    os.utime(folder.file("work/half"), (1e9, 1e9))
    assert sent(folder)[0]["work/half"] == b"half"
    writer.kill()
    writer.wait()
    os.utime(folder.file("work/half"))
    assert sent(folder)[1]["unsettled"] == []


def test_a_file_with_an_impossible_time_is_sent_like_any_other(folder: RunFolder) -> None:
    for name, at in (("work/before", -1e9), ("work/after", 2e10)):
        write(folder, name, "1")
        os.utime(folder.file(name), (at, at))
    members, end = sent(folder)
    assert set(members) == {"work/before", "work/after"}
    assert all(0 <= entry[1] < 2**40 for entry in end["files"].values())


def test_a_file_that_changes_while_it_is_sent_is_unsettled(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "work/a", "x" * 100)
    read = Padded.read

    def shorten(padded: Padded, count: int = -1, /) -> bytes:
        os.truncate(folder.file("work/a"), 10)
        return read(padded, count)

    monkeypatch.setattr(Padded, "read", shorten)
    members, end = sent(folder)
    # The archive stays valid; its end marks the file as incomplete.
    assert (len(members["work/a"]), end["unsettled"], end["files"]) == (100, ["work/a"], {})


def test_an_unreadable_file_is_counted_and_the_rest_is_sent(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work/a", "work/lockfile", "work/z"):
        write(folder, name, "1")
    open_ = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("lockfile"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    members, end = sent(folder)
    assert (set(members), set(end["files"])) == ({"work/a", "work/z"}, {"work/a", "work/z"})
    assert (end["others"], end["unsettled"]) == (1, [])


class BadDisk(io.FileIO):
    """A file whose second read fails."""

    reads = 0

    def read(self, count: int | None = -1, /) -> bytes | None:
        self.reads += 1
        if self.reads > 1:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(count)


def test_a_read_error_inside_a_file_leaves_the_archive_whole(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "work/a", "x" * 50_000)
    write(folder, "work/b", "1")
    os.utime(folder.file("work/a"), (2e9, 2e9))
    open_ = OutputSender._open

    def open_bad(outputs: OutputSender, file: WrittenFile) -> Any:
        return BadDisk(folder.file(file.path)) if file.path == "work/a" else open_(outputs, file)

    monkeypatch.setattr(OutputSender, "_open", open_bad)
    members, end = sent(folder, limit=100_000)
    assert (len(members["work/a"]), members["work/b"]) == (50_000, b"1")
    assert (set(end["files"]), end["unsettled"]) == ({"work/b"}, ["work/a"])


def test_an_archive_that_cannot_be_written_ends_the_role(folder: RunFolder) -> None:
    write(folder, "work/a", "1")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as target, pytest.raises(BrokenPipeError):
        OutputSender(folder, {}, 10_000, 100).send(target)


@pytest.fixture
def very_deep(folder: RunFolder) -> Iterator[None]:
    """Folders in ``work/e`` that are nested deeper than the limit of recursion."""
    for levels in (600, 1_200):
        os.makedirs(folder.file("work", *["e"] * levels))
    yield
    # Neither pytest nor shutil can remove them.
    subprocess.run(["rm", "-rf", folder.file("work", "e")], check=True)


@pytest.mark.usefixtures("very_deep")
def test_unreadable_and_very_deep_folders_are_counted(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "work/ro/x", "1")
    write(folder, "work/a", "1")
    write(folder, "work/" + "d/" * (OUTPUT_DEPTH - 1) + "last", "1")
    for name in ("x", "y", "z"):
        write(folder, "work/" + "d/" * OUTPUT_DEPTH + name, "1")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/ro") and access(path, mode))
    members, end = sent(folder)
    assert set(members) == {"work/a", "work/" + "d/" * (OUTPUT_DEPTH - 1) + "last"}
    assert end["others"] == 3


def test_checkpoints_on_shared_storage_are_not_sent(folder: RunFolder) -> None:
    write(folder, "checkpoints/c", "1")
    Path(folder.file("context.json")).write_text(json.dumps({"checkpoint_dir": "/shared"}))
    assert sent(folder)[0] == {}


def test_files_of_the_attempt_before_come_over_the_code_and_are_outputs(folder: RunFolder) -> None:
    write(folder, "carried-ab12ab12/work/snapshot.pt", "s")
    write(folder, "carried-ab12ab12/work/data/x", "changed")
    write(folder, "carried-ab12ab12/checkpoints/c", "c")
    write(folder, "carried-ab12ab12/rank0/log", "forged")
    write(folder, "carried-ffffffff/work/half", "of another process")
    os.symlink("/tmp", folder.file("work", "link"))  # noqa: S108 - nothing is written there
    write(folder, "carried-ab12ab12/work/link2", "fine")
    take_carried(folder, "ab12ab12")
    assert Path(folder.file("work/data/x")).read_text() == "changed"
    assert set(sent(folder)[0]) == {"work/snapshot.pt", "work/data/x", "work/link2", "checkpoints/c"}
    assert not os.path.exists(folder.file("rank0"))
    assert not [name for name in os.listdir(folder.path) if name.startswith("carried-")]


def test_carried_files_are_not_written_through_links_of_the_code(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", folder.file("work", "linked"))
    write(folder, "carried-ab12ab12/work/linked/x", "1")
    take_carried(folder, "ab12ab12")
    assert list((tmp_path / "outside").iterdir()) == []


def test_the_baseline_is_taken_once(folder: RunFolder) -> None:
    write(folder, "work/carried", "1")
    note_baseline(folder)
    assert set(sent(folder)[0]) == {"work/carried"}


def test_of_programs_with_the_library_only_traces_and_media_are_sent(folder: RunFolder, tmp_path: Path) -> None:
    for name in ("work/traces/a.json.gz", "work/media/k/1.png", "work/other", "checkpoints/last", "work/traces-2/b"):
        write(folder, name, "1")
    target = io.BytesIO()
    OutputSender(folder, {}, 10_000, 100, library_only=True).send(target)
    target.seek(0)
    with tarfile.open(fileobj=target) as archive:
        assert archive.getnames() == ["work/traces/a.json.gz", "work/media/k/1.png", "end.json"]
    for name in ("traces", "media"):
        os.rename(folder.file("work", name), tmp_path / name)
        os.symlink(tmp_path / name, folder.file("work", name))
    assert not list(OutputSender(folder, {}, 10_000, 100, library_only=True).found())
