"""Nothing that travels to a host can write outside its folder."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.file_access import below
from airflow_provider_dtrain.supervisor.files.archives import unpack, unpack_archive
from airflow_provider_dtrain.supervisor.refusal import Refused
from tests.support.archives import member


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> tarfile.TarFile:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return tarfile.open(fileobj=io.BytesIO(target.getvalue()))


def snapshot(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "outer" / "inner"
    found.mkdir(parents=True)
    return found


def test_files_folders_and_inner_links_are_unpacked(root: Path) -> None:
    script = member("bin/run.sh", content=b"#!/bin/sh\n")
    script[0].mode = 0o4755
    unpack(
        tar(
            member("bin", tarfile.DIRTYPE),
            script,
            member("./data/a.txt", content=b"a"),
            member("data/deep/link", tarfile.SYMTYPE, "../a.txt"),
            member("data/hard", tarfile.LNKTYPE, "data/a.txt"),
        ),
        str(root),
    )
    assert (root / "data/deep/link").read_bytes() == b"a"
    assert (root / "data/hard").read_bytes() == b"a"
    assert (root / "bin/run.sh").stat().st_mode & 0o7777 == 0o700, "executable, and no set-user-id"
    assert (root / "data/a.txt").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/evil", content=b"x")],
        [member("../evil", content=b"x")],
        [member("a/../../evil", content=b"x")],
        [member("link", tarfile.SYMTYPE, "/etc")],
        [member("link", tarfile.SYMTYPE, "..")],
        [member("a/link", tarfile.SYMTYPE, "../..")],
        [member("a/b/s", tarfile.SYMTYPE, "../.."), member("t", tarfile.SYMTYPE, "a/b/s/..")],
        [member("dir", tarfile.SYMTYPE, "sub"), member("dir/evil", content=b"x")],
        [member("hard", tarfile.LNKTYPE, "../../secret")],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("s", tarfile.SYMTYPE, "x"), member("hard", tarfile.LNKTYPE, "s/../../secret")],
        [member("null", tarfile.CHRTYPE)],
        [member("fifo", tarfile.FIFOTYPE)],
        [member("file", content=b"x"), member("file/below", content=b"x")],
        [member(".", content=b"x")],
    ],
)
def test_a_member_that_leads_outside_is_refused(root: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    secret = root.parent / "secret"
    secret.write_text("secret")
    before = snapshot(root.parent) - {"inner"}
    with pytest.raises(Refused) as refused:
        unpack(tar(*members), str(root))
    assert refused.value.code == "bad_archive"
    assert {name for name in snapshot(root.parent) if not name.startswith("inner")} == before
    assert secret.stat().st_nlink == 1
    for path in root.rglob("*"):
        assert not path.is_symlink() or os.path.realpath(path).startswith(str(root))


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path, target = tmp_path / "a.tar.gz", tmp_path / "a"
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        info, content = member("x", content=os.urandom(100_000))
        archive.addfile(info, io.BytesIO(content))
    path.write_bytes(whole.getvalue()[:-5000])
    with pytest.raises(Refused) as refused:
        unpack_archive(str(path), str(target))
    assert refused.value.code == "bad_archive"
    assert snapshot(tmp_path) == {"a.tar.gz"}
    path.write_bytes(whole.getvalue())
    for _ in range(2):
        unpack_archive(str(path), str(target))
    assert snapshot(tmp_path) == {"a.tar.gz", "a", "a/x"}


@pytest.mark.parametrize("path", ["", "/etc", "..", "a/..", "a//b", "./a", "a/./b", "a\0b", "link/x"])
def test_a_path_from_a_command_stays_below_its_folder(root: Path, path: str) -> None:
    (root / "link").symlink_to("/etc")
    with pytest.raises(Refused):
        below(str(root), path)
    assert below(str(root), "a/b") == str(root / "a" / "b")
