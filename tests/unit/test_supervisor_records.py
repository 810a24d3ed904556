"""Records that a supervisor writes and reads: events, errors of ranks, locks, tokens."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.event_log import EventSource, read_lines
from airflow_provider_dtrain.supervisor.channel.streams import FileStream
from airflow_provider_dtrain.supervisor.file_access import read_json, write_mark
from airflow_provider_dtrain.supervisor.files.events import EventLog, decode_event, encode_event
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.limits import LOG_TAIL, WINDOW
from airflow_provider_dtrain.supervisor.machine.locks import is_locked, take_lock
from airflow_provider_dtrain.supervisor.machine.processes import boottime, find_process, identity
from airflow_provider_dtrain.supervisor.refusal import Refused
from airflow_provider_dtrain.supervisor.run import status as status_module
from airflow_provider_dtrain.supervisor.run.control import go, renew
from airflow_provider_dtrain.supervisor.run.fencing import fence
from airflow_provider_dtrain.supervisor.run.ranks import error_of
from airflow_provider_dtrain.supervisor.run.status import status


def events_of(path):
    """Return the events of a supervisor's file as the control side reads it."""
    return [line.event for line in read_lines(path.read_bytes(), EventSource(None, frozenset(range(9)))) if line.event]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "remote"), str(tmp_path / "state")).ensure()


def test_events_are_read_by_the_control_side_as_they_were_written(tmp_path: Path) -> None:
    writer = EventLog(str(tmp_path / "events"))
    writer.write({"at": 1.5, "kind": "prepared", "port": 4711})
    writer.write({"at": 2.5, "kind": "exit", "rank": 1, "exit_code": 3, "sent_signal": False, "log_tail": "\x1b[1mä\n"})
    found = events_of(tmp_path / "events")
    assert [event["seq"] for event in found] == [1, 2]
    assert found[1]["log_tail"] == "\x1b[1mä\n"


def test_a_writer_that_takes_over_drops_a_torn_line_and_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "events"
    writer = EventLog(str(path))
    writer.write({"at": 1.0, "kind": "exit", "rank": 4, "exit_code": 1, "sent_signal": False})
    writer.close()
    with path.open("ab") as file:
        file.write(b'deadbeef {"seq":2,"ki')
    again = EventLog(str(path))
    assert again.first_failure == 4
    again.write({"at": 2.0, "kind": "ended", "reason": "lost"})
    assert [event["seq"] for event in events_of(path)] == [1, 2]


def test_an_event_that_its_writer_did_not_write_is_none() -> None:
    record = {"seq": 1, "kind": "ended"}
    line = encode_event(record)
    assert decode_event(line) == record
    for damaged in (line.replace(b"ended", b"exits"), line[9:], line[:-5], b"\n"):
        assert decode_event(damaged) is None


def test_an_event_that_does_not_fit_on_the_disk_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventLog(str(tmp_path / "events"))
    writer.write({"at": 1.0, "kind": "prepared"})
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            writer.write({"at": 2.0, "kind": "started"})
    writer.write({"at": 3.0, "kind": "ended", "reason": "completed"})
    assert [event["kind"] for event in events_of(tmp_path / "events")] == ["prepared", "ended"]


LOG = """step 1
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in <module>
RuntimeError: loss is nan
[W] destructor said something
"""


@pytest.mark.parametrize(
    ("content", "message", "traceback"),
    [
        ({"message": {"message": "E: x", "extraInfo": {"py_callstack": "stack", "timestamp": "1"}}}, "E: x", "stack"),
        ({"message": "E: y", "traceback": "trace", "rank": 0}, "E: y", "trace"),
        ({"message": "E: z"}, "E: z", ""),
    ],
)
def test_the_error_file_says_why_a_rank_failed(tmp_path: Path, content: object, message: str, traceback: str) -> None:
    (tmp_path / "error.json").write_text(json.dumps(content))
    (tmp_path / "log").write_text(LOG)
    assert error_of(str(tmp_path), 1) == {"message": message, "traceback": traceback}
    assert error_of(str(tmp_path), 0) is None


def test_without_an_error_file_the_log_says_it(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text("torn {")
    (tmp_path / "log").write_text(LOG)
    found = error_of(str(tmp_path), 1)
    assert found is not None
    assert found["message"] == "RuntimeError: loss is nan"
    assert found["traceback"].startswith("Traceback")
    assert "KeyError" in found["traceback"], "the cause belongs to it"
    (tmp_path / "log").write_text("one\ntwo\n")
    assert error_of(str(tmp_path), 3) == {"message": "exit code 3: two", "traceback": "one\ntwo"}
    killed = error_of(str(tmp_path), -9)
    assert killed is not None
    assert killed["message"] == "killed by signal 9 (SIGKILL)"


def test_a_lock_is_not_taken_on_a_file_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.lock"
    flock, calls = fcntl.flock, []

    def replace_first(fd: int, operation: int) -> None:
        if not calls:
            path.unlink()
        calls.append(fd)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replace_first)
    fd = take_lock(str(path))
    assert fd is not None
    assert len(calls) == 2
    assert os.fstat(fd).st_ino == path.stat().st_ino
    assert take_lock(str(path)) is None
    os.close(fd)
    assert not is_locked(str(path))


def test_a_mark_and_its_name_are_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync, synced = tmp_path / "started", os.fsync, []

    def noting(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        synced.append((name, path.read_bytes() if path.exists() else b""))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    write_mark(str(path), {"at": 1})
    assert synced == [(str(path), b'{"at":1}'), (str(tmp_path), b'{"at":1}')]


def test_recorded_tokens_never_fall(layout: Layout) -> None:
    layout.record_tokens("a", 7, [0, 1])
    layout.record_tokens("a", 5, [0])
    layout.record_tokens("b", 2, [1])
    assert layout.tokens(0) == {"a": 7}
    assert layout.tokens(1) == {"a": 7, "b": 2}
    assert layout.stores() == {"a": 7, "b": 2}


def test_a_fence_from_before_the_grant_of_its_run_changes_nothing(layout: Layout) -> None:
    with pytest.raises(Refused) as refused:
        fence(layout, "t1.1.7", 6)
    assert refused.value.code == "stale_token"
    assert not layout.run("t1.1.7").has_tombstone


def test_a_run_that_a_fence_or_a_stop_has_forbidden_is_refused_as_such_when_it_shall_go(
    layout: Layout,
) -> None:
    layout.bury("t1.1.7", 7)
    with pytest.raises(Refused) as refused:
        go(layout, "t1.1.7", {})
    assert refused.value.code == "tombstone"


def test_a_state_dir_is_private(layout: Layout, tmp_path: Path) -> None:
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused) as refused:
        Layout("r", str(tmp_path / "link")).ensure()
    assert refused.value.code == "state_dir"


def test_a_renewal_can_neither_come_from_the_future_nor_go_back(layout: Layout) -> None:
    folder = layout.run("t1.1.7")
    os.makedirs(folder.path)
    (Path(folder.path) / "lock").touch()
    now = boottime()
    renew(layout, ["t1.1.7"], now, 100.0)
    renew(layout, ["t1.1.7"], now - 50, 900.0)
    assert read_json(folder.file("renewed")) == {"renewed_boottime_s": now, "deadline_boottime_s": now + 100}
    with pytest.raises(Refused):
        renew(layout, ["t1.1.7"], now + 1000, 100.0)
    later = boottime()
    renew(layout, ["t1.1.7"], later, 0)
    assert (read_json(folder.file("renewed")) or {})["deadline_boottime_s"] == 0


def test_a_process_is_known_by_pid_and_start_time() -> None:
    own = identity()
    found = find_process(own)
    assert found is not None
    assert found.pid == os.getpid()
    for key, value in (("start_time", 1), ("boot_id", "another"), ("pid_ns", 1), ("pid", 0), ("pid", "1")):
        assert find_process({**own, key: value}) is None


def test_a_gap_costs_no_room_in_the_window(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100)
    with path.open("r+b") as file:
        file.truncate(4 << 20)
    (tmp_path / "gaps.json").write_text(json.dumps({"gaps": [[50, (4 << 20) - 5]]}))
    stream = FileStream("rank0.log", str(path), 0, whole=False)
    frames = []
    while (frame := stream.next(False)) is not None:
        frames.append(frame)
    assert [(f["t"], f["offset"], len(data)) for f, data in frames] == [
        ("data", 0, 50), ("gap", 50, 0), ("data", (4 << 20) - 5, 5),
    ]  # fmt: skip
    assert stream.room() == WINDOW - 55
    stream.acknowledge(4 << 20)
    assert stream.room() == WINDOW


def test_the_longest_record_of_an_exit_fits_a_line_of_events(tmp_path):
    # Each of these characters takes 12 bytes as JSON.
    document = {"message": "\U0001f600" * 100_000, "traceback": "\U0001f600" * 100_000}
    (tmp_path / "error.json").write_text(json.dumps(document))
    error = error_of(str(tmp_path), 1)
    tail = (b"\xff" * LOG_TAIL).decode("utf-8", "replace")
    record = {"seq": 2**62, "kind": "exit", "rank": 10**6, "exit_code": 1, "error": error, "log_tail": tail}
    assert 0.8 * WINDOW < len(encode_event(record)) < WINDOW


def test_status_is_bounded_and_leaves_out_the_runs_that_ended_longest_ago(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 21):
        folder = Path(layout.run(f"t{number}.1.{number}").path)
        folder.mkdir()
        (folder / "lock").touch()
        if number > 2:
            (folder / "ended").write_text('{"reason": "completed"}')
        # The higher its number, the longer ago the run ended.
        os.utime(folder, (10_000 - number, 10_000 - number))
    every = status(layout)
    assert (len(every["runs"]), every["left_out"]) == (20, 0)
    monkeypatch.setattr(status_module, "STATUS_BYTES", len(json.dumps(every["runs"])) // 4)
    found = status(layout)
    kept = [f"t{number}.1.{number}" for number in range(1, 1 + len(found["runs"]))]
    assert list(found["runs"]) == kept, "runs that have not ended come first, then the newest"
    assert len(kept) + found["left_out"] == 20
    assert 3 <= len(kept) <= 5
    asked = status(layout, names=["t20.1.20", "t77.1.77"])
    assert (asked["runs"], asked["left_out"]) == ({"t20.1.20": every["runs"]["t20.1.20"]}, 0)
