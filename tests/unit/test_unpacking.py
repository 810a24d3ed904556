"""Archives of a host are unpacked bounded and plain, or not at all."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

import pytest

from airflow_provider_dtrain.hosts.channel.archive_reader import (
    HEADER_LIMIT,
    ArchiveLimitError,
    tree_bytes,
    unpack_plain,
)
from tests.support.archives import archive, member


def unpack(source: io.BytesIO, folder: Path, *, limit_bytes: int = 1000, limit_files: int = 10) -> int:
    """Unpack an archive and return the number of its files."""
    unpack_plain(source, folder, limit_bytes=limit_bytes, limit_files=limit_files)
    return sum(path.is_file() for path in folder.rglob("*"))


def test_plain_files_and_folders_arrive(tmp_path: Path) -> None:
    parts = member("a", tarfile.DIRTYPE), member("a/b", content=b"12"), member("c", content=b"345")
    assert unpack(archive(*parts), tmp_path) == 2
    assert tree_bytes(tmp_path) == 5
    assert (tmp_path / "a" / "b").read_bytes() == b"12"


@pytest.mark.parametrize(
    "bad",
    [
        member("x", tarfile.SYMTYPE, "inner"),
        member("x", tarfile.LNKTYPE, "inner"),
        member("x", tarfile.FIFOTYPE),
        member("x", tarfile.CHRTYPE),
        member("../x", content=b"1"),
        member("/x", content=b"1"),
        member("a/../../x", content=b"1"),
        member("d/" * 40 + "x", content=b"1"),
        member("inner", content=b"again"),
    ],
)
def test_nothing_but_plain_members_below_the_folder_is_unpacked(tmp_path: Path, bad) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(tarfile.TarError):
        unpack(archive(member("inner", content=b"1"), bad), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_member_is_not_written_through_a_file(tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError, match="below a path that is not a folder"):
        unpack(archive(member("a", content=b"1"), member("a/b", content=b"1")), tmp_path)


def test_bytes_are_limited_before_they_are_written(tmp_path: Path) -> None:
    assert unpack(archive(member("a", content=b"x" * 1000)), tmp_path) == 1
    assert tree_bytes(tmp_path) == 1000
    with pytest.raises(ArchiveLimitError, match="more than 1000 bytes"):
        unpack(archive(member("b", content=b"x" * 600), member("c", content=b"x" * 401)), tmp_path)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_the_number_of_members_is_limited(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(ArchiveLimitError, match="more than 10 files"):
        unpack(archive(*(member(f"m{number}", kind) for number in range(11))), tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_an_extended_header_is_bounded_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 1 << 33

    class Endless(io.RawIOBase):
        """The header, then zeros for ever."""

        head = info.tobuf(tarfile.GNU_FORMAT)
        given = 0

        def read(self, count: int = -1) -> bytes:
            data, self.head = self.head[:count], self.head[count:]
            self.given += count
            return data + bytes(count - len(data))

    source = Endless()
    with pytest.raises(ArchiveLimitError):
        unpack_plain(source, tmp_path, limit_bytes=1000, limit_files=10)
    assert source.given < 4 * HEADER_LIMIT


def test_long_names_of_both_forms_are_read(tmp_path: Path) -> None:
    name = "/".join(["n" * 60] * 4)
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        folder = tmp_path / str(form)
        folder.mkdir()
        assert unpack(archive(member(name, content=b"1"), form=form), folder) == 1
        assert (folder / name).exists()


def test_a_stream_that_never_ends_is_left(tmp_path: Path) -> None:
    class Repeating(io.RawIOBase):
        """The same folder for ever: no bytes, no new name."""

        block = tarfile.TarInfo("a").tobuf()

        def read(self, count: int = -1) -> bytes:
            return (self.block * (count // 512 + 1))[:count]

    with pytest.raises(tarfile.TarError):
        unpack_plain(Repeating(), tmp_path, limit_bytes=1000, limit_files=10)


def pax_header(kind: bytes, text: bytes) -> bytes:
    """Return an extended header as it lies in an archive."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(text)
    return info.tobuf(tarfile.USTAR_FORMAT) + text.ljust(-(-len(text) // 512) * 512, b"\0")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_chain_of_extended_headers_is_refused_before_it_nests_deeply(tmp_path: Path, kind: bytes) -> None:
    chain = pax_header(kind, b"10 a=bcde\n") * 5000
    with pytest.raises(ArchiveLimitError, match="more than 8 extended headers"):
        unpack_plain(io.BytesIO(chain + bytes(1024)), tmp_path, limit_bytes=1 << 30, limit_files=10)


@pytest.mark.parametrize(
    "records",
    [
        b"1" * 4096,
        b"1 1 1 1 =\n",
        b"10 a=bcde\n" + b"1" * 4096,
        b"10 a=bcdef",
        b"11 a=bcde\n",
        b"8 a=bcde\n",
        b"0 a=bcde\n",
        b"-10 a=bcd\n",
        b"10 abcdef\n",
        b"7 =bcd\n",
        b"11 size=-5\n",
        b"12 size=5_0\n",
        b"14 mtime=noon\n",
        b"22 GNU.sparse.map=0,1\n",
    ],
)
def test_a_malformed_extended_header_is_a_damaged_archive(tmp_path: Path, records: bytes) -> None:
    data = pax_header(tarfile.XHDTYPE, records) + tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(tarfile.TarError):
        unpack(io.BytesIO(data + bytes(1024)), tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE])
@pytest.mark.parametrize("value", [b"1", b"1 hdrcharset=", b"1 1 =\n"])
def test_an_extended_header_takes_linear_time(tmp_path: Path, kind: bytes, value: bytes) -> None:
    value *= 60_000 // len(value)
    records = b"%d comment=%s\n" % (len(value) + len("12345 comment=\n"), value)
    data = pax_header(kind, records) + tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT) + bytes(1024)
    begun = time.thread_time()
    assert unpack(io.BytesIO(data), tmp_path) == 1
    assert time.thread_time() - begun < 1.0


def test_an_extended_header_needs_a_member(tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError, match="no member after an extended header"):
        unpack(io.BytesIO(pax_header(tarfile.XHDTYPE, b"10 a=bcde\n") + bytes(1024)), tmp_path)


def test_path_time_and_size_of_an_extended_header_count(tmp_path: Path) -> None:
    info, content = member("ü" * 60 + "/" + "\udcff" * 60 + "9" * 100, content=b"123")
    info.mtime = 1_700_000_000.25  # type: ignore[assignment]
    assert unpack(archive((info, content), member("next", content=b"4")), tmp_path) == 2
    assert (tmp_path / info.name).read_bytes() == b"123"
    assert (tmp_path / info.name).stat().st_mtime == 1_700_000_000.25
    sized = pax_header(tarfile.XHDTYPE, b"12 size=600\n") + tarfile.TarInfo("sized").tobuf(tarfile.USTAR_FORMAT)
    rest = b"1".ljust(1024, b"2") + archive(member("last", content=b"5")).getvalue()
    assert unpack(io.BytesIO(sized + rest), tmp_path) == 2 + 2
    assert (tmp_path / "sized").stat().st_size == 600
    assert (tmp_path / "last").read_bytes() == b"5"


def test_global_headers_are_counted_over_the_whole_archive(tmp_path: Path) -> None:
    one = pax_header(tarfile.XGLTYPE, b"10 a=bcde\n") + member("folder", tarfile.DIRTYPE)[0].tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(ArchiveLimitError, match="or global ones"):
        unpack_plain(io.BytesIO(one * 5000 + bytes(1024)), tmp_path, limit_bytes=1 << 30, limit_files=10**6)


def test_the_map_of_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    head = pax_header(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n")
    member = tarfile.TarInfo("file")
    member.size = 64 << 20
    with pytest.raises(tarfile.TarError, match="sparse"):
        unpack_plain(
            io.BytesIO(head + member.tobuf(tarfile.USTAR_FORMAT) + b"1" * member.size), tmp_path,
            limit_bytes=1 << 30, limit_files=10,
        )  # fmt: skip
