"""The files of a run as a host sends them: whole lines within a window, and exact gaps for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.channel.streams import FileStream, Subscription, hole_of
from airflow_provider_dtrain.supervisor.files.events import encode_event
from airflow_provider_dtrain.supervisor.files.layout import RunFolder
from airflow_provider_dtrain.supervisor.limits import LOG_PAUSE_S, SKIP, SMALL, WINDOW

SHORT = b"00000000 {}\n"


def frames(stream: FileStream, *, final: bool = True) -> list[tuple[str, int, int]]:
    """Return kind, offset and length of each frame of a stream, and acknowledge each at once."""
    found = []
    while (frame := stream.next(final)) is not None:
        document, _ = frame
        length = document["bytes"] if document["t"] == "data" else document["skip_bytes"]
        found.append((document["t"], document["offset"], length))
        stream.acknowledge(stream.offset)
    return found


def stream_of(path: Path, content: bytes, offset: int = 0) -> FileStream:
    path.write_bytes(content)
    return FileStream("rank0.events", str(path), offset, whole=True)


@pytest.mark.parametrize("length", [WINDOW + 1, 2 * WINDOW, 3 * WINDOW - 5])
def test_a_line_above_the_window_is_skipped_to_its_newline_and_no_further(tmp_path: Path, length: int) -> None:
    long = b"x" * (length - 1) + b"\n"
    found = frames(stream_of(tmp_path / "events", SHORT + long + SHORT))
    n = len(SHORT)
    assert found == [("data", 0, n), ("gap", n, length), ("data", n + length, n)]


def test_a_line_of_exactly_the_window_is_sent(tmp_path: Path) -> None:
    longest = b"x" * (WINDOW - 1) + b"\n"
    found = frames(stream_of(tmp_path / "events", SHORT + longest + SHORT))
    assert [kind for kind, _, _ in found] == ["data", "data", "data"]


def test_a_line_of_any_length_is_skipped_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(2 * SKIP + 7)
        file.seek(0, 2)
        file.write(b"\n" + SHORT)
    found = frames(FileStream("rank0.events", str(path), 0, whole=True))
    assert found == [("gap", 0, SKIP), ("gap", SKIP, SKIP), ("gap", 2 * SKIP, 8), ("data", 2 * SKIP + 8, len(SHORT))]


def test_pieces_of_a_line_wait_for_their_acknowledgement(tmp_path: Path) -> None:
    stream = stream_of(tmp_path / "events", b"x" * (2 * SKIP))
    assert stream.next(final=False) is not None
    assert stream.next(final=False) is None
    stream.acknowledge(SKIP)
    assert stream.next(final=False) is not None


def test_a_new_subscription_in_the_middle_of_a_line_goes_on_behind_it(tmp_path: Path) -> None:
    long = b"x" * (2 * WINDOW) + b"\n"
    found = frames(stream_of(tmp_path / "events", long + SHORT, offset=WINDOW))
    assert found == [("gap", WINDOW, WINDOW + 1), ("data", len(long), len(SHORT))]


def test_a_file_that_never_has_a_newline_is_left_out_whole(tmp_path: Path) -> None:
    path = tmp_path / "events"
    assert frames(stream_of(path, b"x" * 10), final=False) == []
    assert frames(stream_of(path, b"x" * 10)) == [("gap", 0, 10)]
    assert frames(stream_of(path, b"x" * (WINDOW + 10))) == [("gap", 0, WINDOW + 10)]


def test_a_line_that_is_still_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "events"
    stream = stream_of(path, SHORT + b"begin")
    assert frames(stream, final=False) == [("data", 0, len(SHORT))]
    with path.open("ab") as file:
        file.write(b" end\n")
    assert frames(stream, final=False) == [("data", len(SHORT), len(b"begin end\n"))]


def test_a_file_that_grows_after_the_end_of_its_run_is_read_to_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "events"
    stream = stream_of(path, SHORT)
    stream.limit = stream.size()
    with path.open("ab") as file:
        file.write(SHORT * 3)
    assert frames(stream) == [("data", 0, len(SHORT))]
    assert stream.drained()


def test_gaps_that_no_supervisor_wrote_are_not_parsed_for_each_frame(tmp_path: Path) -> None:
    gaps, log = tmp_path / "gaps.json", str(tmp_path / "log")
    gaps.write_text(f'{{"gaps":[[{10**17},{10**18}]]}}')
    assert hole_of(log, 0, 10**18) == (10**17, 10**18)
    # A rank may write into its folder. Parsing 8 MiB for each frame would block all streams of the channel.
    gaps.write_text('{"gaps":[' + "0," * 4_000_000 + "[5,9]]}")
    assert hole_of(log, 0, 100) is None


class Run:
    """Files of a run with one rank, and a subscription to them."""

    def __init__(self, folder: Path) -> None:
        layout: Any = type("Layout", (), {"state_dir": str(folder)})()
        self.path = folder / "runs" / "r"
        (self.path / "rank0").mkdir(parents=True)
        self.subscription = Subscription(RunFolder(layout, "r"), {"ranks": [{"rank": 0}]}, {}, "rank0")

    def write(self, name: str, data: bytes) -> None:
        with (self.path / name).open("ab") as file:
            file.write(data)
        # As the watcher of the folder does.
        self.subscription.dirty = True

    def sent(self, now: float) -> dict[str, int]:
        """Return stream -> bytes of all frames that are due."""
        found: dict[str, int] = {}
        for _ in range(10):
            for frame, data in self.subscription.frames(now) if self.subscription.is_due(now) else ():
                found[frame["stream"]] = found.get(frame["stream"], 0) + len(data)
        return found


def test_lines_of_a_log_share_a_frame_and_no_event_waits_for_them(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("rank0/log", b"one\n")
    assert run.sent(100.0) == {"rank0.log": 4}, "the first line after a pause comes at once"
    run.write("rank0/log", b"two\n")
    run.write("rank0/log", b"three\n")
    for moment in (100.01, 100.02):
        run.write("rank0/events", SHORT)
        assert run.sent(moment) == {"rank0.events": len(SHORT)}
    assert run.sent(100.03) == {}
    assert run.subscription.log_due == 100.0 + LOG_PAUSE_S
    assert run.sent(100.0 + LOG_PAUSE_S) == {"rank0.log": 10}, "although no file changed since"
    assert run.sent(200.0) == {}
    assert run.subscription.log_due is None


def test_a_log_that_fills_its_frames_is_sent_without_pauses(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(3):
        run.write("rank0/log", b"x" * SMALL)
        assert run.sent(100.0) == {"rank0.log": SMALL}


def test_the_end_of_a_run_does_not_wait_for_the_pause_of_its_log(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("rank0/log", b"one\n")
    assert run.sent(100.0) == {"rank0.log": 4}
    run.write("rank0/log", b"two\n")
    run.write("events.supervisor", encode_event({"kind": "ended"}))
    assert run.sent(100.01) == {"rank0.log": 4, "supervisor.events": len(encode_event({"kind": "ended"}))}
    assert run.subscription.complete
