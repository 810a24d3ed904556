"""Bytes of a rank's log on their way to the task log: whole lines, bounded, each gap marked."""

from __future__ import annotations

import re

import pytest

from airflow_provider_dtrain.engine.logs.buffer import MAX_LINE_BYTES, MOST_GAPS, LogBuffer, LogPlace, clean

PLACE = LogPlace(trial_id=7, attempt=2)
FIRST = "[rank 0] --- trial 7, attempt 2: the log from byte 0 on ---"


def everything(buffer: LogBuffer, most_bytes: int = 65536) -> list[str]:
    lines = []
    while buffer.has_record:
        lines += buffer.record(most_bytes)
    return lines


def test_terminal_escapes_and_overwritten_progress_do_not_reach_the_task_log() -> None:
    assert clean("10%\r50%\r\x1b[31m100%\x1b[0m\x07 done\r") == "100% done"


NOISE = (
    b"[rank0]:[W1126 15:07:42.123456789 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved. "
    b"err=-3\n"
)


@pytest.mark.parametrize("before", [b"", b"one\n"])
@pytest.mark.parametrize("after", [b"", b"two\n"])
def test_a_line_of_a_library_about_names_of_addresses_is_left_out(before: bytes, after: bytes) -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, before + NOISE * 3 + after)
    assert everything(buffer) == [FIRST, *(f"[rank 0] {line.decode()}" for line in (before + after).splitlines())]
    assert buffer.position == len(before + NOISE * 3 + after)
    buffer.add(buffer.position, NOISE)
    assert buffer.record(1000) == []
    assert buffer.is_empty
    buffer.add(buffer.position, b"why: " + NOISE[8:])
    assert everything(buffer)[0].startswith("[rank 0] why: [W1126")


def test_lines_are_whole_also_when_they_come_in_pieces() -> None:
    buffer, offset = LogBuffer(PLACE, 0), 0
    for piece in (b"one\ntw", b"o\nthr", "é".encode()[:1], "é".encode()[1:]):
        buffer.add(offset, piece)
        offset += len(piece)
    assert everything(buffer) == [FIRST, "[rank 0] one", "[rank 0] two"]
    assert buffer.position == 8
    buffer.finish()
    assert everything(buffer) == ["[rank 0] thré"]
    assert buffer.position == offset


@pytest.mark.parametrize(
    ("line", "logged"),
    [
        (b"[rank0]: Traceback (most recent call last):", "Traceback (most recent call last):"),
        (b'[rank0]:   File "train.py", line 1', '  File "train.py", line 1'),
        (b"[rank0]:[W1 ProcessGroup.cpp:1] Warning", "[W1 ProcessGroup.cpp:1] Warning"),
        (b"[rank1]: another rank", "[rank1]: another rank"),
        (b"see [rank0]: there", "see [rank0]: there"),
    ],
)
def test_the_prefix_that_torch_gives_rank_0_is_not_repeated(line: bytes, logged: str) -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, line + b"\n")
    assert everything(buffer)[1:] == ["[rank 0] " + logged]


def test_a_block_begins_with_the_rank_the_attempt_and_the_byte() -> None:
    buffer = LogBuffer(PLACE, 1000)
    buffer.add(1000, b"line\n")
    assert everything(buffer)[0] == "[rank 0] --- trial 7, attempt 2: the log from byte 1000 on ---"


def test_a_record_holds_many_lines_and_is_bounded() -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, b"0123456789\n" * 5000)
    sizes = []
    while buffer.has_record:
        before = buffer.position
        buffer.record(20_000)
        sizes.append(buffer.position - before)
    assert sum(sizes) == 55_000
    assert max(sizes) <= 20_000
    assert len(sizes) == 3


def test_what_waits_is_bounded_and_what_is_left_out_is_marked_to_the_byte() -> None:
    buffer, block = LogBuffer(PLACE, 0, most_bytes=10_000), b"0123456789\n" * 100
    for number in range(100):
        buffer.add(number * len(block), block)
    lines = everything(buffer)
    marks = [line for line in lines if "left out" in line]
    assert len(marks) == 1
    found = re.search(r"bytes (\d+) to (\d+) \((\d+)\) left out", marks[0])
    assert found is not None
    start, end, missing = (int(group) for group in found.groups())
    assert (end, missing) == (110_000, end - start)
    assert (len(lines) - 2) * 11 == start, "all before the mark is there"
    assert "airflow dtrain trials logs 7 --attempt 2 --from" in marks[0]
    assert len(marks[0][: marks[0].index("left out")]) < 100
    assert buffer.position == 110_000


def test_lines_that_come_after_a_gap_follow_its_mark() -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, b"one\ntw")
    buffer.skip(6, 500, "beyond log_limit")
    buffer.add(500, b"three\n")
    assert [line.partition(":")[0] for line in everything(buffer)[1:]] == [
        "[rank 0] one", "[rank 0] tw", "[rank 0] --- trial 7, attempt 2", "[rank 0] three",
    ]  # fmt: skip


def test_what_still_waits_is_left_out_by_one_mark() -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, b"one\n")
    buffer.skip(4, 10, "beyond log_limit")
    buffer.add(10, b"two\n")
    buffer.leave_out("the trial has ended")
    lines = everything(buffer)
    assert len(lines) == 1
    assert "bytes 0 to 14 (14) left out: the trial has ended" in lines[0]


def test_a_file_that_is_read_again_begins_a_new_block() -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, b"one\ntwo\n")
    everything(buffer)
    buffer.restart(0)
    buffer.add(0, b"one\n")
    assert everything(buffer) == [FIRST, "[rank 0] one"]
    assert buffer.position == 4


def test_a_line_without_an_end_is_broken_and_nothing_of_it_is_lost() -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, b"x" * (3 * MAX_LINE_BYTES + 5))
    buffer.finish()
    assert sum(line.count("x") for line in everything(buffer, 100_000)) == 3 * MAX_LINE_BYTES + 5
    buffer = LogBuffer(PLACE, 0)
    buffer.add(0, b"x" * (3 * MAX_LINE_BYTES + 5) + b"\n")
    parts = everything(buffer, 100_000)[1:]
    assert sum(line.count("x") for line in parts) == 3 * MAX_LINE_BYTES + 5
    assert max(map(len, parts)) <= MAX_LINE_BYTES + len("[rank 0] ")


def test_many_gaps_with_different_reasons_share_a_mark_and_a_bounded_record() -> None:
    buffer = LogBuffer(PLACE, 0)
    for offset in range(20_000):
        buffer.skip(offset, offset + 1, f"{offset:06d}" + "x" * 1990)
    assert len(buffer._pieces) <= MOST_GAPS
    records = []
    while buffer.has_record:
        records.append(buffer.record(16 * 1024))
    assert max(sum(map(len, lines)) for lines in records) < 17 * 1024
    assert buffer.position == 20_000
    assert "(19901) left out: several reasons" in records[-1][-1]


def test_gaps_and_bytes_in_turns_are_bounded_and_counted_again_once_they_are_sent() -> None:
    buffer = LogBuffer(PLACE, 0)
    for offset in range(0, 20_000, 2):
        buffer.add(offset, b"x")
        buffer.skip(offset + 1, offset + 2, "beyond log_limit")
    assert len(buffer._pieces) <= 2 * MOST_GAPS
    everything(buffer)
    assert (buffer.position, buffer._waiting, buffer._gaps) == (20_000, 0, 0)


def test_a_file_that_begins_anew_very_often_takes_bounded_memory() -> None:
    buffer = LogBuffer(PLACE, 0)
    for _ in range(5000):
        buffer.add(0, b"line\n")
        buffer.restart(0)
    assert len(buffer._pieces) <= 2 * MOST_GAPS + 2
    everything(buffer)
    assert (buffer.position, buffer._waiting, buffer._gaps) == (0, 0, 0)


def test_the_reason_of_a_gap_stays_in_its_line() -> None:
    buffer = LogBuffer(PLACE, 0)
    buffer.skip(0, 5, "lost\nFAKE LINE")
    assert [line.count("\n") for line in everything(buffer)] == [0]
