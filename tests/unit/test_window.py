"""The reader's side of the flow control."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.hosts.channel.window import STREAMS_LIMIT, WINDOW_BYTES, WINDOW_FRAMES, FlowWindow
from airflow_provider_dtrain.hosts.wire import Frame, WireError


def frame(offset: int, length: int = 0, stream: str = "rank0.log", **more: int) -> Frame:
    return Frame(t="data", run="t1.1.1", stream=stream, offset=offset, data=bytes(length), **more)  # type: ignore[arg-type]


def test_a_window_that_is_acknowledged_never_ends() -> None:
    window = FlowWindow()
    for number in range(100):
        taken = frame(number * WINDOW_BYTES, WINDOW_BYTES)
        window.take(taken)
        window.ack("rank0.log", taken.end)


def test_bytes_beyond_the_window_break_the_protocol() -> None:
    window = FlowWindow()
    window.take(frame(0, WINDOW_BYTES))
    with pytest.raises(WireError, match="2,097,153 bytes of rank0.log in 2 frames without an acknowledgement"):
        window.take(frame(WINDOW_BYTES, 1))


def test_an_acknowledgement_frees_what_lies_before_it_and_no_more() -> None:
    window = FlowWindow()
    window.take(frame(0, WINDOW_BYTES - 1))
    window.take(frame(WINDOW_BYTES - 1, 1))
    window.ack("rank0.log", WINDOW_BYTES - 1)
    window.take(frame(WINDOW_BYTES, WINDOW_BYTES - 1))
    with pytest.raises(WireError):
        window.take(frame(2 * WINDOW_BYTES, 1))


def test_an_acknowledgement_within_a_frame_does_not_free_it() -> None:
    window = FlowWindow()
    window.take(frame(0, 1))
    window.take(frame(1, WINDOW_BYTES - 1))
    window.ack("rank0.log", 2)
    window.take(frame(WINDOW_BYTES, 1))
    with pytest.raises(WireError):
        window.take(frame(WINDOW_BYTES + 1, 1))


def test_empty_frames_are_counted_too() -> None:
    window = FlowWindow()
    for _ in range(WINDOW_FRAMES):
        window.take(frame(0))
    with pytest.raises(WireError, match="65,537 frames"):
        window.take(frame(0))


def test_streams_have_windows_of_their_own() -> None:
    window = FlowWindow()
    window.take(frame(0, WINDOW_BYTES, "rank0.log"))
    window.take(frame(0, WINDOW_BYTES, "rank1.log"))


def test_a_stream_that_the_run_does_not_have_breaks_the_protocol() -> None:
    window = FlowWindow(["rank0.log"])
    window.take(frame(0, 1))
    with pytest.raises(WireError, match=r"stream 'rank7\.events', which run t1\.1\.1 does not have here"):
        window.take(frame(0, 1, "rank7.events"))


def test_the_number_of_streams_is_bounded_without_names() -> None:
    window = FlowWindow()
    for number in range(STREAMS_LIMIT):
        window.take(frame(0, 1, f"rank{number}.log"))
    with pytest.raises(WireError, match="does not have here"):
        window.take(frame(0, 1, "one.more"))


def test_a_file_that_began_anew_is_acknowledged_from_its_start() -> None:
    window = FlowWindow()
    window.take(frame(500, WINDOW_BYTES // 2))
    window.take(frame(0, 100, epoch=1))
    window.ack("rank0.log", 100)
    window.take(frame(100, WINDOW_BYTES, epoch=1))


def test_a_position_that_no_file_has_breaks_the_protocol() -> None:
    with pytest.raises(WireError):
        FlowWindow().take(frame(2**63))
