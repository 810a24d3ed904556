"""A follower that is far behind in a log gets its end and a gap: no end of a run waits for megabytes of log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.channel.streams import FileStream, read_log
from airflow_provider_dtrain.supervisor.limits import LOG_LAG


def test_what_a_follower_is_far_behind_by_is_one_gap(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0123456\n" * (2 * LOG_LAG // 8))
    stream = FileStream("rank0.log", str(tmp_path / "log"), 1000, whole=False)
    found = stream.next(False)
    assert found is not None
    gap, data = found
    assert (gap["t"], gap["offset"], gap["skip_bytes"], data) == ("gap", 1000, 2 * LOG_LAG - LOG_LAG // 8 - 1000, b"")
    sent = b""
    while (found := stream.next(True)) is not None:
        sent += found[1]
        stream.acknowledge(stream.offset)
    assert len(sent) == LOG_LAG // 8


def test_a_log_that_a_follower_keeps_up_with_has_no_gap(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0123456\n" * (LOG_LAG // 8))
    stream = FileStream("rank0.log", str(tmp_path / "log"), 0, whole=False)
    found = stream.next(False)
    assert found is not None
    assert found[0]["t"] == "data"


def with_hole(folder: Path, start: int, end: int, size: int) -> Path:
    """Return a log whose middle ``log_limit`` has freed."""
    path = folder / "log"
    with path.open("wb") as file:
        file.write(b"h" * start)
        file.seek(end)
        file.write(b"t" * (size - end))
    (folder / "gaps.json").write_text(json.dumps({"gaps": [[start, end]]}))
    return path


def frames(stream: FileStream) -> list[tuple[str, int, int]]:
    """Return kind, offset and length of all that is sent."""
    found = []
    while (frame := stream.next(True)) is not None:
        document, data = frame
        found.append((document["t"], document["offset"], document.get("skip_bytes", len(data))))
        stream.acknowledge(stream.offset)
    return found


def test_bytes_that_log_limit_has_freed_do_not_count_as_a_lag(tmp_path: Path) -> None:
    size = 5 * LOG_LAG
    path = with_hole(tmp_path, 4096, size - 4096, size)
    found = frames(FileStream("rank0.log", str(path), 0, whole=False))
    assert found == [("data", 0, 4096), ("gap", 4096, size - 8192), ("data", size - 4096, 4096)]
    inside = frames(FileStream("rank0.log", str(path), 2 * LOG_LAG, whole=False))
    assert inside == [("gap", 2 * LOG_LAG, size - 4096 - 2 * LOG_LAG), ("data", size - 4096, 4096)]


def test_a_lag_beside_freed_bytes_is_skipped(tmp_path: Path) -> None:
    size = 3 * LOG_LAG
    path = with_hole(tmp_path, 4096, 8192, size)
    found = frames(FileStream("rank0.log", str(path), 0, whole=False))
    assert found[0] == ("gap", 0, size - LOG_LAG // 8)
    assert sum(length for kind, _, length in found if kind == "data") == LOG_LAG // 8


@pytest.mark.parametrize(
    ("start", "length", "begin", "data"),
    [
        (0, 10, 0, b"h" * 10), (95, 10, 95, b"h" * 5), (100, 10, 900, b"t" * 10), (500, 10, 900, b"t" * 10),
        (899, 200, 900, b"t" * 100), (900, 10, 900, b"t" * 10), (1000, 10, 1000, b""), (2000, 10, 2000, b""),
        (500, 0, 900, b""), (0, 0, 0, b""),
    ],
)  # fmt: skip
def test_a_part_of_a_log_has_nothing_of_what_is_freed(
    tmp_path: Path, start: int, length: int, begin: int, data: bytes
) -> None:
    path = with_hole(tmp_path, 100, 900, 1000)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert read_log(fd, str(path), start, length) == (begin, data)
    finally:
        os.close(fd)


def test_a_log_that_is_freed_to_its_end_has_nothing_there(tmp_path: Path) -> None:
    path = with_hole(tmp_path, 100, 1000, 1000)
    os.truncate(path, 1000)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert read_log(fd, str(path), 500, 10) == (1000, b"")
    finally:
        os.close(fd)
